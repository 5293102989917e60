"""``ocar data``: the state of the data sets, and how to get the missing ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ocar import datasets
from ocar.datasets import DataStatus
from ocar_lab.cli.arguments import parse
from ocar_lab.cli.tables import print_json, print_table, print_text

ACTIONS = ("status", "verify")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Show which data sets are present, complete and genuine, and how to get the others.

    ocar data checks names, sizes and checksums; ocar data verify reads everything.
    """

    data_root: Path | None = None
    """Folder of the data sets; by default OCAR_DATA or the user's data folder."""

    json: bool = False
    """Print JSON."""


def main(command: str, arguments: list[str], *, debug: bool) -> int:
    """Show the state of the data sets; 1 if one is damaged."""
    named = arguments[:1] if arguments[:1] and arguments[0] in ACTIONS else []
    prog = " ".join(["ocar", command, *(named or ["[status|verify]"])])
    options = parse(Options, arguments[len(named) :], command=prog)
    root = datasets.data_root() if options.data_root is None else options.data_root
    found = datasets.verify(root) if named == ["verify"] else datasets.status(root)
    if options.json:
        plain = [{**dataclasses.asdict(one), "where": str(one.where)} for one in found]
        print_json({"root": str(root), "sets": plain})
    else:
        _print(root, found)
    return 1 if any(one.present and not one.whole for one in found) else 0


def _print(root: Path, found: Sequence[DataStatus]) -> None:
    print_text(f"Data root: {root}\n")
    print_table(
        ["data set", "state", "where"],
        [[one.name, state_text(one), str(one.where) if one.present else ""] for one in found],
    )
    for one in found:
        lines = [one.problem] if one.problem else []
        if not one.whole and one.how_to_get not in one.problem:
            lines.append(one.how_to_get)
        if lines:
            print_text("\n".join(["", one.name, *(f"  {line}" for line in lines)]))


def state_text(one: DataStatus) -> str:
    """The state of a data set in a few words."""
    if not one.present:
        return "missing"
    if not one.whole:
        return "incomplete"
    genuine = {True: ", genuine", False: ", not the published files", None: ""}[one.genuine]
    return f"complete{genuine}"

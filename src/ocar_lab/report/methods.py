"""What was run, and how to run it again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ocar_lab.runs import Group, KeptRun, Measured, Run
from ocar_lab.runs.command import run_command
from ocar_lab.runs.texts import describe, seeds_text


@dataclass(frozen=True, kw_only=True)
class Method:
    """The runs of one configuration."""

    name: str
    """The method, and what was changed of its preset."""

    label: str
    """The method."""

    hash: str
    """What the configuration is known by."""

    seeds: tuple[int, ...]
    """Seeds of the finished runs."""

    unfinished: Mapping[int, str]
    """State of each run that is not finished, by seed."""

    progress: str
    """How many seeds are finished, and what is with the others."""

    evaluations: tuple[int, ...]
    """Evaluations of each run."""

    devices: tuple[str, ...]
    """What they were computed on."""

    begun: str | None
    """When the first of them began."""

    versions: Mapping[str, str]
    """Versions of what computed the first run."""

    revision: str | None
    """Revision of its source; with a plus sign if the source had been changed since."""

    command: str | None
    """The line that makes all of them; None if there can be none."""

    called: tuple[str, ...]
    """The commands that made them, as they were called."""

    config: Mapping[str, Any]
    """All that decides the numbers, beside the seed."""


def describe_method(group: Group, runs: Sequence[Measured]) -> Method:
    """What there is to say of the runs of a configuration.

    Args:
        group: The same runs as one row of a table.
        runs: At least one.
    """
    sessions = [session for run in runs for session in _sessions(run)]
    first = sessions[0] if sessions else {}
    begun = sorted(str(session["time"]) for session in sessions if "time" in session)
    return Method(
        name=describe(group),
        label=group.label,
        hash=group.hash,
        seeds=group.seeds,
        unfinished=group.unfinished,
        progress=seeds_text(group),
        evaluations=tuple(run.evaluated for run in runs),
        devices=tuple(dict.fromkeys(run.device for run in runs if run.device)),
        begun=begun[0] if begun else None,
        versions=first.get("versions", {}),
        revision=_revision(first.get("git")),
        command=_command(runs),
        called=tuple(dict.fromkeys(filter(None, map(_called, sessions)))),
        config=_config(runs[0]),
    )


def _sessions(run: Measured) -> Sequence[Mapping[str, Any]]:
    return run.sessions if isinstance(run, (Run, KeptRun)) else []


def _config(run: Measured) -> Mapping[str, Any]:
    return run.config if isinstance(run, (Run, KeptRun)) else {}


def _revision(git: Mapping[str, Any] | None) -> str | None:
    if not git or "revision" not in git:
        return None
    return f"{git['revision']}{'+' if git.get('changed') else ''}"


def _called(session: Mapping[str, Any]) -> str:
    command = session.get("command") or ""
    if isinstance(command, str):
        return command
    program, *words = map(str, command)
    return shlex.join(["ocar" if program == "__main__.py" else program, *words])


def _command(runs: Sequence[Measured]) -> str | None:
    """The line for all of them, from the first that knows what it was made from."""
    stored = [run for run in runs if isinstance(run, Run) and "given" in run.document]
    if not stored:
        return None
    threads = {run.document.get("threads") for run in stored}
    try:
        return run_command(
            stored[0].config,
            stored[0].document["given"],
            seeds=sorted(run.seed for run in runs),
            threads=threads.pop() if len(threads) == 1 else None,
        )
    except (KeyError, TypeError):  # written by another version
        return None

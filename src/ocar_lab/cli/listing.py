"""``ocar methods`` and ``ocar benchmarks``: lists of both."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from typing import Any

from ocar.config import to_plain
from ocar.methods.presets import PRESETS
from ocar.methods.registry import METHODS
from ocar.streams.benchmarks import BENCHMARKS
from ocar_lab.cli.arguments import parse
from ocar_lab.cli.flags import method_settings
from ocar_lab.cli.tables import print_json, print_table


@dataclass(frozen=True, kw_only=True)
class MethodOptions:
    """List the methods."""

    json: bool = False
    """Print JSON, with every setting of each method."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkOptions:
    """List the benchmarks."""

    json: bool = False
    """Print JSON, with everything that each benchmark fixes."""


def main(command: str, arguments: list[str], *, debug: bool) -> int:
    """List methods or benchmarks."""
    if command == "methods":
        wanted = parse(MethodOptions, arguments, command=f"ocar {command}").json
        listed, header = methods(), ["method", "about", "presets for"]
        shown = [[m["name"], m["about"], ", ".join(m["presets"]) or "-"] for m in listed]
        more = "The settings of a method: ocar run BENCHMARK METHOD --help"
    else:
        wanted = parse(BenchmarkOptions, arguments, command=f"ocar {command}").json
        listed = [to_plain(benchmark) for benchmark in BENCHMARKS.values()]
        header = ["benchmark", "about"]
        shown = [[b["name"], b["description"]] for b in listed]
        more = "The state of the data sets, and how to get them: ocar data"
    if wanted:
        print_json(listed)
    else:
        print_table(header, shown)
        sys.stdout.write(f"\n{more}\n")
    return 0


def methods() -> list[dict[str, Any]]:
    """The methods with their settings, in plain values."""
    return [
        {
            "name": name,
            "about": method.about,
            "presets": [b for b, selected in PRESETS.items() if name in selected],
            "settings": {
                setting.name: {
                    "about": setting.about,
                    "default": None if setting.default is dataclasses.MISSING else setting.default,
                    "required": setting.default is dataclasses.MISSING,
                }
                for setting in method_settings(name).values()
            },
        }
        for name, method in METHODS.items()
    ]

"""The service under load, from ``results/serving``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tables import table

LOAD = Path(__file__).resolve().parents[2] / "results" / "serving" / "load.json"

NAMES = {"digits": "MLP, digits", "cifar100": "Slim-ResNet18, Split-CIFAR100"}


def load_table() -> str:
    """A column for each run of the load script, and the commands."""
    kept: dict[str, Any] = json.loads(LOAD.read_text(encoding="utf-8"))
    columns = [_column(entry["result"]) for entry in kept.values()]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    commands = "\n".join(_command(entry["command"]) for entry in kept.values())
    head = ["", *map(_title, kept)]
    return f"{table(head, rows, numbers=len(columns))}\n```sh\n{commands}\n```\n"


def _title(name: str) -> str:
    case, _, rest = name.partition(", ")
    return ", ".join(filter(None, [NAMES[case], rest]))


def _command(command: str) -> str:
    return command.partition(" --save")[0]


def _column(result: dict[str, Any]) -> dict[str, str]:
    lost = result["batches acknowledged"] - result["batches learned in the end"]
    restart = result.get("longest restart s")
    return {
        "single predictions a second": f"{result['predictions a second']:.0f}",
        "50 % within": f"{result['p50 ms']:.0f} ms",
        "99 % within": f"{result['p99 ms']:.0f} ms",
        "batches learned a second meanwhile": f"{result['batches learned a second']:.2g}",
        "errors": str(result["errors"]),
        "answers unlike those of the learner alone": str(result["inconsistent answers"]),
        "acknowledged batches lost": f"{lost} of {result['batches acknowledged']:,}",
        "longest restart": "" if restart is None else f"{restart:.0f} s",
    }

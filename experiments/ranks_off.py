"""What does a learner in one process pay for ranks, which it does not use?

    python experiments/ranks_off.py

Counts the operators of PyTorch and the Python functions that one learned batch calls: in checkouts
of some revisions, and in this tree. Each has learned ten batches before; the counts are of the
eleventh to the fifteenth. The first revision is from before ranks. The second has ranks. What came
later is in this tree alone. The result is ``results/ranks/off.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from ranks_networks import NETWORKS, operators  # type: ignore[import-not-found]
from torch import nn

import ocar
from ocar.learner import Learner
from ocar_lab.runs.provenance import describe_process

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "results/ranks/off.json"
WARM, COUNTED = 10, 5

METHODS: dict[str, Callable[[nn.Module], Learner]] = {
    "ER": lambda model: ocar.ER(model, lr=0.05, memory=100, replay_batch=10, passes=3),
    "OCAR": lambda model: ocar.OCAR(model, memory=100, replay_batch=10, passes=3),
}


def calls(action: Callable[[], object]) -> int:
    """Functions in Python that an action calls in this thread."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def count_all() -> dict[str, Any]:
    """The counts of the package that is imported."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for network, make in NETWORKS.items():
        for method, learner_of in METHODS.items():
            for what, count in (("operators", operators), ("calls", calls)):
                torch.manual_seed(0)
                learner = learner_of(make())
                x, y = torch.randint(0, 256, (10, 3, 32, 32)).byte(), torch.arange(10)
                for _ in range(WARM):
                    learner.learn(x, y)
                learn = partial(learner.learn, x, y)
                own = [count(learn) for _ in range(COUNTED)]
                found.setdefault(f"{method}, {network}", {})[what] = own
    return found


def count_in(tree: Path) -> dict[str, Any]:
    """The counts of the package in a checkout."""
    paths = os.environ | {"PYTHONPATH": str(tree / "src")}
    command = [sys.executable, __file__, "--count"]
    text = subprocess.run(command, check=True, env=paths, capture_output=True, text=True).stdout
    found: dict[str, Any] = json.loads(text)
    assert found.pop("package") == str(tree / "src/ocar/__init__.py")
    return found


def count_at(revision: str) -> dict[str, Any]:
    """The counts of a revision."""
    git = ["git", "-C", str(ROOT), "worktree"]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), revision], check=True)
        try:
            return count_in(tree)
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--revisions", nargs="*", default=["fb8a2f36", "a353d66"])
    parser.add_argument("--count", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.count:
        print(json.dumps({"package": ocar.__file__, **count_all()}))
        return
    found = {revision: count_at(revision) for revision in given.revisions}
    found["this tree"] = count_in(ROOT)
    record = {
        **describe_process(torch.device("cpu")),
        "about": f"Calls in batches {WARM + 1} to {WARM + COUNTED} of a learner without ranks.",
        "counted": found,
    }
    RESULT.write_text(json.dumps(record, indent=1) + "\n")
    for revision, counts in found.items():
        for name, own in counts.items():
            print(f"{revision}: {name}: {own}")


if __name__ == "__main__":
    main()

"""``ocar run`` under a fault at its file-system calls; a script, since it forks.

    PYTHONPATH=tests python tests/run_faults.py --step 1

A fault strikes once. Then the same run is started again and must end, to the bit, as one that
nothing happened to.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import torch
from faults import KINDS, Tell, attempt
from stored_runs import assert_same_run, small

import ocar
import ocar_lab
from ocar.datasets import load_digits
from ocar.errors import OcarError

FLAT = tuple(kind for kind in KINDS if not kind.startswith("power"))
"""A loss of power is simulated for a flat folder only."""

CONFIG = small(max_batches=12, checkpoint_every=5, every=4, probe=False)


def run(out: Path, tell: Tell) -> None:
    """Start the run; what it raises is said."""
    try:
        tell(["ended", ocar_lab.run(CONFIG, out=out).state])
    except (OcarError, OSError) as error:
        tell(["error", str(error)])


def finish(out: Path, whole: Path, tell: Tell) -> None:
    """Start it again, and compare."""
    found = ocar_lab.run(CONFIG, out=out)
    assert found.state == "finished"
    assert not list(found.path.glob(".*.partial"))
    assert_same_run(whole / CONFIG.folder(), found.path)


def sweep(*, step: int, offset: int, kinds: tuple[str, ...]) -> dict[str, Any]:
    """A fault of each kind at every ``step``-th call; counts of what came of them."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as temporary:
        whole, out = Path(temporary) / "whole", Path(temporary) / "out"
        whole.mkdir()
        calls = attempt(partial(run, whole), whole).calls
        for kind in kinds:
            for at in range(1 + offset % step, len(calls) + 1, step):
                out.mkdir()
                outcome = attempt(partial(run, out), out, at=at, kind=kind)
                attempt(partial(finish, out, whole), out)
                shutil.rmtree(out)
                counts["points"] += 1
                counts["killed"] += outcome.killed
                counts["said"] += any(what == "error" for what, _ in outcome.told)
    return {"calls": len(calls), **counts}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--step", type=int, default=1, help="every how many calls")
    parser.add_argument("--offset", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", default=FLAT)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = ocar.make_model("mlp", image_shape=(1, 4, 4))  # what PyTorch does once
    ocar.ER(model, lr=0.1, memory=10).learn(torch.rand(2, 1, 4, 4), torch.arange(2))
    load_digits()  # so that no child imports scikit-learn
    print(json.dumps(sweep(step=given.step, offset=given.offset, kinds=tuple(given.kinds))))


if __name__ == "__main__":
    main()

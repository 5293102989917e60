"""A rollback and a deletion under a fault at each of their file-system calls; a script, it forks.

    PYTHONPATH=tests python tests/service_change_faults.py rollback --step 1

The service has learned a few batches. It is asked to go back, or to forget a class, and one fault
strikes. After a new start it must be, to the bit, the service before or the service after; after,
if it has said so. What it has said to have forgotten must be in no file.
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
from service_faults import batch, close, digest, leave, new_learner, open_service, started

import ocar
from ocar.service import Refused

LEARNED, TO, LABEL = 5, 2, 7


def change(folder: Path, how: str, tell: Tell) -> None:
    """Start the service, and change it."""
    if (service := started(folder, tell)) is None:
        return
    tell(["asked"])
    try:
        if how == "rollback":
            service.roll_back(TO)
        else:
            service.forget(label=LABEL)
        tell(["done"])
    except Refused as error:
        tell(["refused", str(error)])
    close(service, tell)


def expected(how: str) -> tuple[ocar.Learner, ocar.Learner]:
    """The learner before and after."""
    before, after = new_learner(), new_learner()
    for name in range(1, LEARNED + 1):
        before.learn(*batch(name))
        if how == "forget" or name <= TO:
            after.learn(*batch(name))
    if how == "forget":
        after.forget(label=LABEL)
    return before, after


def recover(folder: Path, how: str, done: bool, tell: Tell) -> None:
    """Start again, compare, and go on."""
    if done and how == "forget":
        for path in folder.iterdir():
            for name in range(1, LEARNED + 1):
                sample = batch(name)[0][2].numpy().tobytes()  # the one of that class
                assert sample not in path.read_bytes(), path
    service = open_service(folder)
    before, after = expected(how)
    changed = digest(service.learner) == digest(after)
    assert changed or (not done and digest(service.learner) == digest(before))
    tell(["changed", changed])
    learned = TO if changed and how == "rollback" else LEARNED
    for name in (1, learned, learned + 1):
        given = service.accept(*batch(name), key=f"key {name}")
        assert given == (name, name <= learned)
    service.close()
    again = open_service(folder)
    again.close()
    assert digest(again.learner) == digest(service.learner)


def sweep(how: str, *, step: int, offset: int, kinds: tuple[str, ...]) -> dict[str, Any]:
    """A fault of each kind at every ``step``-th call; counts of what came of them."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as temporary:
        begun, root = Path(temporary) / "begun", Path(temporary) / "state"
        begun.mkdir()
        attempt(partial(leave, begun, range(1, LEARNED + 1)), begun)
        shutil.copytree(begun, root)
        calls = attempt(partial(change, root, how), root).calls
        places = range(1 + offset % step, len(calls) + 1, step)
        for at, kind in ((at, kind) for kind in kinds for at in places):
            shutil.rmtree(root)
            shutil.copytree(begun, root)
            outcome = attempt(partial(change, root, how), root, at=at, kind=kind)
            done = ["done"] in outcome.told
            told = attempt(partial(recover, root, how, done), root).told
            counts["points"] += 1
            counts["killed"] += outcome.killed
            counts["done"] += done
            counts["refused"] += any(what == "refused" for what, *_ in outcome.told)
            counts["changed"] += told[0][1]
    return {"calls": len(calls), **counts}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("how", choices=["rollback", "forget"])
    parser.add_argument("--step", type=int, default=1, help="every how many calls")
    parser.add_argument("--offset", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", default=KINDS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    new_learner().learn(*batch(0))  # what PyTorch does once it need not do in every child
    result = sweep(given.how, step=given.step, offset=given.offset, kinds=tuple(given.kinds))
    print(json.dumps(result))


if __name__ == "__main__":
    main()

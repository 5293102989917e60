"""One rank of a test in which something goes wrong on the last rank; prints what is raised.

Arguments: a folder, then what goes wrong, one after another.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import torch
from rank_cases import make_learner, make_model, make_stream
from torch import distributed

import ocar
from ocar.errors import OcarError
from ocar.service import Service

TIMEOUT = 30.0


def build(fault: str, ranks: ocar.Ranks, folder: Path, *, last: bool) -> None:
    """Make a learner that cannot be."""
    if fault == "settings":
        make_learner("er", "mlp", ranks, lr=0.2 if last else 0.1)
    if fault == "model":
        ocar.ER(make_model("transformer" if last else "mlp"), ranks=ranks, lr=0.1)
    if fault == "method":
        make_learner("mir", "mlp", ranks, lr=0.1)
    if fault == "curvature":
        make_learner("ocar", "mlp", ranks, curvature="dense", fisher="exact")
    if fault == "norms":
        make_learner("ocar", "batchnorm", ranks, norm_layers=True)
    if fault == "head":
        sharded = ocar.Ranks(timeout=TIMEOUT, memory="sharded")
        make_learner("er", "mlp", sharded, closed_form_head=True)
    if fault == "service":
        new = partial(make_learner, "er", "mlp", ranks)
        Service(folder / f"service {ranks.rank}", new=new, load=ocar.load)


def save(fault: str, ranks: ocar.Ranks, folder: Path, *, last: bool) -> None:
    """Save what must not be saved, or where nothing can be."""
    learner = make_learner("er", "mlp", ranks)
    if last and fault == "weights":
        with torch.no_grad():
            next(learner.model.parameters()).add_(1e-9)
    (folder / "file").touch()
    learner.save(folder / "file" / "ckpt" if fault == "saved" else folder / "ckpt")


def learn(fault: str, ranks: ocar.Ranks, folder: Path, *, last: bool) -> None:
    """Learn a third batch in which something is wrong."""
    learner = make_learner("ocar", "mlp", ranks)
    stream = make_stream("mlp", 4)
    for x, y in stream[:2]:
        learner.learn(ranks.share(x), ranks.share(y))
    before, _ = learner.state()
    x, y = (ranks.share(part) for part in stream[2])
    if last and fault == "labels":
        y = y[1:]
    if last and fault == "shape":
        x = x[:, 1:]
    if fault == "forget":
        learner.forget(label=9 if last else 2)
    if last and fault == "slow":
        wait_until_gave_up(folder, ranks)
    if last and fault == "killed":  # the others begin a sum and wait for it
        ranks.start_sum_ = lambda tensor: os.kill(os.getpid(), signal.SIGKILL)
    try:
        learner.learn(x, y)
    except OcarError:
        after, _ = learner.state()
        assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
        if fault in ("labels", "shape"):  # all can go on
            x, y = (ranks.share(part) for part in stream[3])
            learner.learn(x, y)
            assert learner.batches == 3
        raise


def wait_until_gave_up(folder: Path, ranks: ocar.Ranks) -> None:
    """Wait until every rank but the last has an error."""
    while len([*folder.glob("* gave up")]) < ranks.size - 1:
        time.sleep(0.1)


def main() -> None:
    folder, faults = Path(sys.argv[1]), sys.argv[2:]
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")  # a busy machine may start the ranks slowly
    ranks = ocar.Ranks(timeout=TIMEOUT)
    last = ranks.rank == ranks.size - 1
    for fault in faults:
        try:
            build(fault, ranks, folder, last=last)
            if fault in ("weights", "saved"):
                save(fault, ranks, folder, last=last)
            learn(fault, ranks, folder, last=last)
        except (OcarError, OSError) as error:
            print(f"{fault}: {type(error).__name__}: {error}", flush=True)
            if fault == "slow" and not last:  # the first keeps the list of who waits
                (folder / f"{ranks.rank} gave up").touch()
                wait_until_gave_up(folder, ranks)
    os._exit(0)  # gloo would wait for ranks that are gone


if __name__ == "__main__":
    main()

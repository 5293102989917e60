"""The service under a fault at each of its file-system calls; a script, since it forks.

    PYTHONPATH=tests python tests/service_faults.py --step 1

A client sends batches, each with a key, and notes what it is answered. One fault strikes. Then the
service is started again and must have learned, to the bit, what was acknowledged, in that order,
and nothing else, but for a batch that never got an answer. Then the client sends all of it again:
what had been acknowledged keeps its number, the rest is learned.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import torch
from faults import KINDS, Outcome, Tell, attempt

import ocar
from ocar import files
from ocar.errors import OcarError
from ocar.items import Item
from ocar.service import Refused, Service

ITEM = (1, 4, 4)
SENT = 5
UNSURE = "Whether this batch is kept"


def new_learner() -> ocar.Learner:
    """A learner that is quick."""
    model = ocar.make_model("mlp", image_shape=ITEM, seed=0)
    return ocar.ER(model, lr=0.05, memory=20, seed=0)


def open_service(folder: Path, **options: int) -> Service:
    """A service that saves often."""
    return Service(
        folder,
        new=new_learner,
        load=lambda path: ocar.load(path, ocar.make_model("mlp", image_shape=ITEM)),
        item=Item(torch.Size(ITEM), torch.uint8),
        **{"every": 2, **options},
    )


def batch(name: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch by its name."""
    generator = torch.Generator().manual_seed(name)
    x = torch.randint(0, 256, (3, *ITEM), dtype=torch.uint8, generator=generator)
    return x, torch.tensor([name % 5, (name + 1) % 5, 7])


def digest(learner: ocar.Learner) -> str:
    """All of a learner in short."""
    tensors, values = learner.state()
    content = hashlib.sha256(json.dumps(values, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        content.update(name.encode() + tensor.numpy().tobytes())
    return content.hexdigest()


def started(folder: Path, tell: Tell) -> Service | None:
    """The service; None if it cannot start, which is noted."""
    try:
        return open_service(folder)
    except (OcarError, OSError) as error:
        tell(["not started", str(error)])
        return None


def close(service: Service, tell: Tell) -> None:
    """End the service, and note if it cannot be saved."""
    try:
        service.close()
    except OSError as error:
        tell(["not saved", str(error)])


def send(folder: Path, names: range, tell: Tell) -> None:
    """Start the service, send batches, note the answers, end it."""
    if (service := started(folder, tell)) is None:
        return
    for name in names:
        tell(["sent", name])
        try:
            number, repeated = service.accept(*batch(name), key=f"key {name}")
            tell(["repeated" if repeated else "accepted", name, number])
        except Refused as error:
            tell(["unsure" if UNSURE in str(error) else "refused", name])
        service.flush()
    close(service, tell)


def leave(folder: Path, names: range, tell: Tell) -> None:
    """Start the service, send batches, and let it die."""
    service = open_service(folder)
    for name in names:
        service.accept(*batch(name), key=f"key {name}")
        service.flush()
    (folder / ".checkpoint-000-000000000002.safetensors.1-00000000.partial").write_bytes(b"half")


def recover(folder: Path, sure: list[int], unsure: list[int], tell: Tell) -> None:
    """Start again, compare, send all again, compare."""
    service = open_service(folder)
    others = {path.name for path in folder.iterdir()} - {".lock"}
    assert all(name.startswith(("checkpoint-000-", "journal-000-")) for name in others), others
    kept = sure if service.learner.batches == len(sure) else sure + unsure
    offline = new_learner()
    for name in kept:
        offline.learn(*batch(name))
    assert digest(service.learner) == digest(offline), (service.learner.batches, sure, unsure)
    tell(["kept", len(kept) - len(sure)])
    for name in range(1, 2 * SENT):
        number, repeated = service.accept(*batch(name), key=f"key {name}")
        assert repeated == (name in kept), name
        if not repeated:
            kept = [*kept, name]
            offline.learn(*batch(name))
        assert number == kept.index(name) + 1
        service.flush()
    service.close()
    again = open_service(folder)
    again.close()
    assert digest(service.learner) == digest(again.learner) == digest(offline)


def noted(outcome: Outcome, sure: list[int]) -> tuple[list[int], list[int]]:
    """The batches that must have been learned, and the one that may have been."""
    sure, sent = list(sure), 0
    unsure = []
    for what, value, *_ in outcome.told:
        if what == "sent":
            sent = value
        elif what == "accepted":
            sure.append(value)
        elif what == "unsure":
            unsure = [value]
        if what in ("accepted", "refused", "unsure"):
            sent = 0
    return sure, unsure or ([sent] if outcome.killed and sent else [])


def sweep(*, step: int, offset: int, kinds: tuple[str, ...], used: bool) -> dict[str, Any]:
    """A fault of each kind at every ``step``-th call; counts of what came of them."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as temporary:
        begun, root = Path(temporary) / "begun", Path(temporary) / "state"
        begun.mkdir()
        sure = list(range(1, SENT - 2)) if used else []
        if used:
            attempt(partial(leave, begun, range(1, SENT - 2)), begun)
        names = range(len(sure) + 1, len(sure) + SENT + 1)
        shutil.copytree(begun, root)
        calls = attempt(partial(send, root, names), root).calls
        places = range(1 + offset % step, len(calls) + 1, step)
        for at, kind in ((at, kind) for kind in kinds for at in places):
            shutil.rmtree(root)
            shutil.copytree(begun, root)
            outcome = attempt(partial(send, root, names), root, at=at, kind=kind)
            has_kept = attempt(partial(recover, root, *noted(outcome, sure)), root).told
            counts["points"] += 1
            counts["killed"] += outcome.killed
            counts["answered 503"] += sum(what == "refused" for what, *_ in outcome.told)
            counts["not started"] += any(what == "not started" for what, *_ in outcome.told)
            counts["kept without an answer"] += has_kept[0][1]
    return {"calls": len(calls), **counts}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--step", type=int, default=1, help="every how many calls")
    parser.add_argument("--offset", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", default=KINDS)
    parser.add_argument("--used", action="store_true", help="start with a journal to learn")
    parser.add_argument(
        "--unsynced", action="store_true", help="never sync a folder: the sweep must find out"
    )
    given = parser.parse_args()
    if given.unsynced:
        files.sync_folder = lambda folder: None
    torch.set_num_threads(1)
    new_learner().learn(*batch(0))  # what PyTorch does once it need not do in every child
    result = sweep(step=given.step, offset=given.offset, kinds=tuple(given.kinds), used=given.used)
    print(json.dumps(result))


if __name__ == "__main__":
    main()

"""How far an OCAR batch is from what the device could do: the floor, counted and measured.

The work is counted, see :mod:`benchmarks.operations`. What the device can do is measured in the
same run: a large product in single precision for the operations, a large copy for the bytes. The
floor of a part is the longer of the two, that of the batch the sum of its parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median

import torch

from benchmarks.operations import Work, count_batch, layer_shapes
from benchmarks.results import Result, compare, take_apart
from benchmarks.setup import BATCH, IMAGE, Setup, slim_learner, stream_batch
from benchmarks.timing import Side, take_turns
from ocar.curvature.fisher import Categorical
from ocar.learner import Learner
from ocar.methods.ocar import OCARTransform
from ocar.rng import make_generator

CLASSES = 100


def measure_floor(setup: Setup) -> Iterator[Result]:
    """Operations and bytes of an OCAR batch by part, and the batch over its floor."""
    learner = slim_learner("ocar", classes=CLASSES, setup=setup)
    works = learner_work(learner)
    sides, most = probes(setup)
    batch = Side("an OCAR batch", stream_batch(learner, classes=CLASSES))
    times = take_turns([batch, *sides], turns=setup.turns, least=setup.least, device=setup.device)
    product, copy = (times[side.name] for side in sides)
    note = f"{setup.network}, {CLASSES} classes, three passes; counted, not measured"
    yield take_apart(
        "operations of an OCAR batch",
        {part: work.operations / 1e9 for part, work in works.items()},
        unit="10⁹ operations a stream batch",
        note=note,
    )
    yield take_apart(
        "bytes of an OCAR batch",
        {part: work.bytes / 1e6 for part, work in works.items()},
        unit="10⁶ bytes a stream batch",
        note=note,
    )
    floors = [
        floor_seconds(works, operations=most.operations / p, bytes=most.bytes / c)
        for p, c in zip(product, copy, strict=True)
    ]
    operations = sum(work.operations for work in works.values())
    speed, part = most.operations / median(product), operations / median(times[batch.name])
    yield compare(
        "the floor",
        (batch.name, times[batch.name]),
        ("its operations and bytes at full speed", floors),
        note=(
            f"a product does {speed / 1e9:.3g}·10⁹ operations a second, a copy "
            f"{most.bytes / median(copy) / 1e9:.3g}·10⁹ bytes; the batch {part / 1e9:.3g}·10⁹ "
            f"operations, {part / speed:.1%} of the product's"
        ),
    )


def learner_work(learner: Learner) -> dict[str, Work]:
    """The work of a batch of an OCAR learner for images, by part."""
    transform = learner._transform
    assert isinstance(transform, OCARTransform)
    samples = BATCH + learner.settings.replay_batch
    logits = torch.zeros(samples, len(learner.classes), device=learner.device)
    labels = torch.zeros(samples, dtype=torch.int64, device=learner.device)
    generator = make_generator(0, "fisher", learner.device)
    root = transform.curvature.fisher.columns(Categorical(logits), generator, labels)
    return count_batch(
        layer_shapes(learner.model, torch.zeros(2, *IMAGE, device=learner.device)),
        samples=samples,
        passes=learner.settings.passes,
        columns=root.shape[0],
    )


def floor_seconds(works: Mapping[str, Work], *, operations: float, bytes: float) -> float:
    """The least time of some work.

    Args:
        works: The work by part.
        operations: Operations that the device can do in a second.
        bytes: Bytes that it can move in a second.
    """
    return sum(max(w.operations / operations, w.bytes / bytes) for w in works.values())


def probes(setup: Setup) -> tuple[list[Side], Work]:
    """A large product and a large copy, and the operations of the one and bytes of the other."""
    rows = setup.matrix * (8 if setup.device.type == "cuda" else 1)
    a = torch.rand(rows, rows, device=setup.device)
    b, out = torch.rand_like(a), torch.empty_like(a)
    source = torch.rand(8 * rows * rows, device=setup.device)
    target = torch.empty_like(source)
    sides = [
        Side("a product", lambda: torch.mm(a, b, out=out)),
        Side("a copy", lambda: target.copy_(source)),
    ]
    return sides, Work(2 * rows**3, 2 * source.numel() * source.element_size())

"""How far an OCAR batch is from the device's limits: its work counted, the limits measured.

Counted from the shapes of the layers are the least floating point operations of the method, a
multiplication and an addition as two, and the least bytes, each tensor read or written once
wherever it is needed. For a layer with n samples, L locations a sample, d_in inputs, d_out outputs:

* forward: 2 n L d_in d_out, in each pass; backward: twice that, once for the first layer
* pull-back of a root with c columns: the half of backward that goes to the inputs, c times
* factors: n L d_in (d_in + 1) and c n L d_out (d_out + 1), since they are symmetric
* inverses: d_in³ + d_out³
* preconditioning: 2 (d_out² d_in + d_out d_in²), in each pass

A bias is one more input of the factors. BatchNorm counts with its bytes only; activations count as
nothing, since they can be fused. A large float32 product and a large copy give the device's speed.
The floor of a part is the longer of operations and bytes at that speed; the floor of a batch is the
sum over its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.results import Result, compare, take_apart
from benchmarks.setup import BATCH, IMAGE, Setup, slim_learner, stream_batch
from benchmarks.timing import take_turns
from ocar.curvature.fisher import Categorical
from ocar.learner import Learner
from ocar.methods.ocar import OCARTransform
from ocar.rng import make_generator

CLASSES = 100
NUMBER = 4
"""Bytes of a float32."""


@dataclass(frozen=True)
class Work:
    """Floating point operations, and bytes to read and write."""

    operations: int = 0
    bytes: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.operations + other.operations, self.bytes + other.bytes)

    def __mul__(self, times: int) -> Work:
        return Work(self.operations * times, self.bytes * times)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A linear layer, a convolution without groups or a BatchNorm, for one sample."""

    fan_in: int  # inputs of one output; 0 for BatchNorm
    outputs: int  # at one location
    locations: int  # pixels of the output
    numbers_in: int
    parameters: int
    bias: bool

    @property
    def numbers_out(self) -> int:
        """Numbers in the output."""
        return self.outputs * self.locations

    @property
    def inputs(self) -> int:
        """Rows of the factor of the inputs, d_in."""
        return self.fan_in + self.bias

    def product(self, samples: int) -> Work:
        """One product of the layer: forward, to its weights, or to its inputs."""
        numbers = samples * (self.numbers_in + self.numbers_out) + self.parameters
        return Work(2 * samples * self.locations * self.fan_in * self.outputs, NUMBER * numbers)

    def factors(self, samples: int, columns: int) -> Work:
        """Both factors, added to their moving averages."""
        a, g, rows = self.inputs, self.outputs, samples * self.locations
        numbers = samples * (self.numbers_in + columns * self.numbers_out) + 2 * (a**2 + g**2)
        return Work(rows * (a * (a + 1) + columns * g * (g + 1)), NUMBER * numbers)

    def inverses(self) -> Work:
        """Both inverses."""
        a, g = self.inputs, self.outputs
        return Work(a**3 + g**3, 2 * NUMBER * (a**2 + g**2))

    def preconditioning(self) -> Work:
        """The gradient times both inverses."""
        a, g = self.inputs, self.outputs
        return Work(2 * (g**2 * a + g * a**2), NUMBER * (a**2 + g**2 + 2 * a * g))


def measure_floor(setup: Setup) -> Iterator[Result]:
    """Operations and bytes of an OCAR batch by part, and the batch over its floor."""
    learner = slim_learner("ocar", classes=CLASSES, setup=setup)
    works = learner_work(learner)
    probes, most = _probes(setup)
    batch, floor = "an OCAR batch", "its operations and bytes at full speed"
    times = take_turns({batch: stream_batch(learner, classes=CLASSES), **probes}, setup)
    note = f"{setup.network}, {CLASSES} classes, three passes; counted, not measured"
    for name, (power, unit) in {"operations": (1e9, "10⁹"), "bytes": (1e6, "10⁶")}.items():
        amounts = {part: getattr(work, name) / power for part, work in works.items()}
        unit = f"{unit} {name} a stream batch"
        yield take_apart(f"{name} of an OCAR batch", amounts, unit=unit, note=note)
    product, copy = (times[name] for name in probes)
    times[floor] = [
        floor_seconds(works, operations=most.operations / p, bytes=most.bytes / c)
        for p, c in zip(product, copy, strict=True)
    ]
    operations = sum(work.operations for work in works.values())
    speed, part = most.operations / median(product), operations / median(times[batch])
    yield compare(
        "the floor",
        times,
        batch,
        floor,
        note=(
            f"a product does {speed / 1e9:.3g}·10⁹ operations a second, a copy "
            f"{most.bytes / median(copy) / 1e9:.3g}·10⁹ bytes; the batch {part / 1e9:.3g}·10⁹ "
            f"operations, {part / speed:.1%} of the product's"
        ),
    )


def floor_seconds(works: Mapping[str, Work], *, operations: float, bytes: float) -> float:
    """The least time of some work at a speed in operations and bytes a second."""
    return sum(max(w.operations / operations, w.bytes / bytes) for w in works.values())


def _probes(setup: Setup) -> tuple[dict[str, Callable[[], object]], Work]:
    """A large product and a large copy; the operations of the one, the bytes of the other."""
    rows = setup.matrix * (8 if setup.on_gpu else 1)
    a = torch.rand(rows, rows, device=setup.device)
    b, out = torch.rand_like(a), torch.empty_like(a)
    source = torch.rand(8 * rows * rows, device=setup.device)
    target = torch.empty_like(source)
    calls: dict[str, Callable[[], object]] = {
        "a product": lambda: torch.mm(a, b, out=out),
        "a copy": lambda: target.copy_(source),
    }
    return calls, Work(2 * rows**3, 2 * source.numel() * source.element_size())


def learner_work(learner: Learner) -> dict[str, Work]:
    """The work of a batch of an OCAR learner for images, by part."""
    transform = learner.transform
    assert isinstance(transform, OCARTransform)
    samples = BATCH + learner.settings.replay_batch
    logits = torch.zeros(samples, len(learner.classes), device=learner.device)
    labels = torch.zeros(samples, dtype=torch.int64, device=learner.device)
    generator = make_generator(0, "fisher", learner.device)
    root = transform.curvature.root.columns(Categorical(logits), generator, labels)
    return count_batch(
        layer_shapes(learner.model, torch.zeros(2, *IMAGE, device=learner.device)),
        samples=samples,
        passes=learner.settings.passes,
        columns=root.shape[0],
    )


def count_batch(
    shapes: Sequence[Shape], *, samples: int, passes: int, columns: int
) -> dict[str, Work]:
    """The work of an OCAR batch by part, with one update of the curvature.

    A pass, of which a batch has ``passes``, is over new and replayed ``samples``; the Fisher's root
    has so many ``columns``.
    """

    def total(works: Iterable[Work]) -> Work:
        return sum(works, Work())

    layers = [shape for shape in shapes if shape.fan_in]
    parameters = sum(shape.parameters for shape in shapes)
    # Outputs of all BatchNorms, which are read and written in each direction.
    normed = NUMBER * samples * sum(s.numbers_out for s in shapes if not s.fan_in)
    every_layer = total(shape.product(samples) for shape in layers)
    to_inputs = total(shape.product(samples) for shape in layers[1:])
    pulled = total(shape.product(samples * columns) for shape in layers[1:])
    return {
        "forward": (every_layer + Work(0, 2 * normed)) * passes,
        "backward": (every_layer + to_inputs + Work(0, 3 * normed)) * passes,
        "pull-back of the Fisher's root": pulled + Work(0, (2 * columns + 1) * normed),
        "factors": total(shape.factors(samples, columns) for shape in layers),
        "inverses": total(shape.inverses() for shape in layers),
        "preconditioning": total(shape.preconditioning() for shape in layers) * passes,
        "update": Work(2 * parameters, 3 * NUMBER * parameters) * passes,
    }


@torch.no_grad()
def layer_shapes(model: nn.Module, x: Tensor) -> list[Shape]:
    """The layers of a forward pass, in their order; of the inputs ``(n, ...)`` the shape counts."""
    shapes: list[Shape] = []

    def record(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        if isinstance(module, (nn.Linear, nn.Conv2d, nn.BatchNorm2d)):
            weight, outputs = module.weight, output.shape[1]
            shapes.append(
                Shape(
                    fan_in=weight[0].numel() if weight.dim() > 1 else 0,
                    outputs=outputs,
                    locations=output[0].numel() // outputs,
                    numbers_in=inputs[0][0].numel(),
                    parameters=sum(p.numel() for p in module.parameters()),
                    bias=module.bias is not None,
                )
            )

    handles = [module.register_forward_hook(record) for module in model.modules()]
    training = model.training
    try:
        model.eval()(x)
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    return shapes

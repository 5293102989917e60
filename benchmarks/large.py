"""A batch of Split-TinyImageNet: images of 64 × 64, nine passes, evaluated on many images."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from benchmarks.results import Result, compare
from benchmarks.setup import Setup, noise, slim_learner, stream_batch
from benchmarks.timing import take_turns
from ocar.learner import Learner
from ocar.streams.benchmarks import get_benchmark

BENCHMARK = get_benchmark("split-tinyimagenet")
CLASSES, IMAGE = BENCHMARK.classes, BENCHMARK.image_shape


def measure_large(setup: Setup) -> Iterator[Result]:
    """OCAR over ER, and a batch of OCAR that is evaluated over one that is not.

    The evaluation is of half of the validation data, as many images as in the mean over a run.
    """
    learners = {
        method.upper(): slim_learner(method, classes=CLASSES, setup=setup, benchmark=BENCHMARK.name)
        for method in ("er", "ocar")
    }
    sides = {
        name: stream_batch(own, classes=CLASSES, image=IMAGE) for name, own in learners.items()
    }
    sides["OCAR, evaluated"] = _evaluated(learners["OCAR"], sides["OCAR"], setup)
    times = take_turns(sides, setup)
    note = f"{setup.network}, {IMAGE[1]} px, {CLASSES} classes, {BENCHMARK.passes} passes"
    yield compare("large images", times, "OCAR", "ER", note=note)
    note += f", {setup.validation} images predicted"
    yield compare("large images, evaluation", times, "OCAR, evaluated", "OCAR", note=note)


def _evaluated(learner: Learner, learn: Callable[[], object], setup: Setup) -> Callable[[], object]:
    """A function that learns a batch and predicts half of the validation data."""
    count = setup.validation  # Split-TinyImageNet has twice as many as Split-CIFAR100
    x, y = noise(2 * count, classes=CLASSES, device=setup.device, seed=2, image=IMAGE)
    labels, predict = y[:count].to(setup.device), learner.predict_repeatedly(x)

    def correct(logits: Tensor) -> Tensor:
        return (logits.argmax(dim=1) == labels).sum()

    def run() -> object:
        learn()
        return predict(count, correct)

    return run

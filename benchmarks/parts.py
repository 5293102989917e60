"""Where the time of an OCAR batch goes: by part of the work on a CPU, by kernel on a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import torch

from benchmarks.inside import REST, family, timed_calls
from benchmarks.mlp import mlp_batch, mlp_learner
from benchmarks.results import Breakdown, Result, take_apart
from benchmarks.setup import Setup, slim_learner, stream_batch
from benchmarks.timing import Clock, synchronize, take_turns, warm_up_calls

CLASSES = 100


def measure_parts(setup: Setup) -> Iterator[Result]:
    """Shares of an OCAR batch."""
    slim = slim_learner("ocar", classes=CLASSES, setup=setup)
    call = stream_batch(slim, classes=CLASSES)
    if setup.on_gpu:
        yield _kernels(call, setup)
        return
    mlp = mlp_learner("ocar")
    for name, learner, learn, batches in (
        (setup.network, slim, call, setup.turns),
        ("MLP 784-100-100", mlp, mlp_batch(mlp), 10 * setup.turns),
    ):
        learn()  # the first batch has no curvature yet
        parts = Parts()
        for owner, method, part, then in timed_calls(learner):
            parts.follow(owner, method, part, then=then)
        for _ in range(batches):
            learn()
        yield take_apart(
            f"parts of an OCAR batch, {name}",
            {part: seconds / batches for part, seconds in parts.seconds.items()},
            unit="s a stream batch",
            note=f"{len(learner.classes)} classes, three passes, mean of {batches} batches",
        )


class Parts:
    """A stopwatch that counts each moment for one part of the work: ``seconds`` by part."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = clock
        self._part, self._since = REST, clock()

    def switch(self, part: str) -> str:
        """Count for another part from now on; returns the part before."""
        now, before = self._clock(), self._part
        self.seconds[before] = self.seconds.get(before, 0.0) + now - self._since
        self._part, self._since = part, now
        return before

    def follow(self, owner: Any, method: str, part: str, *, then: str | None = None) -> None:
        """Switch to a part during the calls of an object's method, and ``then`` to another.

        By default it switches back to the part before the call.
        """
        call: Callable[..., Any] = getattr(owner, method)

        def followed(*args: Any, **kwargs: Any) -> Any:
            before = self.switch(part)
            try:
                return call(*args, **kwargs)
            finally:
                self.switch(before if then is None else then)

        setattr(owner, method, followed)


def by_family(kernels: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Time of each family of kernels, from the name and the time of each kernel."""
    totals: dict[str, float] = {}
    for name, duration in kernels:
        totals[family(name)] = totals.get(family(name), 0.0) + duration
    return totals


def _kernels(call: Callable[[], object], setup: Setup) -> Breakdown:
    """Time of all kernels of one batch by family; kernels that run in parallel count in full."""
    times = take_turns({"batch": call}, setup)["batch"]
    kernels = _profile(call, setup.device)
    return take_apart(
        f"kernels of an OCAR batch, {setup.network}",
        by_family(kernels),
        unit="s of kernels a stream batch",
        note=(
            f"{len(kernels)} kernels and copies, some in parallel, in a batch of "
            f"{1e3 * median(times):.2f} ms; {CLASSES} classes, recorded"
        ),
    )


def _profile(call: Callable[[], object], device: torch.device) -> list[tuple[str, float]]:
    """Name and seconds of each kernel and copy of one call after a warm-up."""
    from torch.profiler import ProfilerActivity, profile

    for _ in range(warm_up_calls(device)):
        call()
    synchronize(device)
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, acc_events=True) as found:
        call()
        synchronize(device)
    return [
        (event.name, 1e-6 * event.time_range.elapsed_us())
        for event in found.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]

"""Where the time of an OCAR batch goes, by part, on the CPU.

A stopwatch follows the learner through its batch: at each moment one part is on, and the calls
that the learner makes of its own parts switch it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.kernels import measure_kernels
from benchmarks.mlp import mlp_batch, mlp_learner
from benchmarks.results import Result, take_apart
from benchmarks.setup import Setup, slim_learner, stream_batch
from benchmarks.timing import Clock
from ocar.learner import Learner
from ocar.methods.ocar import OCARTransform

CLASSES = 100
FORWARD, BACKWARD, PULL_BACK = "forward and loss", "backward", "pull-back of the Fisher's root"
FACTORS, INVERSES, PRECONDITIONING = "factors", "inverses", "preconditioning"
UPDATE, MEMORY, REST = "update", "memory", "augmentation and the rest"


class Parts:
    """A stopwatch with several hands, one of which runs.

    Args:
        clock: Tells the time in seconds.

    Attributes:
        seconds: How long each part was on.
    """

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = clock
        self._part = REST
        self._since = clock()

    def switch(self, part: str) -> str:
        """From now on another part is on.

        Returns:
            The one that was.
        """
        now, before = self._clock(), self._part
        self.seconds[before] = self.seconds.get(before, 0.0) + now - self._since
        self._part, self._since = part, now
        return before

    def follow(self, owner: Any, method: str, part: str, *, then: str | None = None) -> None:
        """Let calls of a method switch to a part, and back afterwards.

        Args:
            owner: Whose method; no other object of its class is changed.
            method: Its name.
            part: What is on during a call.
            then: What is on after it, if not what was before.
        """
        call: Callable[..., Any] = getattr(owner, method)

        def followed(*args: Any, **kwargs: Any) -> Any:
            before = self.switch(part)
            try:
                return call(*args, **kwargs)
            finally:
                self.switch(before if then is None else then)

        setattr(owner, method, followed)


def follow_learner(learner: Learner, parts: Parts) -> None:
    """Switch the parts of a stopwatch as an OCAR learner goes through its batches."""
    transform = learner._transform
    assert isinstance(transform, OCARTransform)
    curvature = transform.curvature
    parts.follow(learner, "learn", REST)
    for method in ("draw", "gather", "add"):
        parts.follow(learner.memory, method, MEMORY, then=REST)
    parts.follow(learner.model, "forward", FORWARD, then=FORWARD)
    parts.follow(transform, "observe", FACTORS, then=BACKWARD)
    parts.follow(curvature.capture(), "pull_back", PULL_BACK)
    parts.follow(transform, "rewrite_", PRECONDITIONING, then=UPDATE)
    parts.follow(curvature, "refresh", INVERSES)


def measure_parts(setup: Setup) -> Iterator[Result]:
    """Shares of an OCAR batch: by part on a CPU, by kernel on a GPU."""
    if setup.device.type == "cuda":
        yield from measure_kernels(setup)
        return
    slim = slim_learner("ocar", classes=CLASSES, setup=setup)
    mlp = mlp_learner("ocar")
    for name, learner, call, batches in (
        (setup.network, slim, stream_batch(slim, classes=CLASSES), setup.turns),
        ("MLP 784-100-100", mlp, mlp_batch(mlp), 10 * setup.turns),
    ):
        call()  # the first batch finds no curvature yet
        parts = Parts()
        follow_learner(learner, parts)
        for _ in range(batches):
            call()
        yield take_apart(
            f"parts of an OCAR batch, {name}",
            {part: seconds / batches for part, seconds in parts.seconds.items()},
            unit="s a stream batch",
            note=f"{len(learner.classes)} classes, three passes, mean of {batches} batches",
        )

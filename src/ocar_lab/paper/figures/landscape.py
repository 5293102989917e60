"""The path of a learner through the loss landscape, in the plane through w₀, w₁ and the last.

Appendix F of the paper: the plane goes through the weights at the start, after the first task and
at the end. The path is projected onto it, and the loss on each task's test samples is computed on a
grid of the plane. Classes that a learner has not seen are masked while it learns; the loss surfaces
are over all classes, at every point.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional
from torch.nn.utils import parameters_to_vector

from ocar.augment import scale_to_unit
from ocar.errors import ConfigError
from ocar.evaluate.measure import hits
from ocar.learner import Learner
from ocar.streams.base import TaskStream, concatenate
from ocar_lab.experiment import RunConfig
from ocar_lab.paper.figures.base import RunFigure
from ocar_lab.paper.figures.landscape_drawing import Row, Trajectory, draw_learning, draw_surfaces
from ocar_lab.paper.figures.plane import plane_through
from ocar_lab.paper.figures.setup import Listen

MARGIN = 0.15
"""How far the surfaces extend beyond the path on each side, as a fraction of its extent."""


@dataclass(frozen=True, kw_only=True)
class LandscapeFigure(RunFigure):
    """The path of each method through the loss landscape, and its learning curves.

    Three pictures: the loss of the first two tasks and of the mean, as in the paper's text; that
    of every task; and the accuracy on every task over time.
    """

    title = "landscape"
    kind = Trajectory

    methods: tuple[str, ...] = ("er", "ocar")
    """The methods."""

    samples: int = 1000
    """Most test samples of each task."""

    resolution: int = 31
    """Points of the plane in each direction."""

    every: int = 10
    """Batches between two points of the path."""

    dense: int = 40
    """Batches after a boundary that are all points of the path."""

    def configs(self) -> dict[str, RunConfig]:
        """A path for each method."""
        return {method: self.config(method) for method in self.methods}

    def describe(self) -> dict[str, Any]:
        """What all runs have in common, in plain values."""
        own = ("samples", "resolution", "every", "dense")
        return super().describe() | {name: getattr(self, name) for name in own}

    def make(self, part: str, listen: Listen) -> Trajectory:
        """Train a method on the stream, then compute the landscape around its path.

        Raises:
            ConfigError: The model has buffers, or a head that grows.
        """
        config = self.config(part)
        stream, learner = self.stream(config), self.learner(config)
        if any(True for _ in learner.model.buffers()):
            raise ConfigError(
                f"Invalid benchmark={self.benchmark!r}. Its model has BatchNorm, whose statistics "
                "are not part of the plane; split-mnist and split-digits have none."
            )
        tests = [_some(stream.test(task), self.samples) for task in range(stream.tasks)]
        samples = Samples(*concatenate(tests), [len(y) for _, y in tests])
        path = self._walk(stream, learner, samples, listen)
        if len({len(w) for w in path.weights}) > 1:
            raise ConfigError(
                f"Invalid benchmark={self.benchmark!r}. Its head grows during the run."
            )
        return _landscape(path, losses_of(learner, samples), self.resolution)

    def _walk(
        self, stream: TaskStream, learner: Learner, samples: Samples, listen: Listen
    ) -> _Walk:
        """Train, and record points of the path."""
        total = operator.length_hint(stream)
        walk = _Walk([0], [], [_weights(learner)], [(0.0,) * len(samples.sizes)])
        since = 0
        for batch in stream:
            (learner.learn if batch.complete else learner.remember)(batch.x, batch.y)
            since += 1
            if since <= self.dense or since % self.every == 0 or batch.last:
                right = hits(learner, samples.x, samples.y).double().split(samples.sizes)
                walk.times.append(batch.index + 1)
                walk.weights.append(_weights(learner))
                walk.accuracies.append(tuple(float(part.mean()) for part in right))
            if batch.last:
                walk.boundaries.append(len(walk.times) - 1)
                since = 0
            listen(batch.index + 1, total)
        return walk

    def draw(self, parts: Mapping[str, Trajectory]) -> Any:
        """The surfaces of the first two tasks and of the mean, with the paths."""
        return draw_surfaces(parts, most=2)

    def pictures(self, parts: Mapping[str, Trajectory]) -> dict[str, Any]:
        """These surfaces, all surfaces, the accuracies over time."""
        return {
            self.name: self.draw(parts),
            f"landscape-tasks-{self.benchmark}": draw_surfaces(parts),
            f"learning-{self.benchmark}": draw_learning(parts),
        }


FIGURE = LandscapeFigure


class _Walk(NamedTuple):
    times: list[int]
    boundaries: list[int]
    weights: list[Tensor]
    accuracies: list[Row]


def _weights(learner: Learner) -> Tensor:
    return parameters_to_vector(learner.model.parameters()).detach().clone()


class Samples(NamedTuple):
    """Test samples of all tasks."""

    x: Tensor  # (n, ...)
    y: Tensor  # (n,)
    sizes: list[int]  # samples of each task


def losses_of(learner: Learner, samples: Samples) -> Callable[[Tensor], Row]:
    """A function of weights ``(d,)``: mean cross-entropy on each task, over all classes."""
    classes, named = learner.classes, dict(learner.model.named_parameters())
    unit_of = {label: unit for unit, label in enumerate(classes)}
    units = torch.tensor([unit_of[label] for label in samples.y.tolist()])
    x = (learner.settings.normalize or scale_to_unit)(samples.x).float()

    @torch.no_grad()
    def losses(weights: Tensor) -> Row:
        parts = zip(named, weights.split([p.numel() for p in named.values()]), strict=True)
        own = {name: part.view_as(named[name]).to(named[name].dtype) for name, part in parts}
        logits = functional_call(learner.model, own, (x,))[:, : len(classes)]
        each = functional.cross_entropy(logits, units, reduction="none")
        return tuple(float(part.double().mean()) for part in each.split(samples.sizes))

    return losses


def _landscape(walk: _Walk, losses: Callable[[Tensor], Row], resolution: int) -> Trajectory:
    """Coordinates of the path in its plane, and the losses on a grid of it."""
    weights = torch.stack(walk.weights)
    plane = plane_through(weights[0], weights[walk.boundaries[0]], weights[-1])
    places = torch.stack([plane.coordinates(w) for w in weights])
    low, high = places.amin(0), places.amax(0)
    extent = MARGIN * (high - low)
    grids = [
        torch.linspace(float(a), float(b), resolution, dtype=torch.float64)
        for a, b in zip(low - extent, high + extent, strict=True)
    ]
    found = [[losses(plane.points(torch.stack([gx, gy]))) for gx in grids[0]] for gy in grids[1]]
    surfaces = np.array(found).transpose(2, 0, 1).tolist()
    steps = torch.linalg.vector_norm(weights.diff(dim=0), dim=1).tolist()
    spans = list(itertools.pairwise([0, *walk.boundaries]))
    return Trajectory(
        times=tuple(walk.times),
        boundaries=tuple(walk.boundaries),
        x=tuple(places[:, 0].tolist()),
        y=tuple(places[:, 1].tolist()),
        off_plane=tuple(float(plane.distances(w)) for w in weights),
        accuracies=tuple(walk.accuracies),
        losses=tuple(losses(weights[i]) for i in (0, walk.boundaries[0], -1)),
        grid_x=tuple(grids[0].tolist()),
        grid_y=tuple(grids[1].tolist()),
        surfaces=tuple(tuple(tuple(row) for row in one) for one in surfaces),
        length=tuple(sum(steps[a:b]) for a, b in spans),
        straight=tuple(float(torch.linalg.vector_norm(weights[b] - weights[a])) for a, b in spans),
    )


def _some(data: tuple[Tensor, Tensor], most: int) -> tuple[Tensor, Tensor]:
    """Some of the samples, evenly spread, because they may be sorted by class."""
    x, y = data
    chosen = torch.linspace(0, len(y) - 1, min(most, len(y))).round().long()
    return x[chosen], y[chosen]

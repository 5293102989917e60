"""Views of a data set, one a task: its images permuted or rotated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ocar.datasets.arrays import Arrays
from ocar.errors import ConfigError
from ocar.rng import make_generator
from ocar.streams.arrays import TaskArrays
from ocar.streams.indexed import View


@dataclass(frozen=True)
class Permute:
    """The pixels of each image in another order, the same for every image and channel."""

    seed: int  #: Seed of the order.
    name: str = "permutation"  #: Distinguishes orders of one seed.

    def __call__(self, x: Tensor) -> Tensor:
        """Images ``(n, channels, h, w)`` with their pixels permuted."""
        pixels = math.prod(x.shape[-2:])
        order = torch.randperm(pixels, generator=make_generator(self.seed, self.name))
        return x.flatten(-2)[..., order.to(x.device)].view_as(x)


@dataclass(frozen=True)
class Rotate:
    """Images turned about their centre, with bilinear interpolation and black corners."""

    degrees: float  #: Angle, counter-clockwise.

    def __call__(self, x: Tensor) -> Tensor:
        """Images ``(n, channels, h, w)`` turned, of the type of ``x``; uint8 is rounded."""
        height, width = x.shape[-2:]
        angle = math.radians(self.degrees)
        cos, sin = math.cos(angle), math.sin(angle)
        # From a pixel of the result to its source; the axes run over −1..1, hence h/w.
        matrix = torch.tensor(
            [[cos, -sin * height / width, 0.0], [sin * width / height, cos, 0.0]],
            dtype=torch.float64,
        )
        shape = [1, 1, height, width]
        grid = functional.affine_grid(matrix[None], shape, align_corners=False)
        values = x if x.is_floating_point() else x.float()
        grid = grid.to(values).expand(len(x), -1, -1, -1)
        turned = functional.grid_sample(values, grid, align_corners=False)
        return turned if x.is_floating_point() else turned.round().clamp(0, 255).to(x.dtype)


def in_views(
    arrays: Arrays, views: Sequence[View], *, samples: int | None = None, seed: int = 0
) -> list[TaskArrays]:
    """One task for each view of a data set, with its own random part of the training data.

    Each has all test data.

    Args:
        arrays: The data.
        views: The view of each task.
        samples: Training samples of a task; by default an equal share.
        seed: Seed of the division of the training data.
    """
    total = len(arrays.x_train)
    each = total // len(views) if samples is None else samples
    if each < 1 or each * len(views) > total:
        raise ConfigError(
            f"Invalid {samples=}. Must be in 1..{total // len(views)} for {len(views)} tasks of "
            f"the {total} samples of {arrays.name}."
        )
    order = torch.randperm(total, generator=make_generator(seed, "views"))
    pieces = order[: each * len(views)].split(each)
    return [
        TaskArrays(
            name=f"{arrays.name}, task {task}",
            x_train=arrays.x_train[rows.to(arrays.x_train.device)],
            y_train=arrays.y_train[rows.to(arrays.y_train.device)],
            x_test=arrays.x_test,
            y_test=arrays.y_test,
            view=view,
        )
        for task, (rows, view) in enumerate(zip(pieces, views, strict=True))
    ]

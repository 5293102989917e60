"""Strong augmentation of whole batches, on whatever device the batch is.

Images are ``(n, channels, height, width)``, uint8 in 0..255 or float in 0..1. Each augmentation
has two halves: ``draw`` is random, the function that it feeds is not. Shapes never change, nothing
waits for the device and no decision is made on the host, so that all of it can be part of a
captured step. What comes out has the type of what went in; only the last of a :class:`Compose`
rounds to bytes.

Colours are those of three channels, red, green and blue. Images with another number of channels
have none: there saturation, hue and grey change nothing, and brightness and contrast all channels.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from ocar.augment.images import scale_to_unit
from ocar.config import require, require_one_of
from ocar.errors import InputError

GREY = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in the brightness of a pixel (ITU-R 601)."""


class Augmentation(ABC):
    """What the augmentations share."""

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Augmented images, each with its own draw.

        Args:
            x: ``(n, channels, h, w)``, uint8 in 0..255 or float in 0..1.
            generator: Source of the draws, on the device of ``x``.

        Returns:
            Same shape and type as ``x``.
        """
        if x.dim() != 4:
            raise InputError(
                f"Cannot augment images of shape {tuple(x.shape)}. "
                "Must be (n, channels, height, width)."
            )
        out = self.augment(scale_to_unit(x), generator)
        return (out * 255).round().clamp(0, 255).to(torch.uint8) if x.dtype == torch.uint8 else out

    @abstractmethod
    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """As a call, for float images of any range, such as normalised ones."""


@dataclass(frozen=True)
class Compose(Augmentation):
    """One augmentation after another."""

    parts: tuple[Augmentation, ...]
    """The augmentations, first to last."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts))

    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Float images to augmented ones."""
        for part in self.parts:
            x = part.augment(x, generator)
        return x


@dataclass(frozen=True)
class ResizedCrop(Augmentation):
    """A window of random size and shape, resized to the size of the image by bilinear sampling."""

    scale: tuple[float, float] = (0.2, 1.0)
    """Smallest and largest area of the window, as part of the image's; drawn uniformly."""

    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Smallest and largest width divided by height; drawn uniformly in its logarithm."""

    whole_side: bool = True
    """Whether a window may be as wide or as high as the image."""

    half_pixels: bool = False
    """Whether windows begin at multiples of half a pixel, and not of a whole one."""

    align_corners: bool = False
    """Whether the centres of the window's outermost pixels, and not its edges, become those of
    the image; as in ``torch.nn.functional.grid_sample``."""

    padding: Literal["zeros", "border", "reflection"] = "reflection"
    """What lies beyond the image, where sampling near its edge reaches there."""

    tries: int = 10
    """Draws of a window that fits; then the largest window in the middle of an allowed shape."""

    def __post_init__(self) -> None:
        low, high = self.scale
        require("scale", self.scale, 0 < low <= high <= 1, "increasing, in (0, 1]")
        low, high = self.ratio
        require("ratio", self.ratio, 0 < low <= high, "increasing and larger than 0")
        require("tries", self.tries, self.tries >= 1, "at least 1")
        require_one_of("padding", self.padding, ("zeros", "border", "reflection"))

    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Float images to augmented ones."""
        windows = self.draw(x.shape[0], x.shape[2], x.shape[3], generator=generator)
        return resized_crop(x, windows, align_corners=self.align_corners, padding=self.padding)

    def draw(self, n: int, height: int, width: int, *, generator: torch.Generator) -> Tensor:
        """Left edge, upper edge, width and height of each window, in pixels, ``(n, 4)``."""
        uniform = torch.rand(2, n, self.tries, device=generator.device, generator=generator)
        area = torch.lerp(*_ends(self.scale, uniform), uniform[0]) * (height * width)
        shape = torch.lerp(*_ends(tuple(map(math.log, self.ratio)), uniform), uniform[1]).exp()
        wide, high = (area * shape).sqrt().round(), (area / shape).sqrt().round()
        room = 0 if self.whole_side else 1
        fits = (wide >= 1) & (wide <= width - room) & (high >= 1) & (high <= height - room)
        first = fits & (fits.cumsum(1) == 1)
        none = ~fits.any(1)
        default_wide, default_high = _largest_window(height, width, self.ratio)
        wide = (wide * first).sum(1) + none * default_wide
        high = (high * first).sum(1) + none * default_high
        parts = 2 if self.half_pixels else 1
        position = torch.rand(2, n, device=generator.device, generator=generator)
        left = (position[0] * ((width - wide) * parts + 1)).floor() / parts
        top = (position[1] * ((height - high) * parts + 1)).floor() / parts
        left = torch.where(none, ((width - wide) / 2).floor(), left)
        top = torch.where(none, ((height - high) / 2).floor(), top)
        return torch.stack([left, top, wide, high], dim=1)


def _ends(ends: Sequence[float], like: Tensor) -> tuple[Tensor, Tensor]:
    """Two numbers as tensors on a device, without a copy from the host."""
    return like.new_full((), ends[0]), like.new_full((), ends[1])


def _largest_window(height: int, width: int, ratio: tuple[float, float]) -> tuple[int, int]:
    """Width and height of the largest window with an allowed ratio."""
    if width / height < ratio[0]:
        return width, min(height, round(width / ratio[0]))
    if width / height > ratio[1]:
        return min(width, round(height * ratio[1])), height
    return width, height


def resized_crop(
    x: Tensor,
    windows: Tensor,
    *,
    align_corners: bool = False,
    padding: str = "reflection",
) -> Tensor:
    """One window of each image, resized to the image's size by bilinear sampling.

    Args:
        x: Float images ``(n, c, h, w)``.
        windows: Left edge, upper edge, width and height in pixels, ``(n, 4)``.
        align_corners: See :class:`ResizedCrop`.
        padding: See :class:`ResizedCrop`.

    Returns:
        ``(n, c, h, w)``.
    """
    n, _, height, width = x.shape
    left, top, wide, high = windows.to(x.dtype).unbind(1)
    less = 1 if align_corners else 0  # extents are measured between centres, or between edges
    theta = x.new_zeros(n, 2, 3)
    for row, start, extent, side in ((0, left, wide, width), (1, top, high, height)):
        full = max(side - less, 1)
        theta[:, row, row] = (extent - less) / full
        theta[:, row, 2] = (2 * start + extent - less) / full - 1
    grid = functional.affine_grid(theta, list(x.shape), align_corners=align_corners)
    return functional.grid_sample(
        x, grid, mode="bilinear", padding_mode=padding, align_corners=align_corners
    )


@dataclass(frozen=True)
class HorizontalFlip(Augmentation):
    """Mirrors some of the images, left to right."""

    probability: float = 0.5
    """Of an image to be mirrored."""

    def __post_init__(self) -> None:
        require("probability", self.probability, 0 <= self.probability <= 1, "in [0, 1]")

    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Float images to augmented ones."""
        return horizontal_flip(x, self.draw(x.shape[0], generator=generator))

    def draw(self, n: int, *, generator: torch.Generator) -> Tensor:
        """Which images to mirror, ``(n,)`` of bool."""
        return _chosen(n, self.probability, generator)


def horizontal_flip(x: Tensor, mirrored: Tensor) -> Tensor:
    """Images ``(n, c, h, w)``, those with ``mirrored``, ``(n,)`` of bool, left to right."""
    return torch.where(_column(mirrored), x.flip(3), x)


@dataclass(frozen=True)
class Grey(Augmentation):
    """Takes the colour from some of the images."""

    probability: float = 0.2
    """Of an image to become grey."""

    def __post_init__(self) -> None:
        require("probability", self.probability, 0 <= self.probability <= 1, "in [0, 1]")

    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Float images to augmented ones."""
        return greyed(x, self.draw(x.shape[0], generator=generator))

    def draw(self, n: int, *, generator: torch.Generator) -> Tensor:
        """Which images become grey, ``(n,)`` of bool."""
        return _chosen(n, self.probability, generator)


def greyed(x: Tensor, chosen: Tensor) -> Tensor:
    """Images ``(n, c, h, w)``, those with ``chosen``, ``(n,)`` of bool, without colour."""
    return torch.where(_column(chosen), _grey(x), x) if x.shape[1] == 3 else x


@dataclass(frozen=True)
class ColorJitter(Augmentation):
    """Random brightness, contrast, saturation and hue, in one random order for the batch."""

    brightness: float = 0.4
    """Largest change of the factor b from 1: x becomes b·x."""

    contrast: float = 0.4
    """Largest change of the factor c from 1: x becomes c·x + (1 − c)·m, m the mean grey of the
    image."""

    saturation: float = 0.4
    """Largest change of the factor s from 1: x becomes s·x + (1 − s)·grey(x)."""

    hue: float = 0.1
    """Largest angle by which hues turn, as part of a full turn."""

    probability: float = 0.8
    """Of an image to be changed at all."""

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            require(name, getattr(self, name), 0 <= getattr(self, name) <= 1, "in [0, 1]")
        require("hue", self.hue, 0 <= self.hue <= 0.5, "in [0, 0.5]")
        require("probability", self.probability, 0 <= self.probability <= 1, "in [0, 1]")

    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Float images to augmented ones; those that are changed are cut to 0..1."""
        return color_jitter(x, *self.draw(x.shape[0], generator=generator))

    def draw(self, n: int, *, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """What :func:`color_jitter` needs: factors, which images to change, and the order."""
        factors = torch.rand(4, n, device=generator.device, generator=generator) * 2 - 1
        sizes = (self.brightness, self.contrast, self.saturation, self.hue)
        for row, size in enumerate(sizes):
            factors[row] *= size
        factors[:3] += 1
        chosen = _chosen(n, self.probability, generator)
        order = torch.rand(4, device=generator.device, generator=generator).argsort()
        return factors, chosen, order


def color_jitter(x: Tensor, factors: Tensor, chosen: Tensor, order: Tensor) -> Tensor:
    """Change brightness, contrast, saturation and hue.

    The results of the first three are cut to 0..1, where colours are; turning the hue stays there.

    Args:
        x: Float images ``(n, c, h, w)``.
        factors: The factors of brightness, contrast and saturation, and the angle of hue as part
            of a turn, ``(4, n)``.
        chosen: Which images to change, ``(n,)`` of bool.
        order: The order of the four, 0..3 once each, ``(4,)``.

    Returns:
        ``(n, c, h, w)``.
    """
    sizes = [_column(factor.to(x.dtype)) for factor in factors]
    out = x
    if order.is_cpu:  # here looking at a number waits for nothing
        for index in order.tolist():
            out = _OPERATIONS[index](out, sizes[index])
    else:
        for position in range(len(_OPERATIONS)):
            out = _selected(out, sizes, order[position])
    return torch.where(_column(chosen), out, x)


def _selected(x: Tensor, sizes: Sequence[Tensor], index: Tensor) -> Tensor:
    """What one of the operations makes of images; all are computed, so that none is waited for."""
    every = [change(x, size) for change, size in zip(_OPERATIONS, sizes, strict=True)]
    return torch.stack(every).index_select(0, index.view(1)).squeeze(0)


def _brighten(x: Tensor, factor: Tensor) -> Tensor:
    return (x * factor).clamp(0, 1)


def _contrast(x: Tensor, factor: Tensor) -> Tensor:
    mean = _grey(x).mean(dim=(1, 2, 3), keepdim=True)
    return (factor * x + (1 - factor) * mean).clamp(0, 1)


def _saturate(x: Tensor, factor: Tensor) -> Tensor:
    return (factor * x + (1 - factor) * _grey(x)).clamp(0, 1) if x.shape[1] == 3 else x


def _turn_hue(x: Tensor, turn: Tensor) -> Tensor:
    """Turn the hue of each pixel; its largest and smallest colour values stay as they are.

    With h the hue in sixths of a turn, v the largest value and d its distance to the smallest, the
    value of a channel is v − d·clamp(min(k, 4 − k), 0, 1), k = (o + h) mod 6, where o is 5, 3 and
    1 for red, green and blue.
    """
    if x.shape[1] != 3:
        return x
    red, green, blue = x.unbind(1)
    largest = x.amax(1)
    spread = largest - x.amin(1)
    safe = torch.where(spread == 0, 1.0, spread)
    hue = torch.where(
        largest == red,
        (green - blue) / safe,
        torch.where(largest == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    k = (_per_channel((5.0, 3.0, 1.0), x) + (hue[:, None] + 6 * turn)) % 6
    return largest[:, None] - spread[:, None] * torch.minimum(k, 4 - k).clamp(0, 1)


_OPERATIONS = (_brighten, _contrast, _saturate, _turn_hue)


def _grey(x: Tensor) -> Tensor:
    """Brightness of each pixel, ``(n, c, h, w)`` to ``(n, 1, h, w)``."""
    if x.shape[1] != 3:
        return x.mean(dim=1, keepdim=True)
    return (x * _per_channel(GREY, x)).sum(dim=1, keepdim=True)


def _per_channel(values: tuple[float, ...], like: Tensor) -> Tensor:
    return _kept(values, like.device, like.dtype)


@functools.cache  # for good: a captured graph may use it
def _kept(values: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(values, device=device, dtype=dtype).view(-1, 1, 1)


def _chosen(n: int, probability: float, generator: torch.Generator) -> Tensor:
    return torch.rand(n, device=generator.device, generator=generator) < probability


def _column(values: Tensor) -> Tensor:
    """``(n,)`` to ``(n, 1, 1, 1)``."""
    return values.view(-1, 1, 1, 1)


AUGMENTATIONS: tuple[type[Augmentation], ...] = (
    Compose,
    ResizedCrop,
    HorizontalFlip,
    ColorJitter,
    Grey,
)
"""All of them, for reading them from a file."""

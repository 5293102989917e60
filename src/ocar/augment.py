"""Normalisation and augmentation of image batches, on any device.

Images are ``(n, channels, height, width)``, uint8 in 0..255 or float in 0..1. An augmentation has
two halves: ``draw`` is random, the function that it feeds is not. Shapes never change and nothing
waits for the device, so all of it can be recorded in a CUDA graph. torchvision offers neither
batched draws from a generator, nor wheels that import beside a CPU build of torch.

Colours need three channels: red, green and blue. With another number of channels, saturation, hue
and grey change nothing, and brightness and contrast change all channels.
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

from ocar.accel.transfer import apply_in_order
from ocar.config import require, require_one_of, require_range
from ocar.errors import ConfigError, InputError

GREY = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in the brightness of a pixel (ITU-R 601)."""


@functools.cache  # never freed: a CUDA graph may use it
def _per_channel(values: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """``values`` as a ``(channels, 1, 1)`` tensor, made once for each device and type."""
    # The tensor outlives the call, so it must not be an inference tensor.
    with torch.inference_mode(False):
        return torch.tensor(values, device=device, dtype=dtype).view(-1, 1, 1)


def scale_to_unit(x: Tensor) -> Tensor:
    """uint8 images divided by 255, as float32; float images unchanged."""
    if x.dtype == torch.uint8:
        return x.to(torch.float32) / 255
    if not x.is_floating_point():
        raise InputError(f"Cannot normalise images of type {x.dtype}. Must be uint8 or float.")
    return x


def _check_images(x: Tensor, verb: str) -> None:
    if x.dim() != 4:
        raise InputError(
            f"Cannot {verb} images of shape {tuple(x.shape)}. Must be (n, channels, height, width)."
        )


@dataclass(frozen=True)
class Normalize:
    """``(x − mean) / std`` for each channel; uint8 images are first divided by 255."""

    #: Mean of each channel, of values in 0..1; one number fits any number of channels.
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)  #: Standard deviation of each channel.

    def __post_init__(self) -> None:
        if not self.mean or len(self.mean) != len(self.std):
            raise ConfigError(
                f"Invalid mean={self.mean}, std={self.std}. Must have one number a channel each."
            )
        if min(self.std) <= 0:
            raise ConfigError(f"Invalid std={self.std}. Must be greater than 0.")

    def __call__(self, x: Tensor) -> Tensor:
        """Normalised images: float32 for uint8, else the type of ``x``."""
        x = scale_to_unit(x)
        if x.dim() < 3 or len(self.mean) not in (1, x.shape[-3]):
            raise InputError(
                f"Cannot normalise images of shape {tuple(x.shape)} with {len(self.mean)} means. "
                "Must be (n, channels, height, width) with one mean a channel."
            )
        if not any(self.mean) and set(self.std) == {1.0}:
            return x
        mean, std = (_per_channel(v, x.device, x.dtype) for v in (self.mean, self.std))
        return (x - mean) / std


@dataclass(frozen=True)
class CropFlip:
    """Random crop after zero padding, then a horizontal flip of half of the images.

    For raw pixels, before :class:`Normalize`, where 0 is black.
    """

    padding: int = 4  #: Black pixels added on each side before the crop.
    flip: bool = True  #: Whether to mirror each image, left to right, with probability one half.

    def __post_init__(self) -> None:
        require_range(self, "at least 0", "padding")

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Augmented images of the same shape and type; the generator is on the device of ``x``."""
        _check_images(x, "crop")
        rows, columns, mirrored = self.draw(x.shape[0], device=x.device, generator=generator)
        return crop_flip(x, rows, columns, mirrored, padding=self.padding)

    def draw(
        self, n: int, *, device: torch.device, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Row and column offsets in 0..2·padding and whether to mirror, ``(n,)`` each."""
        offsets = torch.randint(0, 2 * self.padding + 1, (2, n), device=device, generator=generator)
        if self.flip:
            mirrored = torch.rand(n, device=device, generator=generator) < 0.5
        else:
            mirrored = torch.zeros(n, device=device, dtype=torch.bool)
        return offsets[0], offsets[1], mirrored


def crop_flip(
    x: Tensor, rows: Tensor, columns: Tensor, mirrored: Tensor, *, padding: int
) -> Tensor:
    """Pad with zeros, cut one window out of each image, mirror some of the windows.

    Args:
        x: Images ``(n, c, h, w)``; the result is of that shape, contiguous.
        rows: First row of each window in the padded image, ``(n,)``.
        columns: First column of each window, ``(n,)``.
        mirrored: Which windows to flip left to right, ``(n,)`` bool.
        padding: Zeros on each side.
    """
    n, channels, height, width = x.shape
    padded = functional.pad(x, (padding,) * 4)
    across, down = (torch.arange(side, device=x.device) for side in (width, height))
    across = torch.where(mirrored[:, None], width - 1 - across, across)  # (n, w)
    row = (rows[:, None] + down)[:, :, None]  # (n, h, 1)
    column = (columns[:, None] + across)[:, None, :]  # (n, 1, w)
    pixel = (row * padded.shape[-1] + column).view(n, 1, height * width)
    cut = padded.flatten(2).gather(2, pixel.expand(n, channels, height * width))
    return cut.view(n, channels, height, width)


class Augmentation(ABC):
    """An augmentation of float images; as a callable it also takes and returns uint8."""

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Augmented images of the same shape and type; the generator is on the device of ``x``."""
        _check_images(x, "augment")
        out = self.augment(scale_to_unit(x), generator)
        return (out * 255).round().clamp(0, 255).to(torch.uint8) if x.dtype == torch.uint8 else out

    @abstractmethod
    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Augment float images of any range, such as normalised ones."""

    @property
    def flip(self) -> bool:
        """Whether it mirrors images, left to right."""
        return False


@dataclass(frozen=True)
class Compose(Augmentation):
    """One augmentation after another; uint8 is rounded once, at the end."""

    parts: tuple[Augmentation, ...]  #: The augmentations, first to last.

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts))

    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Augment float images."""
        for part in self.parts:
            x = part.augment(x, generator)
        return x

    @property
    def flip(self) -> bool:
        """Whether one of them mirrors images."""
        return any(part.flip for part in self.parts)


@dataclass(frozen=True)
class ResizedCrop(Augmentation):
    """A window of random size and shape, resized to the size of the image by bilinear sampling."""

    #: Smallest and largest area of the window, as a fraction of the image; drawn uniformly.
    scale: tuple[float, float] = (0.2, 1.0)
    #: Smallest and largest width divided by height; drawn log-uniformly.
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    whole_side: bool = True  #: Whether a window may be as wide or as high as the image.
    half_pixels: bool = False  #: Whether windows start at multiples of half a pixel.
    align_corners: bool = False  #: See ``torch.nn.functional.grid_sample``.
    #: The values beyond the edge of the image, for sampling near it.
    padding: Literal["zeros", "border", "reflection"] = "reflection"
    #: Draws of a window that fits, before the largest centred window of an allowed shape is taken.
    tries: int = 10

    def __post_init__(self) -> None:
        low, high = self.scale
        require("scale", self.scale, 0 < low <= high <= 1, "increasing, in (0, 1]")
        low, high = self.ratio
        require("ratio", self.ratio, 0 < low <= high, "increasing and larger than 0")
        require_range(self, "at least 1", "tries")
        require_one_of("padding", self.padding, ("zeros", "border", "reflection"))

    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Augment float images."""
        windows = self.draw(x.shape[0], x.shape[2], x.shape[3], generator=generator)
        return resized_crop(x, windows, align_corners=self.align_corners, padding=self.padding)

    def draw(self, n: int, height: int, width: int, *, generator: torch.Generator) -> Tensor:
        """Left edge, upper edge, width and height of each window, in pixels, ``(n, 4)``."""
        uniform = torch.rand(2, n, self.tries, device=generator.device, generator=generator)
        area = _between(self.scale, uniform[0]) * (height * width)
        shape = _between([math.log(end) for end in self.ratio], uniform[1]).exp()
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


def _between(ends: Sequence[float], weight: Tensor) -> Tensor:
    """Interpolate between two numbers, without a copy from the host."""
    return torch.lerp(weight.new_full((), ends[0]), weight.new_full((), ends[1]), weight)


def _largest_window(height: int, width: int, ratio: tuple[float, float]) -> tuple[int, int]:
    """Width and height of the largest window with an allowed ratio."""
    if width / height < ratio[0]:
        return width, min(height, round(width / ratio[0]))
    if width / height > ratio[1]:
        return min(width, round(height * ratio[1])), height
    return width, height


def resized_crop(
    x: Tensor, windows: Tensor, *, align_corners: bool = False, padding: str = "reflection"
) -> Tensor:
    """One window of each image, resized to the image's size, see :class:`ResizedCrop`.

    Images are float, ``(n, c, h, w)``; ``windows`` has left edge, upper edge, width and height in
    pixels, ``(n, 4)``.
    """
    n, _, height, width = x.shape
    left, top, wide, high = windows.to(x.dtype).unbind(1)
    less = 1 if align_corners else 0  # extents are between pixel centres, or between edges
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
class _Sometimes(Augmentation):
    """Changes some of the images."""

    probability: float = 0.5  #: Of an image to be changed.

    def __post_init__(self) -> None:
        require_range(self, "in [0, 1]", "probability")

    def draw(self, n: int, *, generator: torch.Generator) -> Tensor:
        """Which images to change, ``(n,)`` bool."""
        return torch.rand(n, device=generator.device, generator=generator) < self.probability


@dataclass(frozen=True)
class HorizontalFlip(_Sometimes):
    """Mirrors some of the images, left to right."""

    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Augment float images."""
        return horizontal_flip(x, self.draw(x.shape[0], generator=generator))

    @property
    def flip(self) -> bool:
        """Whether it mirrors any."""
        return self.probability > 0


def horizontal_flip(x: Tensor, mirrored: Tensor) -> Tensor:
    """Mirror the images of ``(n, c, h, w)`` where ``mirrored``, ``(n,)`` bool, is true."""
    return torch.where(_column(mirrored), x.flip(3), x)


@dataclass(frozen=True)
class Grey(_Sometimes):
    """Removes the colour of some of the images."""

    probability: float = 0.2

    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Augment float images."""
        return greyed(x, self.draw(x.shape[0], generator=generator))


def greyed(x: Tensor, chosen: Tensor) -> Tensor:
    """Remove the colour of the images of ``(n, c, h, w)`` where ``chosen``, ``(n,)`` bool."""
    return torch.where(_column(chosen), _grey(x), x) if x.shape[1] == 3 else x


@dataclass(frozen=True)
class ColorJitter(Augmentation):
    """Random brightness, contrast, saturation and hue, in one random order for the batch."""

    brightness: float = 0.4  #: Largest change of the factor b from 1: x becomes b·x.
    #: Largest change of the factor c from 1: x becomes c·x + (1 − c)·(mean grey of the image).
    contrast: float = 0.4
    saturation: float = 0.4  #: Largest change of the factor s: x becomes s·x + (1 − s)·grey(x).
    hue: float = 0.1  #: Largest angle by which hues turn, as a fraction of a full turn.
    probability: float = 0.8  #: Of an image to be changed at all.

    def __post_init__(self) -> None:
        require_range(self, "in [0, 1]", "brightness", "contrast", "saturation", "probability")
        require("hue", self.hue, 0 <= self.hue <= 0.5, "in [0, 0.5]")

    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Augment float images; changed ones are clamped to 0..1."""
        return color_jitter(x, *self.draw(x.shape[0], generator=generator))

    def draw(self, n: int, *, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """The factors, the chosen images and the order, see :func:`color_jitter`."""
        rand = functools.partial(torch.rand, device=generator.device, generator=generator)
        factors = rand(4, n) * 2 - 1
        for row, size in enumerate((self.brightness, self.contrast, self.saturation, self.hue)):
            factors[row] *= size
        factors[:3] += 1
        chosen = rand(n) < self.probability
        return factors, chosen, rand(4).argsort()


def color_jitter(x: Tensor, factors: Tensor, chosen: Tensor, order: Tensor) -> Tensor:
    """Change brightness, contrast, saturation and hue; the first three clamp to 0..1.

    Args:
        x: Float images ``(n, c, h, w)``.
        factors: The factors of brightness, contrast and saturation, and the angle of hue as a
            fraction of a turn, ``(4, n)``.
        chosen: Which images to change, ``(n,)`` bool.
        order: The order of the four, 0..3 once each, ``(4,)``.
    """
    operations = [
        functools.partial(change, size=_column(factor.to(x.dtype)))
        for change, factor in zip(_CHANGES, factors, strict=True)
    ]
    return torch.where(_column(chosen), apply_in_order(operations, x, order), x)


def _brighten(x: Tensor, size: Tensor) -> Tensor:
    return (x * size).clamp(0, 1)


def _contrast(x: Tensor, size: Tensor) -> Tensor:
    mean = _grey(x).mean(dim=(1, 2, 3), keepdim=True)
    return (size * x + (1 - size) * mean).clamp(0, 1)


def _saturate(x: Tensor, size: Tensor) -> Tensor:
    return (size * x + (1 - size) * _grey(x)).clamp(0, 1) if x.shape[1] == 3 else x


def _turn_hue(x: Tensor, size: Tensor) -> Tensor:
    """Turn the hue of each pixel; its largest and smallest colour values stay.

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
    k = (_per_channel((5.0, 3.0, 1.0), x.device, x.dtype) + (hue[:, None] + 6 * size)) % 6
    return largest[:, None] - spread[:, None] * torch.minimum(k, 4 - k).clamp(0, 1)


_CHANGES = (_brighten, _contrast, _saturate, _turn_hue)


def _grey(x: Tensor) -> Tensor:
    """Brightness of each pixel, ``(n, c, h, w)`` to ``(n, 1, h, w)``."""
    if x.shape[1] != 3:
        return x.mean(dim=1, keepdim=True)
    return (x * _per_channel(GREY, x.device, x.dtype)).sum(dim=1, keepdim=True)


def _column(values: Tensor) -> Tensor:
    """``(n,)`` to ``(n, 1, 1, 1)``."""
    return values.view(-1, 1, 1, 1)


AUGMENTATIONS = (Compose, ResizedCrop, HorizontalFlip, ColorJitter, Grey)
"""All augmentations, for reading them from a file."""

"""Image operations on whole batches, on whatever device the batch is.

Images are ``(n, channels, height, width)``, uint8 in 0..255 or float. Shapes never change and
nothing waits for the device, so both operations can be part of a captured step.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch.nn import functional

from ocar.errors import ConfigError, InputError


@functools.cache  # for good: a captured graph may use it
def _per_channel(
    values: tuple[float, ...], device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """``values`` as a ``(channels, 1, 1)`` tensor, made once for each device and type."""
    # Kept across calls, so it must not become an inference tensor because of the first caller.
    with torch.inference_mode(False):
        return torch.tensor(values, device=device, dtype=dtype).view(-1, 1, 1)


def scale_to_unit(x: torch.Tensor) -> torch.Tensor:
    """uint8 images divided by 255, as float32; float images as they are."""
    if x.dtype == torch.uint8:
        return x.to(torch.float32) / 255
    if not x.is_floating_point():
        raise InputError(f"Cannot normalise images of type {x.dtype}. Must be uint8 or float.")
    return x


@dataclass(frozen=True)
class Normalize:
    """``(x − mean) / std`` for each channel; uint8 images are first divided by 255."""

    mean: tuple[float, ...] = (0.0,)
    """Mean of each channel, of values in 0..1; one number serves any number of channels."""

    std: tuple[float, ...] = (1.0,)
    """Standard deviation of each channel, as long as ``mean``."""

    def __post_init__(self) -> None:
        if not self.mean or len(self.mean) != len(self.std):
            raise ConfigError(
                f"Invalid mean={self.mean}, std={self.std}. Must have one number a channel each."
            )
        if min(self.std) <= 0:
            raise ConfigError(f"Invalid std={self.std}. Must be greater than 0.")

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Normalised images.

        Args:
            x: ``(n, channels, h, w)``, uint8 in 0..255, or float in 0..1.

        Returns:
            Same shape; float32 for uint8, else the type of ``x``.
        """
        x = scale_to_unit(x)
        if x.dim() < 3 or len(self.mean) not in (1, x.shape[-3]):
            raise InputError(
                f"Cannot normalise images of shape {tuple(x.shape)} with {len(self.mean)} means. "
                "Must be (n, channels, height, width) with one mean a channel."
            )
        if not any(self.mean) and set(self.std) == {1.0}:
            return x
        return (x - _per_channel(self.mean, x.device, x.dtype)) / _per_channel(
            self.std, x.device, x.dtype
        )


@dataclass(frozen=True)
class CropFlip:
    """Random crop after zero padding, then a horizontal flip of half of the images.

    To be used on raw pixels, before :class:`Normalize`, where 0 is black.
    """

    padding: int = 4
    """Black pixels put on each side before a window of the first size is cut out."""

    flip: bool = True
    """Whether to mirror each image, left to right, with probability one half."""

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise ConfigError(f"Invalid padding={self.padding}. Must be 0 or more.")

    def __call__(self, x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Augmented images, each with its own draw.

        Args:
            x: ``(n, channels, h, w)``, any type.
            generator: Source of the draws, on the device of ``x``.

        Returns:
            Same shape and type as ``x``.
        """
        if x.dim() != 4:
            raise InputError(
                f"Cannot crop images of shape {tuple(x.shape)}. "
                "Must be (n, channels, height, width)."
            )
        rows, columns, mirrored = self.draw(x.shape[0], device=x.device, generator=generator)
        return crop_flip(x, rows, columns, mirrored, padding=self.padding)

    def draw(
        self, n: int, *, device: torch.device, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Row and column offsets in 0..2·padding and whether to mirror, ``(n,)`` each."""
        offsets = torch.randint(0, 2 * self.padding + 1, (2, n), device=device, generator=generator)
        if self.flip:
            mirrored = torch.rand(n, device=device, generator=generator) < 0.5
        else:
            mirrored = torch.zeros(n, device=device, dtype=torch.bool)
        return offsets[0], offsets[1], mirrored


def crop_flip(
    x: torch.Tensor,
    rows: torch.Tensor,
    columns: torch.Tensor,
    mirrored: torch.Tensor,
    *,
    padding: int,
) -> torch.Tensor:
    """Pad with zeros, cut one window out of each image, mirror some of the windows.

    Args:
        x: Images ``(n, c, h, w)``.
        rows: First row of each window in the padded image, ``(n,)``.
        columns: First column of each window, ``(n,)``.
        mirrored: Which windows to flip left to right, ``(n,)`` bool.
        padding: Zeros on each side.

    Returns:
        ``(n, c, h, w)``, contiguous.
    """
    n, channels, height, width = x.shape
    padded = functional.pad(x, (padding,) * 4)
    across = torch.arange(width, device=x.device)
    across = torch.where(mirrored[:, None], width - 1 - across, across)  # (n, w)
    down = torch.arange(height, device=x.device)
    row = (rows[:, None] + down)[:, :, None]  # (n, h, 1)
    column = (columns[:, None] + across)[:, None, :]  # (n, 1, w)
    pixel = (row * padded.shape[-1] + column).view(n, 1, height * width)
    cut = padded.flatten(2).gather(2, pixel.expand(n, channels, height * width))
    return cut.view(n, channels, height, width)

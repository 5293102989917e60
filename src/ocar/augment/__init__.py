"""Augmentations of image batches, drawn from a generator of their own."""

from ocar.augment.augment import (
    AUGMENTATIONS,
    ColorJitter,
    Compose,
    Grey,
    HorizontalFlip,
    ResizedCrop,
)
from ocar.augment.images import CropFlip, Normalize

__all__ = [
    "AUGMENTATIONS",
    "ColorJitter",
    "Compose",
    "CropFlip",
    "Grey",
    "HorizontalFlip",
    "Normalize",
    "ResizedCrop",
]

"""The patches that a convolution sees by a kernel of our own, against a view of the padded images.

On a GPU, or in Triton's interpreter, see ``interpreter.py``.
"""

from __future__ import annotations

import pytest
import torch
from interpreter import NEEDS_TRITON, device_of_kernels
from torch import Tensor, nn

from ocar.curvature import factors, patches

pytestmark = NEEDS_TRITON


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    return device_of_kernels(monkeypatch, patches)


# Channels, side of the kernel, stride, padding, and the images' number, height and width.
SHAPES = {
    "stem": (3, 3, 1, 1, 2, 32, 32),
    "with a stride": (20, 3, 2, 1, 3, 16, 16),
    "one pixel, with a stride": (40, 1, 2, 0, 3, 8, 8),
    "one pixel": (5, 1, 1, 0, 2, 7, 5),
    "odd": (7, 3, 2, 1, 2, 9, 11),
    "not padded": (8, 3, 1, 0, 1, 5, 4),
    "padded more than it needs": (4, 2, 1, 2, 2, 3, 3),
    "many channels": (80, 3, 1, 1, 20, 4, 4),
}


def images(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("by_pixel", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_to_the_bit(
    shape: str, by_pixel: bool, bias: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    channels, side, stride, padding, *size = SHAPES[shape]
    conv = nn.Conv2d(channels, 4, side, stride, padding)
    kind = torch.channels_last if by_pixel else torch.contiguous_format
    x = images(size[0], channels, *size[1:]).to(device).contiguous(memory_format=kind)
    found_patches = patches.find_patches(x, conv, by_pixel=by_pixel)
    assert found_patches is not None
    found = factors.conv_inputs(x, conv, bias=bias, by_pixel=by_pixel)
    monkeypatch.setattr(factors, "find_patches", lambda *_, **__: None)
    wanted = factors.conv_inputs(x, conv, bias=bias, by_pixel=by_pixel)
    assert torch.equal(found, wanted)
    rows = found.permute(1, 2, 0, 3)
    assert bias or rows.flatten(2).data_ptr() == found.data_ptr()  # a view: the product copies none
    filled = found_patches.rows(x, conv, multiple=32)
    assert filled.shape[1] % 32 == 0
    plain = factors.conv_inputs(x, conv, bias=False, by_pixel=by_pixel).permute(1, 2, 0, 3)
    assert torch.equal(filled[:, : found_patches.count], plain.flatten(2)[0])
    assert not filled[:, found_patches.count :].any()


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, dilation=2),
        nn.Conv2d(4, 4, (1, 3)),
        nn.Conv2d(4, 4, 3, (1, 2)),
        nn.Conv2d(4, 4, 3, padding=(0, 1)),
        nn.Conv2d(4, 4, 5),
        nn.Conv2d(4, 4, 3, padding="same"),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
    ],
    ids=repr,
)
def test_other_layers_are_left_to_pytorch(conv: nn.Conv2d, device: torch.device) -> None:
    assert patches.find_patches(images(2, 4, 8, 8).to(device), conv, by_pixel=False) is None


def test_other_images_are_left_to_pytorch(device: torch.device) -> None:
    conv, x = nn.Conv2d(4, 4, 3), images(2, 4, 8, 8).to(device)
    assert patches.find_patches(x.double(), conv, by_pixel=False) is None
    assert patches.find_patches(x.transpose(0, 2), conv, by_pixel=False) is None
    assert patches.find_patches(x, conv, by_pixel=True) is None

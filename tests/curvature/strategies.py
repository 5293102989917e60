"""What Hypothesis draws the shapes from."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor, nn


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[nn.Conv1d | nn.Conv2d, Tensor]:
    """A convolution of any geometry, and a batch for it."""
    dims = draw(st.sampled_from([1, 2]))

    def per_dim(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(dims))

    groups = draw(st.integers(1, 3))
    padding = draw(st.sampled_from(["same", "valid", "numbers", "numbers"]))
    stride = (1,) * dims if padding == "same" else per_dim(1, 3)
    kernel, dilation = per_dim(1, 3), per_dim(1, 2)
    torch.manual_seed(draw(st.integers(0, 1000)))
    conv = (nn.Conv1d if dims == 1 else nn.Conv2d)(
        groups * draw(st.integers(1, 2)),
        groups * draw(st.integers(1, 2)),
        kernel,
        stride=stride,
        padding=per_dim(0, 2) if padding == "numbers" else padding,
        dilation=dilation,
        groups=groups,
        bias=draw(st.booleans()),
        padding_mode=draw(st.sampled_from(["zeros", "circular", "reflect", "replicate"])),
    )
    # No smaller than a dilated kernel (5), nor than what reflection needs.
    x = torch.randn(draw(st.integers(1, 3)), conv.in_channels, *per_dim(5, 6))
    return conv, x

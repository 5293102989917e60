"""How far the steps on a batch have moved a model's predictions.

The model answers once more, in train mode, without learning and without moving the running
statistics of BatchNorm. For a ResNet on a GPU there are special kernels: on a mini-batch of small
images a library's kernels take most of their time to start. Here the sums that BatchNorm needs come
with the convolution, a shortcut's convolution is part of the kernel of the one next to it, and
everything from the last convolution to the divergence is one kernel. Products are rounded as
cuDNN's are (TF32).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from ocar.accel.layout import is_channels_last
from ocar.accel.networks import (
    ResNet,
    all_pairs,
    find_resnet,
    is_single_precision,
    is_small_kernel,
    is_watched,
)
from ocar.accel.operation import has_triton, launch, operation, power_of_2, rounds_to_tf32
from ocar.structure import Inputs, call, one_tensor

MASKED = -1000.0
"""Logit of a unit that stands for no class: its probability underflows to exactly 0."""


Distance = Callable[[Tensor, Tensor], Tensor]
"""From outputs before and now, ``(n, outputs)``, to the divergence of each sample, ``(n,)``."""


def kl_divergence(before: Tensor, now: Tensor) -> Tensor:
    """KL(before ‖ now) in nats, ``(n,)``, of log-probabilities ``(n, outputs)``."""
    return (before.exp() * (before - now)).sum(-1)


def half_square(before: Tensor, now: Tensor) -> Tensor:
    """Half the squared distance: the divergence of Gaussians with variance 1."""
    return (now - before).square().sum(-1) / 2


@operation
@torch.no_grad()
def divergence(
    model: nn.Module,
    x: Inputs,
    active: Tensor | None,
    before: Tensor,
    distance: Distance = half_square,
) -> Tensor:
    """KL(before ‖ now) in nats of the last samples of a batch.

    Args:
        model: In train mode; nothing of it changes.
        x: Inputs of the whole batch, ``(n, ...)``; its samples may depend on each other.
        active: Which outputs stand for a class, ``(outputs,)`` of bool; None in regression.
        before: Their log-probabilities before, ``(m, outputs)``, or their outputs in regression.
        distance: The divergence in regression.

    Returns:
        Shape ``(m,)``.
    """
    with frozen_statistics(model):
        now = predictions(call(model, x)[-len(before) :], active)
    return distance(before, now) if active is None else kl_divergence(before, now)


def predictions(outputs: Tensor, active: Tensor | None) -> Tensor:
    """Log-probabilities over the active outputs, or the outputs themselves in regression."""
    outputs = outputs.float()
    if active is None:
        return outputs
    return functional.log_softmax(torch.where(active, outputs, MASKED), dim=-1)


@contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Inside it BatchNorm layers in train mode leave their running statistics alone."""
    tracking = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    for module in tracking:
        module.track_running_stats = False
    try:
        yield
    finally:
        for module in tracking:
            module.track_running_stats = True


# For a ResNet on a GPU

_MOST = 2**31  # numbers of a tensor that a kernel can count
_SUMS = 2**14  # partial sums of a convolution that a program keeps in registers
_UNITS = 1024  # of the output layer, for one program
_BLOCK = 32  # channels that a program of ``join`` makes
_PIECE = 1024  # numbers of a weight that a program writes channels last
_HEAD = 8192  # weights of the output layer that the last kernel takes at a time


class Tile(NamedTuple):
    """What one program of a convolution makes."""

    pixels: int  # of the output
    block: int  # channels of the output
    split: int  # partial sums that several warps share
    terms: int  # of each sum at a time
    stages: int  # loads in flight


def tile(count: int, outputs: int) -> Tile:
    """How to cut a convolution with ``count`` pixels at its output into a hundred programs."""
    above = max(16, power_of_2(outputs))
    if count > 8192:
        return Tile(pixels=128, block=min(above, 64), split=1, terms=64, stages=1)
    if count > 2048:
        return Tile(pixels=64, block=min(above, 64), split=1, terms=32, stages=3)
    if count > 512:
        return Tile(pixels=32, block=min(above, 32), split=1, terms=64, stages=3)
    return Tile(pixels=32, block=16, split=4, terms=64, stages=3)


@dataclass(frozen=True, eq=False)
class _Raw:
    """The output of a convolution before BatchNorm, ``(n, h, w, channels)``."""

    y: Tensor
    parts: Tensor  #: Partial sums and squares for BatchNorm, ``(tiles, 2, channels)``.
    share: int  #: Pixels of a tile.
    norm: Any

    @property
    def count(self) -> int:
        return self.y.numel() // self.y.shape[-1]

    @property
    def given(self) -> tuple[Any, ...]:
        """An argument for a kernel."""
        return self.y, self.parts, self.norm.weight, self.norm.bias, self.norm.eps

    @property
    def sizes(self) -> dict[str, int]:
        parts = power_of_2(len(self.parts))
        return {"CHANNELS": self.y.shape[-1], "PARTS": parts, "SHARE": self.share}


def _fits(model: nn.Module, x: Inputs, active: Tensor | None, *others: object) -> bool:
    """Whether the kernels compute what the network would with these images."""
    if active is None or not isinstance(x, Tensor) or x.dim() != 4 or not x.is_cuda:
        return False
    if x.dtype != torch.float32:
        return False
    if not rounds_to_tf32() or torch.is_autocast_enabled("cuda") or is_watched(model):
        return False
    network = find_resnet(model)
    if network is None or len(network.stem) != 3 or not has_triton(x):
        return False

    def knows(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> bool:
        strided = conv.stride in ((1, 1), (2, 2))
        single = is_single_precision(conv, norm)
        return is_small_kernel(conv) and strided and single and norm.training

    if not all_pairs(network, knows):
        return False
    n, channels, *size = x.shape
    convs = [cast("nn.Conv2d", network.stem[0]), *(block.conv1 for block in network.blocks)]
    if channels != convs[0].in_channels:
        return False
    for conv in convs:
        size = [(side - 1) // conv.stride[0] + 1 for side in size]
        count, outputs = n * size[0] * size[1], conv.out_channels
        parts = -(-count // tile(count, outputs).pixels)
        sums = power_of_2(parts) * power_of_2(outputs)
        if count < 2 or sums > _SUMS or 9 * count * max(channels, outputs) > _MOST:
            return False
    return True


@divergence.implementation("triton", when=_fits)
@torch.no_grad()
def _divergence_by_kernels(
    model: nn.Module,
    x: Inputs,
    active: Tensor | None,
    before: Tensor,
    distance: Distance = half_square,
) -> Tensor:
    network = find_resnet(model)
    assert network is not None
    assert active is not None
    return _ForwardPass(network).divergence(one_tensor(x), active, before)


class _ForwardPass:
    """One forward pass of a ResNet in train mode."""

    def __init__(self, network: ResNet) -> None:
        from ocar.accel.triton import divergence as kernels

        self._kernels = kernels
        self._network = network
        self._relaid: dict[nn.Module, Tensor] = {}  # weights, channels last

    def divergence(self, x: Tensor, active: Tensor, before: Tensor) -> Tensor:
        raw, short = self._last(x)
        window = self._window(*raw.y.shape[1:3])
        head = self._network.head
        units = head.out_features
        if window is None or units > _UNITS or head.bias is None:
            y = self._join(raw, short).permute(0, 3, 1, 2)
            outputs = head(self._network.pool(y[-len(before) :]).flatten(1))
            return kl_divergence(before, predictions(outputs, active))
        features = raw.y.new_empty(len(before), head.in_features)
        divergences = raw.y.new_empty(len(before))
        above = max(16, power_of_2(units))
        given, kind = _shortcut(raw, short)
        launch(
            self._kernels.answer,
            (len(before),),
            *(raw.given, given, features, head.weight, head.bias, active, before.contiguous()),
            *(divergences, raw.count, len(x) - len(before), units),
            *(*raw.y.shape[1:3], *window),
            **raw.sizes,
            SHORT=kind,
            PIXELS=power_of_2(window[0] * window[1]),
            BLOCK=power_of_2(raw.y.shape[-1]),
            UNITS=above,
            CHUNK=min(64, max(8, _HEAD // above)),
            num_warps=8,
        )
        return divergences

    def _window(self, height: int, width: int) -> tuple[int, int] | None:
        """The window of the pooling, if the last kernel knows it."""
        pool = self._network.pool
        if type(pool) is nn.AdaptiveAvgPool2d and pool.output_size in (1, (1, 1)):
            window = height, width
        elif type(pool) is nn.AvgPool2d and pool.padding == 0 and pool.divisor_override is None:
            side = pool.kernel_size
            if not isinstance(side, int) or side != pool.stride:
                return None
            if pool.ceil_mode and (height % side or width % side):
                return None
            window = side, side
        else:
            return None
        windows = (height // window[0]) * (width // window[1])
        return window if 0 < windows <= 4 and window[0] * window[1] <= 64 else None

    def _last(self, x: Tensor) -> tuple[_Raw, _Raw | Tensor | None]:
        """The output of the last convolution, and the shortcut next to it."""
        conv, norm, *_ = self._network.stem
        raw, _ = self._convolve(x.contiguous(), conv, norm)
        short: _Raw | Tensor | None = None
        for block in self._network.blocks:
            joined = self._join(raw, short)
            shortcut = block.shortcut if isinstance(block.shortcut, nn.Sequential) else None
            first, short = self._convolve(joined, block.conv1, block.bn1, shortcut)
            short = joined if short is None else short
            raw, _ = self._convolve(self._join(first, None), block.conv2, block.bn2)
        return raw, short

    def _convolve(
        self, x: Tensor, conv: Any, norm: nn.Module, shortcut: Any = None
    ) -> tuple[_Raw, _Raw | None]:
        """A convolution of images ``(n, h, w, channels)``, and that of a 1 × 1 shortcut.

        For the first convolution the images are channels first, and the same launch writes later
        weights channels last.
        """
        first = conv is self._network.stem[0]
        size = x.shape[2:] if first else x.shape[1:3]
        stride, outputs = conv.stride[0], conv.out_channels
        height, width = ((side - 1) // stride + 1 for side in size)
        y = x.new_empty(len(x), height, width, outputs)
        count = y.numel() // outputs
        own = tile(count, outputs)
        tiles = -(-count // own.pixels)
        raw, short = _Raw(y, x.new_empty(tiles, 2, outputs), own.pixels, norm), None
        programs = tiles * -(-outputs // own.block)
        weight = self._relaid.get(conv, conv.weight)
        kind, more = 0, 0
        extra: tuple[Tensor, ...] = (weight, raw.y, raw.parts)  # never touched
        if first:
            extra = self._relay(x)
            kind, more = 2, len(extra[0])
        elif shortcut is not None:
            short = _Raw(torch.empty_like(y), torch.empty_like(raw.parts), raw.share, shortcut[1])
            extra = shortcut[0].weight, short.y, short.parts
            kind, more = 1, programs
        launch(
            self._kernels.convolve,
            (programs + more,),
            *(x, weight, raw.y, raw.parts, extra, count, *size, conv.in_channels, outputs),
            *(conv.kernel_size[0], stride, not first, not first or is_channels_last(weight)),
            *(own.pixels, own.block, own.split, own.terms, kind, _PIECE),
            num_warps=4,
            num_stages=own.stages,
        )
        return raw, short

    def _relay(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """A table of the weights that are channels first, and where they go channels last."""
        convs = [conv for block in self._network.blocks for conv in (block.conv1, block.conv2)]
        convs = [conv for conv in convs if not is_channels_last(conv.weight)]
        weights = tuple(
            (c.weight.data_ptr(), c.weight.numel(), c.in_channels, c.kernel_size[0] ** 2)
            for c in convs
        )
        table, starts, total = _pieces(weights, like.device)
        relaid = like.new_empty(total)
        self._relaid = {c: relaid[start:] for c, start in zip(convs, starts, strict=True)}
        return table, relaid

    def _join(self, x: _Raw, short: _Raw | Tensor | None) -> Tensor:
        """``relu(norm(x) + shortcut)``."""
        y = torch.empty_like(x.y)
        channels = y.shape[-1]
        block = min(_BLOCK, power_of_2(channels))
        given, kind = _shortcut(x, short)
        launch(
            self._kernels.join,
            (len(x.parts), -(-channels // block)),
            *(x.given, given, y, x.count),
            **x.sizes,
            SHORT=kind,
            PIXELS=x.share,
            BLOCK=block,
        )
        return y


@functools.cache
def _pieces(
    weights: tuple[tuple[int, int, int, int], ...], device: torch.device
) -> tuple[Tensor, list[int], int]:
    """A table of weights in pieces, where each goes, and how many numbers there are.

    Weights are address, numbers, input channels and taps. A graph uses the table, so it stays.
    """
    rows, starts, total = [], [], 0
    for address, size, channels, taps in weights:
        rows += [(address, total, size, channels, taps, first) for first in range(0, size, _PIECE)]
        starts.append(total)
        total += -(-size // 4) * 4  # so that four numbers can be read together
    return torch.tensor(rows, dtype=torch.int64).view(-1, 6).to(device), starts, total


def _shortcut(x: _Raw, short: _Raw | Tensor | None) -> tuple[tuple[Any, ...], int]:
    """The argument of a shortcut for a kernel, and its kind.

    A missing shortcut is replaced by tensors that the kernel never touches.
    """
    if isinstance(short, _Raw):
        return short.given, 2
    return (x.y if short is None else short, *x.given[1:]), 0 if short is None else 1

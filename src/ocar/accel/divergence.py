"""How much a network's answers have changed, on a GPU, in few kernels.

Whoever wants to know asks the network again, in train mode, with nothing to learn from it: this is
a forward pass that keeps nothing and leaves BatchNorm's running statistics alone. On a mini-batch
of small images a library's kernels for it take most of their time for their own beginning, and some
more turn images over in between. Here the sums that BatchNorm needs come with the convolution, a
shortcut's convolution is part of the same kernel as the one beside it, and all from the last
convolution to KL(before ‖ now) is one kernel.

It needs Triton, see :mod:`ocar.accel.compiled`. Products are rounded
as cuDNN's are (TF32); where that is
not allowed, and for what the kernels are not made for, there is none of this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from ocar.accel.compiled import compiles, kernels, may_round, run_side_by_side
from ocar.accel.layout import lies_by_pixel
from ocar.models.head import mask_logits
from ocar.models.resnet import BasicBlock, ResNet, Stem

_MOST = 2**31  # numbers of a tensor that a kernel can count
_SUMS = 2**14  # of the parts of a convolution, that whoever reads it keeps in registers
_UNITS = 1024  # of the output layer, that one program answers for
_BLOCK = 32  # channels that a program of a join makes, of as many pixels as were made together
_PIECE = 1024  # numbers of a weight that a program lays pixel by pixel
_ANSWERING = 8  # warps of the last kernel
_HEAD = 8192  # weights of the output layer that it takes at a time


@dataclass(frozen=True, kw_only=True)
class Tile:
    """What a program of a convolution makes, and how."""

    pixels: int
    """Of the result."""

    block: int
    """Channels of them."""

    split: int
    """Sums that it adds up side by side, for several warps to share."""

    terms: int
    """Of each sum at a time."""

    warps: int
    """That share the work."""

    stages: int
    """How many times that many terms are on their way from memory."""


def tile(count: int, outputs: int) -> Tile:
    """How to share out a convolution, to about a hundred programs.

    Args:
        count: Pixels of the result, of all images.
        outputs: Channels of the result.
    """
    above = max(16, 1 << (outputs - 1).bit_length())
    if count > 8192:
        return Tile(pixels=128, block=min(above, 64), split=1, terms=64, warps=4, stages=1)
    if count > 2048:
        return Tile(pixels=64, block=min(above, 64), split=1, terms=32, warps=4, stages=3)
    if count > 512:
        return Tile(pixels=32, block=min(above, 32), split=1, terms=64, warps=4, stages=3)
    return Tile(pixels=32, block=16, split=4, terms=64, warps=4, stages=3)


@dataclass(frozen=True, eq=False)
class _Raw:
    """The result of a convolution, not normalized yet."""

    y: Tensor
    parts: Tensor
    share: int
    norm: nn.BatchNorm2d

    @property
    def count(self) -> int:
        return self.y.numel() // self.y.shape[-1]

    @property
    def given(self) -> tuple[Any, ...]:
        """What a kernel is told of it."""
        return self.y, self.parts, self.norm.weight, self.norm.bias, self.norm.eps

    @property
    def sizes(self) -> dict[str, int]:
        parts = 1 << (len(self.parts) - 1).bit_length()
        return {"CHANNELS": self.y.shape[-1], "PARTS": parts, "SHARE": self.share}


class MeasuredResNet:
    """Asks a ResNet in train mode; nothing of it changes.

    Args:
        model: The network, of which :func:`measured` has said that it may be asked so.
        compiled: The kernels.
    """

    def __init__(self, model: ResNet, compiled: ModuleType) -> None:
        self._model = model
        self._kernels = compiled
        self._tried: dict[tuple[Any, ...], bool] = {}
        blocks = [cast("BasicBlock", block) for block in model.blocks]
        self._convs = [conv for block in blocks for conv in (block.conv1, block.conv2)]
        self._tables: dict[tuple[int, ...], Tensor] = {}  # none is forgotten: graphs use them
        self._turned: dict[nn.Conv2d, Tensor] = {}
        self._rehearsed: dict[str, Callable[[], object]] | None = None

    @torch.no_grad()
    def divergences(self, x: Tensor, active: Tensor, before: Tensor) -> Tensor | None:
        """KL(before ‖ now) in nats of the last samples, if the kernels are made for these.

        Args:
            x: All samples of a batch, ``(n, channels, h, w)``.
            active: Which units stand for a class, ``(units,)`` of bool.
            before: Log-probabilities from before, ``(samples, units)``.
        """
        if not self._takes(x):
            return None
        key = x.shape, before.shape, self._places()
        if key not in self._tried:
            if x.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                return None  # it is too late to compile
            about = "Measures of what steps change"
            self._tried[key] = compiles(lambda: self._rehearse(x, active, before), about)
        return self._divergences(x, active, before) if self._tried[key] else None

    def _rehearse(self, x: Tensor, active: Tensor, before: Tensor) -> None:
        """Have all kernels compiled, side by side; what they make then is of no use."""
        self._rehearsed = {}
        try:
            self._divergences(x, active, before)
            jobs = list(self._rehearsed.values())
        finally:
            self._rehearsed = None
        run_side_by_side(jobs, x.device)

    def _launch(self, name: str, grid: tuple[int, ...], *given: Any, **how: Any) -> None:
        """Start a kernel; or, in a rehearsal, take note of it."""

        def job() -> None:
            with torch.cuda.device_of(given[0]):
                getattr(self._kernels, name)[grid](*given, **how)

        if self._rehearsed is None:
            job()
        else:
            self._rehearsed[f"{name} {sorted(how.items())}"] = job

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Logits ``(n, units)`` of images that there are kernels for."""
        model = self._model
        y = self._join(*self._last(x)).permute(0, 3, 1, 2)
        logits: Tensor = model.head(model.pool(y).flatten(1))
        return logits

    def _takes(self, x: Tensor) -> bool:
        """Whether the kernels do now what the network would with such images."""
        if x.dim() != 4 or not x.is_cuda or x.dtype != torch.float32 or not may_round():
            return False
        if torch.is_autocast_enabled("cuda") or not is_plain(self._model):
            return False
        n, channels, *size = x.shape
        stem = cast("nn.Sequential", self._model.stem)[0]
        if channels != cast("nn.Conv2d", stem).in_channels:
            return False
        for block in (None, *self._model.blocks):
            conv = cast("nn.Conv2d", stem) if block is None else cast("BasicBlock", block).conv1
            size = [(side - 1) // conv.stride[0] + 1 for side in size]
            count, outputs = n * size[0] * size[1], conv.out_channels
            parts = -(-count // tile(count, outputs).pixels)
            sums = (1 << (parts - 1).bit_length()) * (1 << (outputs - 1).bit_length())
            if count < 2 or sums > _SUMS or 9 * count * max(channels, outputs) > _MOST:
                return False
        return True

    def _divergences(self, x: Tensor, active: Tensor, before: Tensor) -> Tensor:
        raw, short = self._last(x)
        window = self._window(*raw.y.shape[1:3])
        head = self._model.head
        units = head.out_features
        if window is None or units > _UNITS or head.bias is None:
            y = self._join(raw, short).permute(0, 3, 1, 2)
            rows = head(self._model.pool(y[-len(before) :]).flatten(1))
            after = functional.log_softmax(mask_logits(rows, active), dim=-1)
            return (before.exp() * (before - after)).sum(-1)
        features = raw.y.new_empty(len(before), head.in_features)
        divergences = raw.y.new_empty(len(before))
        above = max(16, 1 << (units - 1).bit_length())
        given, kind = _shortcut(raw, short)
        self._launch(
            "answer",
            (len(before),),
            *(*raw.given, *given, features, head.weight, head.bias, active, before.contiguous()),
            *(divergences, raw.count, len(x) - len(before), units),
            *(*raw.y.shape[1:3], *window),
            **raw.sizes,
            SHORT=kind,
            PIXELS=1 << (window[0] * window[1] - 1).bit_length(),
            BLOCK=1 << (raw.y.shape[-1] - 1).bit_length(),
            UNITS=above,
            CHUNK=min(64, max(8, _HEAD // above)),
            num_warps=_ANSWERING,
        )
        return divergences

    def _window(self, height: int, width: int) -> tuple[int, int] | None:
        """Over how many pixels the mean is taken, if there is a kernel for that."""
        pool = self._model.pool
        if type(pool) is nn.AdaptiveAvgPool2d and pool.output_size in (1, (1, 1)):
            window = height, width
        elif type(pool) is nn.AvgPool2d and pool.padding == 0 and pool.divisor_override is None:
            sides = pool.kernel_size, pool.stride
            if not all(isinstance(side, int) for side in sides) or sides[0] != sides[1]:
                return None
            side = cast("int", pool.kernel_size)
            if pool.ceil_mode and (height % side or width % side):
                return None
            window = side, side
        else:
            return None
        windows = (height // window[0]) * (width // window[1])
        return window if 0 < windows <= 4 and window[0] * window[1] <= 64 else None

    def _places(self) -> tuple[int, ...]:
        """Where the weights are that are to lie pixel by pixel; 0 for those that do already."""
        weights = [conv.weight for conv in self._convs]
        return tuple(0 if lies_by_pixel(w) else w.data_ptr() for w in weights)

    def _turning(self) -> tuple[Tensor, Tensor, dict[nn.Conv2d, Tensor]]:
        """A table of such weights in pieces, room for all of them, and for each."""
        places, rows, total = self._places(), [], 0
        starts: dict[nn.Conv2d, int] = {}
        for conv, place in zip(self._convs, places, strict=True):
            if place == 0:
                continue
            size, channels = conv.weight.numel(), conv.in_channels
            taps, pieces = conv.kernel_size[0] ** 2, range(0, size, _PIECE)
            rows += [(place, total, size, channels, taps, first) for first in pieces]
            starts[conv] = total
            total += -(-size // 4) * 4  # so that four can be read together
        weight = self._model.head.weight
        if places not in self._tables:
            table = torch.tensor(rows, dtype=torch.int64).view(-1, 6)
            self._tables[places] = table.to(weight.device)
        turned = weight.new_empty(total)
        return self._tables[places], turned, {conv: turned[at:] for conv, at in starts.items()}

    def _begin(self, x: Tensor) -> _Raw:
        """The first convolution, and what later ones wait for."""
        stem = cast("nn.Sequential", self._model.stem)
        conv = cast("nn.Conv2d", stem[0])
        height, width = x.shape[2:]
        result, how, programs = _result(x, (height, width), conv, stem[1])
        table, turned, self._turned = self._turning()
        self._launch(
            "begin_and_turn",
            (programs + len(table),),
            *(x, conv.weight, result.y, result.parts, table, turned, result.count),
            HEIGHT=height,
            WIDTH=width,
            PIECE=_PIECE,
            **how,
        )
        return result

    def _weight(self, conv: nn.Conv2d) -> tuple[Tensor, bool]:
        """A weight, and whether it lies pixel by pixel."""
        turned = self._turned.get(conv)
        return (conv.weight, lies_by_pixel(conv.weight)) if turned is None else (turned, True)

    def _last(self, x: Tensor) -> tuple[_Raw, _Raw | Tensor | None]:
        """The results of the last convolution, and of the shortcut beside it."""
        raw = self._begin(x.contiguous())
        short: _Raw | Tensor | None = None
        for module in self._model.blocks:
            block = cast("BasicBlock", module)
            joined = self._join(raw, short)
            shortcut = block.shortcut if isinstance(block.shortcut, nn.Sequential) else None
            first, short = self._convolve(joined, block.conv1, block.bn1, shortcut)
            short = joined if short is None else short
            raw, _ = self._convolve(self._join(first, None), block.conv2, block.bn2)
        self._turned = {}
        return raw, short

    def _convolve(
        self, x: Tensor, conv: nn.Conv2d, norm: nn.Module, shortcut: nn.Sequential | None = None
    ) -> tuple[_Raw, _Raw | None]:
        """A convolution of images ``(n, h, w, channels)``, and that of a shortcut.

        Args:
            x: The images.
            conv: The convolution.
            norm: The BatchNorm after it.
            shortcut: A convolution of 1×1 with the same stride, and its BatchNorm.
        """
        height, width = x.shape[1:3]
        result, how, programs = _result(x, (height, width), conv, norm)
        short = None if shortcut is None else _result(x, (height, width), conv, shortcut[1])[0]
        beside = result if short is None else short
        own, by_pixel = self._weight(conv)
        weight = own if shortcut is None else cast("nn.Conv2d", shortcut[0]).weight
        self._launch(
            "convolve",
            (programs * (1 if short is None else 2),),
            *(x, own, result.y, result.parts, weight, beside.y, beside.parts),
            result.count,
            HEIGHT=height,
            WIDTH=width,
            SHORT=short is not None,
            **(how | {"W_BY_PIXEL": by_pixel}),
        )
        return result, short

    def _join(self, x: _Raw, short: _Raw | Tensor | None) -> Tensor:
        y = torch.empty_like(x.y)
        channels = y.shape[-1]
        block = min(_BLOCK, 1 << (channels - 1).bit_length())
        given, kind = _shortcut(x, short)
        self._launch(
            "join",
            (len(x.parts), -(-channels // block)),
            *(*x.given, *given, y, x.count),
            **x.sizes,
            SHORT=kind,
            PIXELS=x.share,
            BLOCK=block,
        )
        return y


def _result(
    x: Tensor, size: tuple[int, int], conv: nn.Conv2d, norm: nn.Module
) -> tuple[_Raw, dict[str, int], int]:
    """Room for the result of a convolution, how it is made, and by how many programs."""
    stride, outputs = conv.stride[0], conv.out_channels
    height, width = ((side - 1) // stride + 1 for side in size)
    y = x.new_empty(x.shape[0], height, width, outputs)
    count = y.numel() // outputs
    own = tile(count, outputs)
    tiles = -(-count // own.pixels)
    how: dict[str, int] = {
        "CHANNELS": conv.in_channels,
        "OUTPUTS": outputs,
        "SIDE": conv.kernel_size[0],
        "STRIDE": stride,
        "W_BY_PIXEL": lies_by_pixel(conv.weight),
        "PIXELS": own.pixels,
        "BLOCK": own.block,
        "SPLIT": own.split,
        "TERMS": own.terms,
        "num_warps": own.warps,
        "num_stages": own.stages,
    }
    raw = _Raw(y, x.new_empty(tiles, 2, outputs), own.pixels, cast("nn.BatchNorm2d", norm))
    return raw, how, tiles * -(-outputs // own.block)


def _shortcut(x: _Raw, short: _Raw | Tensor | None) -> tuple[tuple[Any, ...], int]:
    """What a kernel is told of a shortcut, and its kind; where there is none others stand in."""
    if isinstance(short, _Raw):
        return short.given, 2
    return (x.y if short is None else short, *x.given[1:]), 0 if short is None else 1


def measured(model: nn.Module) -> MeasuredResNet | None:
    """What asks a network in few kernels, if it is such a one and they can be compiled.

    Args:
        model: Any module.
    """
    if not isinstance(model, ResNet) or not model.head.weight.is_cuda:
        return None
    if model.head.weight.dtype != torch.float32 or not is_plain(model, training=False):
        return None
    compiled = kernels("ocar.accel.triton.divergence")
    return None if compiled is None else MeasuredResNet(model, compiled)


def is_plain(model: ResNet, *, training: bool = True) -> bool:
    """Whether a network is one as it is made here, of convolutions that the kernels know.

    Args:
        model: The network.
        training: Whether BatchNorm must be in train mode.
    """
    kind = type(model)
    if kind.forward is not ResNet.forward or kind.features is not ResNet.features:
        return False
    stem = model.stem
    if type(stem) is not Stem or len(stem) != 3 or type(stem[2]) is not nn.ReLU:
        return False
    pairs: list[tuple[nn.Module, nn.Module]] = [(stem[0], stem[1])]
    for block in model.blocks:
        if type(block) is not BasicBlock:
            return False
        pairs += [(block.conv1, block.bn1), (block.conv2, block.bn2)]
        if isinstance(block.shortcut, nn.Sequential):
            if len(block.shortcut) != 2:
                return False
            pairs.append((block.shortcut[0], block.shortcut[1]))
        elif type(block.shortcut) is not nn.Identity:
            return False
    if type(model.head) is not nn.Linear or any(map(_is_watched, model.modules())):
        return False
    return all(_is_known(*pair, training=training) for pair in pairs)


def _is_watched(module: nn.Module) -> bool:
    """Whether others look at, or change, what goes through a layer."""
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__)


def _is_known(conv: nn.Module, norm: nn.Module, *, training: bool) -> bool:
    """Whether there are kernels for a convolution and the BatchNorm after it."""
    if type(conv) is not nn.Conv2d or type(norm) is not nn.BatchNorm2d:
        return False
    side = conv.kernel_size[0]
    weight = conv.weight
    return (
        side in (1, 3)
        and conv.kernel_size == (side, side)
        and conv.stride in ((1, 1), (2, 2))
        and conv.padding == (side // 2, side // 2)
        and conv.padding_mode == "zeros"
        and conv.dilation == (1, 1)
        and conv.groups == 1
        and conv.bias is None
        and weight.dtype == torch.float32
        and (weight.is_contiguous() or lies_by_pixel(weight))
        and norm.affine
        and norm.weight.dtype == torch.float32
        and (norm.training or not training)
    )

"""Gradients of the weights of several convolutions by one kernel, on a GPU.

Nothing waits for the gradient of a weight before the step is taken, so in a recording they are
made in parallel with the chain of gradients at inputs. For mini-batches of small images a library
takes a kernel for each layer, and two or three more to change layouts, most of which cannot fill
the device. Here consecutive layers share one kernel: a table tells them apart. Products are rounded
as cuDNN's are (TF32). Large layers are left to the library, which is faster there.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from ocar.accel.layout import has_square_kernel, is_channels_last, is_dense, laid_out
from ocar.accel.operation import has_triton, launch, operation, rounds_to_tf32
from ocar.accel.streams import PARALLEL_PRIORITY, is_recording

Layer = tuple[Tensor, Tensor]
"""Inputs of a convolution and gradients at its outputs."""

_TOGETHER = 5  # layers that one launch takes; it waits for all of them
_LARGEST = 2**28  # multiplications of a layer
_SHARE = 512  # pixels that a program adds up
_BLOCK = 32  # pixels that it takes at a time
_SIDE = 3  # of the largest kernel that is implemented


class WeightGradients:
    """Adds gradients to the weights of a model's convolutions, several at a time.

    Attributes:
        collecting: Whether convolutions hand over the gradients of their weights.
    """

    def __init__(self, model: nn.Module) -> None:
        self.collecting = False
        convs = (module for module in model.modules() if isinstance(module, nn.Conv2d))
        # The backward pass reaches it last, when nothing is left to run in parallel.
        self._first = next(convs, None)
        self._waiting: dict[nn.Conv2d, Layer] = {}
        self._sources: list[torch.cuda.Stream] = []  # several where a network has branches
        self._kept: list[object] = []

    def begin(self) -> None:
        """A backward pass begins."""
        self.collecting = True

    def end(self) -> None:
        """The backward pass is over: make the remaining gradients, and wait for all."""
        try:
            self._flush()
            if self._kept:  # otherwise the stream is not part of the graph
                current = torch.cuda.current_stream()
                current.wait_stream(_stream(current.device))
        finally:
            self.collecting = False
            for records in (self._waiting, self._sources, self._kept):
                records.clear()

    def add(self, conv: nn.Conv2d, x: Tensor, g: Tensor, alone: Callable[[], Any]) -> None:
        """The backward pass has reached a layer, with input x and the gradient g at its output.

        ``alone`` makes the gradients of weight and bias of this layer by itself.
        """
        if is_recording():
            current = torch.cuda.current_stream()
            if current not in self._sources:
                self._sources.append(current)
        if not _fits_kernel(conv, x, g):
            self._run(lambda: _accumulate(conv, *alone()[1:]), keep=(x, g))
            return
        if not self._joins(conv, x):
            self._flush()
        self._waiting[conv] = x, laid_out(g, like=x)
        if len(self._waiting) == _TOGETHER or conv is self._first:
            self._flush()

    def _joins(self, conv: nn.Conv2d, x: Tensor) -> bool:
        """Whether a layer has as many images as the waiting ones, in the same layout."""
        if conv in self._waiting or conv is self._first:
            return not self._waiting
        others = [waiting[0] for waiting in self._waiting.values()]
        return all(len(y) == len(x) and _kind(y) == _kind(x) for y in others)

    def _flush(self) -> None:
        convs, layers = list(self._waiting), list(self._waiting.values())
        self._waiting.clear()
        if not convs:
            return

        def make() -> None:
            for conv, gradient in zip(convs, weight_gradients(convs, layers), strict=True):
                _accumulate(conv, gradient, None)

        self._run(make, keep=layers)

    def _run(self, job: Callable[[], None], *, keep: object) -> None:
        if not is_recording():
            job()
            return
        self._kept.append((job, keep))  # their memory is read until the streams have joined
        stream = _stream(torch.cuda.current_stream().device)
        for source in self._sources:
            stream.wait_stream(source)
        with torch.cuda.stream(stream):
            job()


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    # One: more streams take more memory and save no time.
    return torch.cuda.Stream(device, priority=PARALLEL_PRIORITY)


def _accumulate(conv: nn.Conv2d, weight: Tensor | None, bias: Tensor | None) -> None:
    for parameter, gradient in ((conv.weight, weight), (conv.bias, bias)):
        if parameter is None or gradient is None:
            continue
        if parameter.is_contiguous():  # 1 × 1 kernels: the strides of the parameter too
            gradient = gradient.reshape(-1).view_as(parameter)
        if parameter.grad is None:
            parameter.grad = gradient
        else:
            parameter.grad.add_(gradient)


def _kind(x: Tensor) -> tuple[int, ...] | None:
    """What layers of one launch have in common: the size of channels-first images, or nothing."""
    return None if is_channels_last(x) else tuple(x.shape[2:])


def _fits_kernel(conv: nn.Conv2d, x: Tensor, g: Tensor) -> bool:
    """Whether the kernels are made for a layer, and faster than the library."""
    side = conv.kernel_size[0]
    known = (
        conv.bias is None
        and has_square_kernel(conv)
        and side <= _SIDE
        and conv.weight.requires_grad
        and x.dtype == g.dtype == conv.weight.dtype == torch.float32
        and is_dense(x)
        and conv.weight.numel() * (g.numel() // g.shape[1]) <= _LARGEST
    )
    if not known or x.data_ptr() % 16 or g.data_ptr() % 16:
        return False
    if not is_channels_last(x):
        height, width = x.shape[2:]
        plain = side == 3 and conv.stride[0] == conv.padding[0] == 1
        if not plain or _BLOCK % width or height * width % _BLOCK:
            return False
    return rounds_to_tf32() and has_triton(x, g)


@operation
def weight_gradients(convs: Sequence[nn.Conv2d], layers: Sequence[Layer]) -> list[Tensor]:
    """The gradient of the weight of each convolution, which has no bias.

    It is Σ over pixels of input × gradient at the output.
    """
    results = []
    for conv, (x, g) in zip(convs, layers, strict=True):
        geometry = conv.stride, conv.padding, conv.dilation, False, [0, 0], conv.groups
        mask = (False, True, False)
        found = torch.ops.aten.convolution_backward(g, x, conv.weight, None, *geometry, mask)
        results.append(found[1])
    return results


class _Shape(NamedTuple):
    """A convolution of images of some size."""

    channels: int
    height: int
    width: int
    outputs: int
    tall: int
    wide: int
    side: int
    stride: int
    padding: int
    strides: tuple[int, ...]  # of the weight
    channels_last: bool

    @classmethod
    def of(cls, conv: nn.Conv2d, x: Tensor, g: Tensor) -> _Shape:
        (_, channels, height, width), (_, outputs, tall, wide) = x.shape, g.shape
        padding = cast("tuple[int, int]", conv.padding)[0]
        kernel = conv.kernel_size[0], conv.stride[0], padding, conv.weight.stride()
        return cls(channels, height, width, outputs, tall, wide, *kernel, is_channels_last(x))


@functools.cache
def _plan(
    shapes: tuple[_Shape, ...], tile: int, device: torch.device
) -> tuple[Tensor, Tensor, list[int]]:
    """The tables of layers and programs, and where each gradient starts; last where all end."""
    sizes = [shape.outputs * shape.channels * shape.side**2 for shape in shapes]
    starts = [0, *itertools.accumulate(sizes)]
    rows = [
        (*shape[:9], start, *shape.strides)
        for shape, start in zip(shapes, starts[:-1], strict=True)
    ]
    programs = [
        (number, output, channel, line)
        for number, shape in enumerate(shapes)
        for output in range(-(-shape.outputs // tile))
        for channel in range(-(-shape.channels // tile))
        for line in range(shape.side)
    ]
    layers, tiles = (torch.tensor(t, dtype=torch.int32, device=device) for t in (rows, programs))
    return layers, tiles, starts


@weight_gradients.implementation(
    "triton",
    when=lambda convs, layers: all(
        _fits_kernel(conv, *layer) for conv, layer in zip(convs, layers, strict=True)
    ),
)
def _weight_gradients_by_kernel(
    convs: Sequence[nn.Conv2d], layers: Sequence[Layer]
) -> list[Tensor]:
    from ocar.accel.triton import weight_gradients as kernels

    x = layers[0][0]
    shapes = tuple(_Shape.of(conv, *layer) for conv, layer in zip(convs, layers, strict=True))
    area = max(shape.tall * shape.wide for shape in shapes)
    options: dict[str, int]
    if shapes[0].channels_last:
        kernel, tile = kernels.multiply_channels_last, 16  # outputs and inputs of a program
        parts, share = len(x), max(1, _SHARE // area)
        channels = (count for shape in shapes for count in (shape.channels, shape.outputs))
        options = {"ALIGNED": all(count % 4 == 0 for count in channels)}
    else:
        kernel, tile = kernels.multiply_channels_first, 32
        parts, share = area // _BLOCK * len(x), _SHARE // _BLOCK
        options = {"WIDTH": shapes[0].width}
    rows, programs, starts = _plan(shapes, tile, x.device)
    shares = -(-parts // share)
    out = torch.empty(shares, starts[-1], dtype=torch.float32, device=x.device)
    addresses = [tensor.data_ptr() for layer in layers for tensor in layer]
    addresses += addresses[-2:] * (_TOGETHER - len(layers))  # so that one kernel serves all counts
    launch(
        kernel,
        (len(programs), shares),
        *(tuple(addresses), rows, programs, out, parts, share, starts[-1]),
        LAYERS=_TOGETHER,
        TILE=tile,
        PIXELS=_BLOCK,
        num_warps=2,
        **options,
    )
    flat = out[0] if shares == 1 else out.sum(0)
    return [
        flat.as_strided(conv.weight.shape, conv.weight.stride(), flat.storage_offset() + start)
        for conv, start in zip(convs, starts[:-1], strict=True)
    ]

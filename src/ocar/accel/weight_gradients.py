"""Gradients of the weights of several convolutions by one kernel, on a GPU.

For mini-batches of small images a library takes a kernel for each layer, and two or three more to
turn images over, most of which cannot fill the device. Here neighbours in the network are one
kernel: what belongs to a layer is found in a table. It needs Triton, see :mod:`ocar.accel.compiled`;
products are rounded as cuDNN's are (TF32). Large layers are left to the library, which is faster
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor, nn

from ocar.accel.compiled import compiles, kernels, may_round, run_side_by_side
from ocar.accel.layout import lies_by_pixel

Gradients = list[tuple[Tensor, Tensor]]
"""Parameters, each with its gradient."""

Job = Callable[[], Gradients]

_LAYERS = 5  # of a group at most; its kernel waits for all of them
_LARGEST = 2**28  # multiplications of a layer
_SHARE = 512  # pixels that a program adds up, about
_BLOCK = 32  # pixels that it takes at a time
_WARPS = 2  # that share its work
_SIDE = 3  # of the largest kernel that there is a way for
_ALIGNMENT = 16  # bytes


@dataclass(frozen=True, kw_only=True)
class _Shape:
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
    strides: tuple[int, ...]
    by_pixel: bool

    @property
    def kind(self) -> tuple[int, int] | None:
        """What layers of a group have in common: None, or the size of images by channel."""
        return None if self.by_pixel else (self.height, self.width)

    @property
    def known(self) -> bool:
        """Whether there is a kernel for it."""
        if self.by_pixel:
            return True
        plain = self.side == 3 and self.stride == self.padding == 1
        return plain and _BLOCK % self.width == self.height * self.width % _BLOCK == 0

    @property
    def size(self) -> int:
        """Numbers of its weight."""
        return self.outputs * self.channels * self.side**2

    def row(self, start: int) -> list[int]:
        """What the kernel reads of it, with the place of its gradient among those of its group."""
        images = self.channels, self.height, self.width, self.outputs, self.tall, self.wide
        return [*images, self.side, self.stride, self.padding, start, *self.strides]


class WeightGradients:
    """The gradients of a network's weights, as far as they are made by this kernel.

    Args:
        model: Any module.
        device: Where it is.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._device = device
        self._convs = [cast("nn.Conv2d", m) for m in model.modules() if _is_plain(m)]
        self._noted: dict[nn.Conv2d, _Shape] = {}
        self._groups: dict[nn.Conv2d, _Group] = {}
        self._products: dict[tuple[_Shape, ...], _Products] = {}  # those in graphs too

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """For a forward pass that is not recorded: what shapes there are is seen there."""
        noted: dict[nn.Conv2d, _Shape] = {}
        compiled = kernels("ocar.accel.triton.weight_gradients") if self._convs else None

        def note(conv: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
            shape = _shape(cast("nn.Conv2d", conv), inputs[0], output)
            if shape is not None and output.requires_grad:
                noted[cast("nn.Conv2d", conv)] = shape

        with ExitStack() as stack:
            for conv in self._convs if compiled is not None else ():
                stack.callback(conv.register_forward_hook(note).remove)
            yield
        if compiled is not None and noted and noted != self._noted:
            self._noted = noted
            self._make_groups(compiled)

    def _make_groups(self, compiled: ModuleType) -> None:
        self._groups = {}
        new: dict[str, _Products] = {}
        for convs in _neighbours(self._noted):
            shapes = tuple(self._noted[conv] for conv in convs)
            if shapes not in self._products:
                made = self._products[shapes] = _Products(shapes, compiled, self._device)
                new[str(made.how)] = made
            group = _Group(convs, self._products[shapes])
            self._groups.update(dict.fromkeys(convs, group))
        jobs = [made.compile for made in new.values()]
        if not compiles(lambda: run_side_by_side(jobs, self._device), "Gradients of weights"):
            self._convs.clear()
            self._groups.clear()

    def add(self, conv: nn.Conv2d, x: Tensor, g: Tensor, alone: Job) -> list[Job]:
        """One more layer that the backward pass has come to.

        Args:
            conv: The layer.
            x: What went in.
            g: The gradient at what came out.
            alone: Makes its gradients without the kernel.

        Returns:
            What makes the gradients that can be made now.
        """
        group = self._groups.get(conv)
        if group is None or not may_round():
            return [alone]
        if _shape(conv, x, g) != self._noted[conv] or not group.accepts(conv, x):
            return [alone]
        g = g.contiguous(memory_format=_format(x))
        if x.data_ptr() % _ALIGNMENT or g.data_ptr() % _ALIGNMENT:
            return [alone]
        return group.add(conv, x, g, alone)

    def left(self) -> list[Job]:
        """What makes the gradients of groups that the backward pass did not come to whole."""
        groups = dict.fromkeys(self._groups.values())
        return [job for group in groups for job in group.left()]


class _Group:
    """Layers whose gradients are made together, and those of them that were come to."""

    def __init__(self, convs: Sequence[nn.Conv2d], products: _Products) -> None:
        self._convs = convs
        self._products = products
        self._waiting: dict[nn.Conv2d, tuple[Tensor, Tensor, Job]] = {}

    def accepts(self, conv: nn.Conv2d, x: Tensor) -> bool:
        """Whether a layer is the next, with as many images as the others."""
        others = (len(other) for other, _, _ in self._waiting.values())
        return conv not in self._waiting and all(len(x) == other for other in others)

    def add(self, conv: nn.Conv2d, x: Tensor, g: Tensor, alone: Job) -> list[Job]:
        """One more layer; see :meth:`WeightGradients.add`."""
        self._waiting[conv] = x, g, alone
        if len(self._waiting) < len(self._convs):
            return []
        found = [self._waiting[conv][:2] for conv in self._convs]
        self._waiting.clear()
        weights = [conv.weight for conv in self._convs]
        return [lambda: list(zip(weights, self._products(found), strict=True))]

    def left(self) -> list[Job]:
        """What is left, each by itself."""
        jobs = [alone for _, _, alone in self._waiting.values()]
        self._waiting.clear()
        return jobs


class _Products:
    """One of the two kernels, for some shapes.

    Attributes:
        how: What it is compiled for.
    """

    def __init__(
        self, shapes: tuple[_Shape, ...], compiled: ModuleType, device: torch.device
    ) -> None:
        self._shapes, self._device = shapes, device
        self._by_pixel = shapes[0].by_pixel
        self._tile = 16 if self._by_pixel else 32  # outputs and inputs that a program takes
        self._starts = [sum(s.size for s in shapes[:index]) for index in range(len(shapes))]
        self._total = sum(shape.size for shape in shapes)
        rows = [shape.row(start) for shape, start in zip(shapes, self._starts, strict=True)]
        programs = [
            (number, output, channel, line)
            for number, shape in enumerate(shapes)
            for output in range(-(-shape.outputs // self._tile))
            for channel in range(-(-shape.channels // self._tile))
            for line in range(shape.side)
        ]
        self._rows = torch.tensor(rows, dtype=torch.int32, device=device)
        self._programs = torch.tensor(programs, dtype=torch.int32, device=device)
        area = max(shape.tall * shape.wide for shape in shapes)
        self.how: dict[str, int]
        if self._by_pixel:
            self._kernel, self._parts, self._share = compiled.multiply_pixels, 1, _SHARE // area
            channels = (count for shape in shapes for count in (shape.channels, shape.outputs))
            self.how = {"ALIGNED": all(count % 4 == 0 for count in channels)}
        else:
            self._kernel, self._parts = compiled.multiply_rows, area // _BLOCK
            self._share, self.how = _SHARE // _BLOCK, {"WIDTH": shapes[0].width}
        self._share = max(1, self._share)

    def compile(self) -> None:
        """Run once, with zeros."""
        self(
            [
                (self._zeros(s.channels, s.height, s.width), self._zeros(s.outputs, s.tall, s.wide))
                for s in self._shapes
            ]
        )

    def _zeros(self, *shape: int) -> Tensor:
        zeros = torch.zeros(1, *shape, dtype=torch.float32, device=self._device)
        kind = torch.channels_last if self._by_pixel else torch.contiguous_format
        return zeros.contiguous(memory_format=kind)

    def __call__(self, layers: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """The gradient of each weight.

        Args:
            layers: What went in and the gradient at what came out, of each.
        """
        parts = self._parts * len(layers[0][0])  # images, or blocks of their pixels
        shares = -(-parts // self._share)
        out = torch.empty(shares, self._total, dtype=torch.float32, device=self._device)
        places = [tensor.data_ptr() for layer in layers for tensor in layer]
        places += places[-2:] * (_LAYERS - len(layers))
        with torch.cuda.device_of(out):
            self._kernel[len(self._programs), shares](
                *(tuple(places), self._rows, self._programs, out, parts, self._share, self._total),
                LAYERS=_LAYERS,
                FIELDS=self._rows.shape[1],
                OUTPUTS=self._tile,
                INPUTS=self._tile,
                PIXELS=_BLOCK,
                num_warps=_WARPS,
                **self.how,
            )
        flat = out[0] if shares == 1 else out.sum(0)
        return [
            flat[start : start + shape.size].as_strided(
                (shape.outputs, shape.channels, shape.side, shape.side), shape.strides
            )
            for shape, start in zip(self._shapes, self._starts, strict=True)
        ]


def _is_plain(module: nn.Module) -> bool:
    """Whether a layer is a convolution that learns and that the kernel knows."""
    if type(module) is not nn.Conv2d or not isinstance(module.padding, tuple):
        return False
    side, stride, padding = module.kernel_size, module.stride, module.padding
    return (
        module.bias is None
        and module.groups == 1
        and module.dilation == (1, 1)
        and module.padding_mode == "zeros"
        and side[0] == side[1] <= _SIDE
        and stride[0] == stride[1]
        and padding[0] == padding[1]
        and module.weight.dtype == torch.float32
        and module.weight.requires_grad
    )


def _shape(conv: nn.Conv2d, x: Tensor, y: Tensor) -> _Shape | None:
    """What a convolution makes of images, None if the kernel is not made for that.

    Args:
        conv: The layer.
        x: Its input.
        y: Its output, or the gradient there.
    """
    if x.dim() != 4 or not x.is_cuda or not x.dtype == y.dtype == torch.float32:
        return None
    if not (x.is_contiguous() or lies_by_pixel(x)):
        return None
    weight = conv.weight
    if weight.numel() * (y.numel() // y.shape[1]) > _LARGEST:
        return None
    (_, channels, height, width), (_, outputs, tall, wide) = x.shape, y.shape
    shape = _Shape(
        channels=channels,
        height=height,
        width=width,
        outputs=outputs,
        tall=tall,
        wide=wide,
        side=conv.kernel_size[0],
        stride=conv.stride[0],
        padding=cast("tuple[int, int]", conv.padding)[0],
        strides=weight.stride(),
        by_pixel=lies_by_pixel(x),
    )
    return shape if shape.known else None


def _neighbours(noted: Mapping[nn.Conv2d, _Shape]) -> Iterator[list[nn.Conv2d]]:
    """Layers that follow each other and are of one kind, a few together.

    The first of the network is by itself. A backward pass comes to it last, and then there is
    nothing left that others could be made beside.
    """
    first, *others = noted.items()
    yield [first[0]]
    part: list[nn.Conv2d] = []
    for conv, shape in others:
        if part and (len(part) == _LAYERS or noted[part[0]].kind != shape.kind):
            yield part
            part = []
        part.append(conv)
    if part:
        yield part


def _format(x: Tensor) -> torch.memory_format:
    return torch.channels_last if lies_by_pixel(x) else torch.contiguous_format

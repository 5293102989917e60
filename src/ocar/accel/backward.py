"""A shorter chain of kernels for the backward pass of a step that is recorded as a CUDA graph.

A backward pass is a chain: the gradient at the input of a layer waits for that of the layer
above. The gradient of a convolution's weight hangs beside the chain; nothing waits for it before
the step is taken. On a stream of their own these kernels, a third of the time, cost little. (More
streams would take more memory, and save no time.)

The links of the chain are convolutions too: of the gradient at the output with the kernel turned
around, where the stride is 1. As such they are faster than cuDNN's backward pass, which for some
numbers of channels knows no tensor cores. All kernels are turned at once, beside the forward pass.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from ocar.accel.convolution import can_turn, input_gradient, is_pulling_back
from ocar.accel.layout import in_memory, lies_by_pixel
from ocar.accel.streams import BESIDE, is_capturing
from ocar.accel.weight_gradients import Gradients, Job, WeightGradients


class RecordedBackward:
    """Runs the backward passes of a model.

    Args:
        model: Any module.
        device: Where it is.

    Attributes:
        turned: The kernels of its convolutions, turned around.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._model = model
        self._device = device
        self.turned = _TurnedKernels(model, device)
        self._weights = WeightGradients(model, device)
        self._accumulating = False
        self._sources: list[torch.cuda.Stream] = []  # several where a network has branches
        self._kept: list[object] = []

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """For the forward pass; does nothing unless a graph is being recorded."""
        with ExitStack() as stack:
            if is_capturing(self._device):
                turned = self.turned.all()
                for module in self._model.modules():
                    if _is_plain(module):
                        conv = cast("nn.Conv2d", module)
                        own = turned.get(conv)
                        conv.forward = partial(_forward, conv, self, own)  # type: ignore[method-assign]
                        stack.callback(conv.__dict__.pop, "forward")
            elif self._device.type == "cuda":
                self.turned.prepare()
                stack.enter_context(self._weights.prepared())
            yield
            self.turned.join()

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss to ``.grad`` of all parameters."""
        if not is_capturing(self._device):
            loss.backward()
            return
        self._accumulating = True
        try:
            loss.backward()
            for job in self._weights.left():
                self._accumulate_beside(job)
            if self._kept:  # else it is no part of the graph
                current = torch.cuda.current_stream(self._device)
                current.wait_stream(_stream(self._device))
        finally:
            self._accumulating = False
            self._sources.clear()
            self._kept.clear()

    @property
    def accumulating(self) -> bool:
        """Whether the backward pass that runs now is one of :meth:`backward`."""
        return self._accumulating

    def accumulate(self, conv: nn.Conv2d, x: Tensor, g: Tensor, alone: Job) -> None:
        """Add gradients of weight and bias to ``.grad``, beside the current stream.

        Args:
            conv: Whose they are.
            x: What went in.
            g: The gradient at what came out.
            alone: Makes them by themselves, if they are not made with those of other layers.
        """
        current = torch.cuda.current_stream(self._device)
        if current not in self._sources:
            self._sources.append(current)
        for job in self._weights.add(conv, x, g, alone):
            self._accumulate_beside(job)

    def _accumulate_beside(self, job: Job) -> None:
        self._kept.append(job)  # and with it what it reads
        lane = _stream(self._device)
        for source in self._sources:
            lane.wait_stream(source)
        with torch.cuda.stream(lane):
            for parameter, gradient in job():
                if parameter.is_contiguous():  # of one pixel: strides as of the parameter too
                    gradient = gradient.reshape(-1).view_as(parameter)
                if parameter.grad is None:
                    parameter.grad = gradient
                else:
                    parameter.grad.add_(gradient)


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=BESIDE)


def _is_plain(module: nn.Module) -> bool:
    return (
        type(module) is nn.Conv2d
        and "forward" not in module.__dict__
        and isinstance(module.padding, tuple)
        and module.padding_mode == "zeros"
    )


@dataclass(frozen=True, eq=False)
class _Turned:
    """A kernel turned around, and of which weight: there may be others in its place for a while."""

    kernel: Tensor
    weight: Tensor
    version: int

    def is_of(self, weight: Tensor) -> bool:
        """Whether it is that of a weight as this is now."""
        return weight is self.weight and weight._version == self.version


class _TurnedKernels:
    """Kernels turned around by both axes, with inputs and outputs exchanged.

    Args:
        model: Whose: of all convolutions with stride 1.
        device: Where it is.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._device = device
        self._convs = [cast("nn.Conv2d", m) for m in model.modules() if can_turn(m)]
        self._places: Tensor | None = None
        self._stream: torch.cuda.Stream | None = None

    def prepare(self) -> Tensor:
        """Where each of their numbers is found: a table that cannot be made while recording."""
        if self._places is None:
            found, start = [], 0
            for conv in self._convs:
                weight = conv.weight
                places = torch.arange(start, start + weight.numel(), dtype=torch.int32)
                turned = places.as_strided(weight.shape, weight.stride()).flip(2, 3)
                found.append(in_memory(turned.transpose(0, 1), like=weight).flatten())
                start += weight.numel()
            self._places = torch.cat(found).to(self._device) if found else torch.empty(0)
        return self._places

    def all(self) -> dict[nn.Module, _Turned]:
        """What they are now, on a stream beside the current one."""
        if not self._convs:
            return {}
        weights, places = [conv.weight.detach() for conv in self._convs], self.prepare()
        self._stream = _stream(self._device)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            flat = torch.cat([in_memory(w).reshape(-1) for w in weights])
            parts = flat.index_select(0, places).split([w.numel() for w in weights])
        return {
            conv: _Turned(_shaped(part, conv.weight), conv.weight, conv.weight._version)
            for conv, part in zip(self._convs, parts, strict=True)
        }

    def join(self) -> None:
        """Let the current stream wait for them."""
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
            self._stream = None


def _shaped(flat: Tensor, weight: Tensor) -> Tensor:
    """A turned kernel from its numbers as they lie in memory, as those of the weight do."""
    outputs, inputs, *side = weight.shape
    if lies_by_pixel(weight):
        return flat.view(inputs, *side, outputs).permute(0, 3, 1, 2)
    return flat.view(inputs, outputs, *side)


def _forward(
    conv: nn.Conv2d, recorded: RecordedBackward, turned: _Turned | None, x: Tensor
) -> Tensor:
    apply = cast("Callable[..., Tensor]", _Convolution.apply)
    kernel = None if turned is None or not turned.is_of(conv.weight) else turned.kernel
    return apply(x, conv.weight, conv.bias, kernel, conv, recorded)


class _Convolution(torch.autograd.Function):
    """A convolution that hands over the gradients of its weight and bias."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        turned: Tensor | None,
        conv: nn.Conv2d,
        recorded: RecordedBackward,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, turned)
        ctx.conv, ctx.recorded = conv, recorded
        return conv._conv_forward(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, turned = ctx.saved_tensors
        conv, recorded = ctx.conv, ctx.recorded
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad[:3]

        def gradients(*mask: bool) -> tuple[Tensor | None, ...]:
            sizes = None if conv.bias is None else [weight.shape[0]]
            geometry = conv.stride, conv.padding, conv.dilation, False, [0, 0], conv.groups
            result = torch.ops.aten.convolution_backward(g, x, weight, sizes, *geometry, mask)
            return cast("tuple[Tensor | None, ...]", result)

        gx = None
        if wants_x and turned is not None:
            recorded.turned.join()
            gx = input_gradient(g, turned, conv.padding)
        elif wants_x:
            gx = gradients(True, False, False)[0]
        gw = gb = None
        if (wants_weight or wants_bias) and not is_pulling_back():
            of_weights = partial(gradients, False, wants_weight, wants_bias)
            if recorded.accumulating:
                recorded.accumulate(conv, x, g, partial(_of_layer, conv, of_weights))
            else:
                _, gw, gb = of_weights()
        return gx, gw, gb, None, None, None


def _of_layer(conv: nn.Conv2d, gradients: Callable[[], tuple[Tensor | None, ...]]) -> Gradients:
    """Parameters of a layer with the gradients that there are."""
    _, *found = gradients()
    pairs = zip((conv.weight, conv.bias), found, strict=True)
    return [(p, g) for p, g in pairs if p is not None and g is not None]

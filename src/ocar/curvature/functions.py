"""The inputs of functions such as ``functional.linear`` during a forward pass.

The input of a module is not always the input of its weight. A convolution may pad inside its own
``forward``, attention has three projections, an LSTM is one function, and positions are a parameter
that is added. For such weights :class:`Functions` watches every function of PyTorch that is called
with the weight. It emits the input of each function that it knows.

A weight with an unknown use has no curvature, because a part of its gradient would be missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ocar import accel
from ocar.curvature import recurrent
from ocar.curvature.layers import AddedLayer, EmbeddingLayer, Layer, MatrixLayer, ReversedLayer, Use

Emit = Callable[[str, Tensor, Tensor, Use], None]
"""Takes the name of a layer, an input, the output, and how the weight was used."""

_CONVOLVED = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups")
_ARGUMENTS: dict[Any, tuple[str, ...]] = {
    functional.linear: ("input", "weight", "bias"),
    torch.addmm: ("bias", "input", "weight"),
    functional.conv1d: _CONVOLVED,
    functional.conv2d: _CONVOLVED,
    functional.conv_transpose1d: (*_TRANSPOSED, "dilation"),
    functional.conv_transpose2d: (*_TRANSPOSED, "dilation"),
    functional.embedding: ("input", "weight"),
    functional.layer_norm: ("input", "normalized_shape", "weight", "bias"),
    functional.group_norm: ("input", "num_groups", "weight", "bias"),
    functional.batch_norm: ("input", "running_mean", "running_var", "weight", "bias"),
}
"""The names of the arguments of the functions that multiply with a weight."""

_DEFAULTS = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, "output_padding": 0}
_ADDITIONS = {torch.add, Tensor.add, Tensor.add_}
_REPETITIONS = {Tensor.expand, Tensor.expand_as, Tensor.repeat, torch.broadcast_to}
_VIEWS = {Tensor.__getitem__, Tensor.unsqueeze, torch.unsqueeze, Tensor.view, Tensor.reshape}
_SPLITS = {Tensor.split, Tensor.chunk, torch.split, torch.chunk}


def _seen_through(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of PyTorch whose inner calls a mode sees; otherwise it sees the outer one only."""
    plain = cast("FunctionType", function)
    names = {**plain.__globals__, "has_torch_function": lambda tensors: False}
    return FunctionType(plain.__code__, names, plain.__name__, plain.__defaults__)


_attend = _seen_through(functional.multi_head_attention_forward)


@dataclass(eq=False)
class _Followed:
    """A tensor that is a weight, a bias, or made of one."""

    tensor: Tensor  # so that its id stays its own
    layer: Layer
    rows: slice | None = None  # of the weight; None for all
    indices: Tensor | None = None  # of an embedding's output that may be added to all samples
    is_bias: bool = False
    added: bool = False
    used_otherwise: bool = False
    whole: _Followed | None = None  # what a view is of

    @property
    def origin(self) -> _Followed:
        """Itself, or what it is a view of."""
        return self.whole or self


class Functions(TorchFunctionMode):
    """Emits what functions are given together with the weights of some layers.

    Args:
        layers: The layers by name.
        emit: Called for every use of a weight.
        retract: Called with the name of a layer and the output of its last use, which another
            stands for.
    """

    def __init__(
        self, layers: Mapping[str, Layer], *, emit: Emit, retract: Callable[[str, Tensor], None]
    ) -> None:
        super().__init__()
        self._emit, self._retract = emit, retract
        self._followed: dict[int, _Followed] = {}
        self.incomplete: set[str] = set()
        """Names of layers whose weights were used in a way that is not known."""
        self._samples = 0  # of the attention that is being computed
        for layer in layers.values():
            self._follow(_Followed(layer.weight, layer))
            if layer.bias is not None and isinstance(layer, MatrixLayer):
                self._follow(_Followed(layer.bias, layer, is_bias=True))

    def _follow(self, followed: _Followed) -> None:
        self._followed[id(followed.tensor)] = followed

    def __torch_function__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run a function, and see whether a weight is among its arguments."""
        kwargs = kwargs or {}
        if func is functional.multi_head_attention_forward:
            return self._see_attention(*args, **kwargs)
        if recurrent.is_written_out(func, args):
            with self:
                return recurrent.run(func, args)
        result = func(*args, **kwargs)
        found = [self._followed[id(t)] for t in _tensors(args, kwargs) if id(t) in self._followed]
        given = {**dict(zip(_ARGUMENTS.get(func, ()), args, strict=False)), **kwargs}
        for own in found:
            if func in _ARGUMENTS and own.tensor is given.get("weight"):
                self._see_product(own, func, given, result)
            elif own.is_bias and func in _ARGUMENTS and own.tensor is given.get("bias"):
                weight = self._followed.get(id(given.get("weight")))
                if (weight is None or weight.layer is not own.layer) and _has_gradient(result):
                    self._lose(own)
            elif func in _VIEWS and own.indices is not None and _has_same_rows(own.tensor, result):
                indices = own.indices.reshape(result.shape[:-1])
                self._follow(_Followed(result, own.layer, indices=indices, whole=own.origin))
            elif func in _SPLITS and own.rows is None and own.indices is None:
                self._see_split(own, result)
            else:
                self._see_other(own, func, kwargs, result)
        return result

    def _see_attention(self, query: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Samples are in the second dimension there; its own products are seen one by one."""
        before, self._samples = self._samples, query.shape[1] if query.dim() == 3 else 0
        try:
            with self:
                return _attend(query, *args, **kwargs)
        finally:
            self._samples = before

    def _see_product(
        self, own: _Followed, func: Any, given: Mapping[str, Any], result: Tensor
    ) -> None:
        """A weight was multiplied with an input."""
        layer, x = own.layer, given["input"]
        fits = own.indices is None and not isinstance(layer, AddedLayer)
        fits &= isinstance(layer, ReversedLayer) == (func is torch.addmm)
        fits &= given.get("alpha", 1) == given.get("beta", 1) == 1
        bias = given.get("bias")
        if isinstance(layer, MatrixLayer):
            used = None if bias is None else self._followed.get(id(bias))
            same = used is not None and used.layer is layer and used.rows == own.rows
            other = used is None or used.layer is not layer
            fits &= same or bias is None if layer.has_bias else other
        if not fits:
            self._lose(own)
            return
        use = replace(self._use(own, given), with_bias=bias is not None)
        self._emit(layer.name, x, result, use)
        common = isinstance(layer, EmbeddingLayer) and not x.is_floating_point()
        if common and (x.dim() == 1 or x.shape[0] == 1):
            self._follow(_Followed(result, layer, indices=x))

    def _use(self, own: _Followed, given: Mapping[str, Any]) -> Use:
        """How a weight was used."""
        weight, layer = own.layer.weight, own.layer
        if isinstance(layer, MatrixLayer) and not layer.is_linear:
            options, sides = {**_DEFAULTS, **given}, weight.dim() - 2
            names = ("stride", "padding", "dilation", "output_padding")
            sizes = {name: _each(options[name], sides) for name in names}
            return Use(accel.Geometry(weight, groups=options["groups"], **sizes))
        return Use(rows=own.rows, time_first=self._samples)

    def _see_split(self, own: _Followed, parts: Iterable[Tensor]) -> None:
        """Rows of a weight or bias have become tensors of their own."""
        start = 0
        for part in parts:
            if part.shape[1:] != own.tensor.shape[1:] or not isinstance(own.layer, MatrixLayer):
                self._lose(own)
                return
            rows = slice(start, start + len(part))
            self._follow(_Followed(part, own.layer, rows=rows, is_bias=own.is_bias))
            start = rows.stop

    def _see_other(self, own: _Followed, func: Any, kwargs: dict[str, Any], result: Any) -> None:
        """An addition to all samples, or something unknown."""
        if result is own.tensor or not _has_gradient(result):
            return
        if own.is_bias:
            self._lose(own)
            return
        repeated = func in _REPETITIONS and isinstance(own.layer, AddedLayer)
        is_sum = func in _ADDITIONS and kwargs.get("alpha", 1) == 1
        origin = own.origin
        if isinstance(own.layer, AddedLayer) and (repeated or is_sum):
            if _is_for_all(own.tensor, result, exact=repeated):
                self._emit(own.layer.name, result, result, Use())
            else:
                self._lose(own)
        elif own.indices is not None and is_sum and _is_repeated(own.tensor, result):
            if not origin.added:
                self._retract(own.layer.name, origin.tensor)
            origin.added = True
            indices = own.indices.reshape(own.tensor.shape[:-1]).expand(result.shape[:-1])
            self._emit(own.layer.name, indices, result, Use())
        elif own.indices is None:
            self._lose(own)
        else:
            origin.used_otherwise = True
        if origin.added and origin.used_otherwise:
            self._lose(own)

    def _lose(self, own: _Followed) -> None:
        self.incomplete.add(own.layer.name)


def _tensors(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """The tensors among arguments, also those in a list."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (item for item in value if isinstance(item, Tensor))


def _has_gradient(result: Any) -> bool:
    results = result if isinstance(result, (list, tuple)) else (result,)
    return any(isinstance(one, Tensor) and one.requires_grad for one in results)


def _is_for_all(one: Tensor, result: Any, *, exact: bool) -> bool:
    """Whether a tensor is the same for all samples of a result, ``(n, ...)``.

    With ``exact`` it is repeated along no other dimension.
    """
    if not isinstance(result, Tensor) or result.shape[-1:] != one.shape[-1:]:
        return False
    size = (1,) * (result.dim() - one.dim()) + tuple(one.shape)
    return size[0] == 1 and (not exact or size[1:] == tuple(result.shape[1:]))


def _is_repeated(one: Tensor, result: Any) -> bool:
    """Whether a tensor ``(..., d)`` is broadcast in a sum ``(..., d)``."""
    return (
        isinstance(result, Tensor)
        and result.shape[-1:] == one.shape[-1:]
        and result.shape[:-1].numel() > one.shape[:-1].numel()
    )


def _has_same_rows(one: Tensor, view: Any) -> bool:
    """Whether a view has all rows ``(..., d)`` of a tensor, in their order."""
    return (
        isinstance(view, Tensor)
        and view.shape[-1:] == one.shape[-1:]
        and view.numel() == one.numel()
        and view._base is (one if one._base is None else one._base)
        and view.is_contiguous()
        and one.is_contiguous()  # then of the same numbers they are in the same order
    )


def _each(value: int | Iterable[int] | str, sides: int) -> Any:
    """One number for each side; a text stays."""
    if isinstance(value, str):
        return value
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * sides if len(values) == 1 else values

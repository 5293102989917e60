"""Samples of a model with one input, or with several.

A batch of n samples is one tensor ``(n, ...)``, or a :class:`Structure` of tensors ``(n, ...)``:
the parts of a tuple, given to the model as ``model(*parts)``, or of a dictionary, given as
``model(**parts)``. A structure is used like a tensor: it has a length, rows, pieces and a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ocar.errors import InputError

T = TypeVar("T")

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Floating-point types of samples and features."""

TYPES = (
    *(torch.uint8, torch.bool, torch.int8, torch.int16, torch.int32, torch.int64),
    *FLOATS,
)
"""Types of samples."""

PADDING = "Sequences must all have one length: pad or cut them."


class Structure:
    """n samples of several parts, each a tensor ``(n, ...)``.

    Args:
        parts: Tensors of equal length by name. The names of a tuple's parts are "0", "1", ...;
            those of a dictionary are identifiers.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Mapping[str, Tensor]) -> None:
        self.parts = dict(parts)

    def __len__(self) -> int:
        return len(next(iter(self.parts.values())))

    def __repr__(self) -> str:
        return describe(self)

    @property
    def given(self) -> tuple[Tensor, ...] | dict[str, Tensor]:
        """The tuple or the dictionary."""
        return tuple(self.parts.values()) if "0" in self.parts else dict(self.parts)

    @property
    def device(self) -> torch.device:
        """Where the first part is."""
        return next(iter(self.parts.values())).device

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.nbytes for part in self.parts.values())

    def map(self, function: Callable[[Tensor], Tensor]) -> Structure:
        """The structure with a function applied to each part."""
        return Structure({name: function(part) for name, part in self.parts.items()})

    def __getitem__(self, rows: slice | Tensor) -> Structure:
        """Some rows: a slice, indices or a mask."""
        return self.map(lambda part: part[rows])

    def split(self, size: int) -> list[Structure]:
        """Pieces of at most ``size`` rows, at least one."""
        return [self[i : i + size] for i in range(0, max(1, len(self)), size)]

    def to(self, *args: Any, **options: Any) -> Structure:
        """As ``Tensor.to``, for each part."""
        return self.map(lambda part: part.to(*args, **options))

    def clone(self) -> Structure:
        """A copy."""
        return self.map(torch.clone)


Inputs: TypeAlias = Tensor | Structure
"""A batch of samples, or of inputs of a model."""

Given: TypeAlias = Any
"""Samples as a user gives them: a tensor, an array, or a tuple or dictionary of these."""


def as_inputs(x: Given) -> Inputs:
    """Samples as tensors: arrays are converted, tuples and dictionaries become structures.

    Raises:
        InputError: x is something else, its parts are not equally long, or a name is none.
    """
    if isinstance(x, Structure):
        return x
    if isinstance(x, (Tensor, np.ndarray)):
        return as_tensor(x, "x")
    named: Iterable[tuple[Any, Any]]
    if isinstance(x, Mapping):
        if bad := [name for name in x if not (isinstance(name, str) and name.isidentifier())]:
            raise InputError(
                f"Invalid name {bad[0]!r} in x. A dictionary is given to the model by keyword, "
                "model(**x), so its keys must be identifiers."
            )
        named = sorted(x.items())
    elif isinstance(x, (tuple, list)) and (not x or _has_tensor(x)):
        named = ((str(place), part) for place, part in enumerate(x))
    else:
        raise InputError(
            "x must be a tensor or an array (n, ...) of samples, or a tuple or dictionary of "
            f"these; given {type(x).__name__}."
        )
    parts = {name: as_tensor(part, named_part(name)) for name, part in named}
    if not parts:
        raise InputError(f"x must have at least one part; given an empty {type(x).__name__}.")
    lengths = {name: part.shape[:1] for name, part in parts.items()}
    if len(set(lengths.values())) > 1 or () in lengths.values():
        shapes = ", ".join(f"{named_part(n)} {tuple(p.shape)}" for n, p in parts.items())
        raise InputError(
            f"The parts of x must have the same number of samples, (n, ...); given {shapes}."
        )
    return Structure(parts)


def _has_tensor(parts: Iterable[Any]) -> bool:
    return any(isinstance(part, (Tensor, np.ndarray)) for part in parts)


def as_samples(x: Any) -> Inputs:
    """As :func:`as_inputs`, and nested lists of numbers are converted too.

    A list is a tuple of parts, as a ``DataLoader`` gives them, if it is one of batched tensors.
    """
    parts = True
    if isinstance(x, list):
        parts = bool(x) and all(isinstance(part, Tensor) and part.ndim for part in x)
    elif isinstance(x, tuple):
        parts = _has_tensor(x)
    return as_inputs(x) if parts else torch.as_tensor(x)


def as_tensor(value: Any, name: str) -> Tensor:
    """A tensor, or an array as one.

    Raises:
        InputError: It is something else, not dense, or of a type that tensors do not have.
    """
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_nested:
            kind = "a nested tensor" if value.is_nested else str(value.layout)
            raise InputError(f"{name} must be a dense tensor; given {kind}.")
        return value
    if not isinstance(value, np.ndarray):
        kind = type(value).__name__
        raise InputError(f"{name} must be a tensor or an array (n, ...); given {kind}. {PADDING}")
    if isinstance(value, np.ma.MaskedArray):
        raise InputError(
            f"{name} must have no mask, which would be lost; given a masked array. Fill it: "
            "array.filled(0)."
        )
    try:
        # A copy where torch cannot share: negative strides, another byte order, read only.
        shared = (
            value.flags.writeable and value.dtype.isnative and min(value.strides, default=0) >= 0
        )
        return torch.from_numpy(value if shared else value.astype(value.dtype.newbyteorder("=")))
    except TypeError as error:
        padding = f" {PADDING}" if value.dtype == object else ""
        raise InputError(f"{name} must hold numbers; given {value.dtype}.{padding}") from error


def as_targets(y: Given, dtype: torch.dtype) -> Tensor:
    """Labels or targets as a tensor; floating-point arrays, which numpy makes float64, as a type.

    Raises:
        InputError: They are no tensor and no array.
    """
    if not isinstance(y, (Tensor, np.ndarray)):
        raise InputError(
            "y must be a tensor or an array of labels (n,), or of targets (n, outputs); given "
            f"{type(y).__name__}."
        )
    found = as_tensor(y, "y")
    given = isinstance(y, Tensor) or not found.is_floating_point()
    return found if given else found.to(dtype)


def parts_of(x: Inputs) -> dict[str, Tensor]:
    """The parts by name; a tensor is one part, named ""."""
    return x.parts if isinstance(x, Structure) else {"": x}


def from_parts(parts: Mapping[str, Tensor]) -> Inputs:
    """What :func:`parts_of` was given."""
    return parts[""] if "" in parts else Structure(parts)


def with_name(name: str, x: Mapping[str, T]) -> dict[str, T]:
    """Parts of x as columns of a table: ``x`` for a tensor, ``x.ids`` for a part."""
    return {f"{name}.{part}" if part else name: value for part, value in x.items()}


def without_name(name: str, columns: Mapping[str, T]) -> dict[str, T]:
    """The parts of x among columns."""
    found = {key: value for key, value in columns.items() if key.partition(".")[0] == name}
    return {key.removeprefix(name).removeprefix("."): value for key, value in found.items()}


def one_tensor(x: Inputs) -> Tensor:
    """Samples that are known to be one tensor, as in a method that takes no others."""
    assert isinstance(x, Tensor)
    return x


def apply(function: Callable[[Tensor], Tensor], x: Inputs) -> Inputs:
    """A function applied to a tensor, or to each part of a structure."""
    return x.map(function) if isinstance(x, Structure) else function(x)


def apply_whole(function: Callable[..., Any], x: Inputs, *others: object) -> Inputs:
    """A user's function applied to what the user gave: the tensor, the tuple or the dictionary."""
    if isinstance(x, Structure):
        return as_inputs(function(x.given, *others))
    changed: Tensor = function(x, *others)
    return changed


def cat(batches: Sequence[Inputs]) -> Inputs:
    """All rows of some batches of one structure, one batch after another."""
    if isinstance(batches[0], Tensor):
        return torch.cat([b for b in batches if isinstance(b, Tensor)])
    return Structure(
        {name: torch.cat([parts_of(b)[name] for b in batches]) for name in batches[0].parts}
    )


def equal(one: Inputs, other: Inputs) -> bool:
    """Whether two batches have the same parts and the same numbers."""
    mine, theirs = parts_of(one), parts_of(other)
    return mine.keys() == theirs.keys() and all(torch.equal(mine[n], theirs[n]) for n in mine)


def arguments(x: Inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """The positional and the keyword arguments of a model for its inputs."""
    if isinstance(x, Tensor):
        return (x,), {}
    given = x.given
    return ((), given) if isinstance(given, dict) else (given, {})


def first_input(inputs: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor:
    """The input of a layer, as a hook is given it: by place or by name."""
    found: Tensor = inputs[0] if inputs else next(iter(named.values()))
    return found


def call(model: Callable[..., Any], x: Inputs) -> Tensor:
    """What a model returns for its inputs."""
    args, named = arguments(x)
    outputs: Tensor = model(*args, **named)
    return outputs


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers of a model by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def call_with(model: nn.Module, tensors: Mapping[str, Tensor], x: Inputs) -> Tensor:
    """What a model returns for its inputs with other parameters and buffers.

    These have the names that ``named_parameters`` and ``named_buffers`` give.
    """
    # Names of functional_call's own ties would let a module that has two names keep the tensors.
    first: dict[int, str] = {}
    others = {}
    for prefix, module in model.named_modules():
        for name, tensor in chain(
            module.named_parameters(prefix, recurse=False, remove_duplicate=False),
            module.named_buffers(prefix, recurse=False, remove_duplicate=False),
        ):
            if (known := first.setdefault(id(tensor), name)) in tensors:
                others[name] = tensors[known]
    outputs: Tensor = torch.func.functional_call(model, others, *arguments(x), tie_weights=False)
    return outputs


Mirror = Literal["no", "instead", "too"]
"""Whether the last of two models sees mirror images instead of the images, or both see both."""


def call_each(
    models: Sequence[Callable[[Inputs], Tensor]], x: Inputs, *, mirror: Mirror = "no"
) -> Tensor:
    """Outputs of each model, ``(models, n, outputs)``; two of each with ``mirror="too"``.

    Only images ``(n, c, h, w)`` have a mirror image, and one model sees none.
    """
    views = [(model, x) for model in models]
    if mirror != "no" and len(models) > 1 and isinstance(x, Tensor) and x.dim() == 4:
        flipped = x.flip(-1)
        if mirror == "too":
            views = [(model, view) for model in models for view in (x, flipped)]
        else:
            views[-1] = models[-1], flipped
    parts = [model(view) for model, view in views]
    return parts[0][None] if len(parts) == 1 else torch.stack(parts)


def named_part(name: str) -> str:
    """A part in a message: x, x[0] or x['ids']."""
    return "x" if not name else f"x[{name}]" if name.isdigit() else f"x[{name!r}]"


def describe(x: Inputs) -> str:
    """Shapes of samples in a message."""
    if isinstance(x, Tensor):
        return str(tuple(x.shape))
    shown = ", ".join(f"{named_part(n)} {tuple(p.shape)} {p.dtype}" for n, p in x.parts.items())
    return f"Structure({shown})"

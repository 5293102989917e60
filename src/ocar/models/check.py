"""What is wrong with a model, found before it learns."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy

from ocar.errors import ModelError
from ocar.state import SAVED_TYPES, not_finite
from ocar.structure import Inputs, apply, call, named_tensors, parts_of

_SPREAD = (
    "is spread over devices or processes by {}. A learner works on one device: give the module "
    "that was wrapped. For several processes use ocar.Ranks."
)
_REFUSED = {
    "torch.nn.parallel.": _SPREAD,
    "torch.distributed.fsdp.": _SPREAD,
    "torch.distributed.tensor.": _SPREAD,
    "torch.jit.": "is compiled by TorchScript ({}), whose layers cannot be changed or copied. Give "
    "the module before torch.jit, and export the learner's model later.",
}
"""Why modules and tensors of PyTorch's packages cannot learn, with the name of their class."""
_RANDOM = (_DropoutNd, nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)


def check_model(model: nn.Module) -> nn.Parameter:
    """The first parameter that learns.

    Raises:
        ModelError: The model could not learn, or not be saved; nothing has changed.
    """
    kind = type(model).__name__
    given: object = model
    if not isinstance(given, nn.Module):
        what = f"the class {given.__name__}" if isinstance(given, type) else f"a {kind}"
        raise ModelError(f"A model must be an nn.Module, such as nn.Linear(4, 2); given {what}.")
    tensors = named_tensors(model)
    for name, part in (*model.named_modules(), *tensors.items()):
        for base, (package, reason) in product(type(part).__mro__, _REFUSED.items()):
            if base.__module__.startswith(package):
                where = f"{kind}, in {name!r}," if name else kind
                raise ModelError(f"{where} {reason.format(base.__name__)}")
    for name, tensor in tensors.items():
        if is_lazy(tensor):
            raise ModelError(
                f"{kind} is lazy: {name!r} has no shape yet. Run some samples through it first: "
                "model(x)."
            )
        if tensor.is_inference():
            raise ModelError(
                f"{kind} cannot learn: {name!r} was made inside torch.inference_mode(). Make the "
                "model outside, or give copy.deepcopy(model)."
            )
    devices = sorted({str(tensor.device) for tensor in tensors.values()})
    if len(devices) > 1 or "meta" in devices:
        raise ModelError(
            f"{kind} is on {' and '.join(devices)}. A learner works on one device that has memory: "
            "move the model with model.to(device)."
        )
    learning = next((p for p in model.parameters() if p.requires_grad), None)
    if learning is None:
        raise ModelError(
            f"{kind} has no parameter that requires a gradient; there is nothing to learn."
        )
    _check_saved(model)
    if broken := not_finite(dict(model.named_buffers())):
        raise ModelError(
            f"{kind} has NaN or Inf in {', '.join(broken)}, and a checkpoint refuses them. A mask "
            "can be a buffer of bool, or hold -1e9 in place of -Inf."
        )
    return learning


def _check_saved(model: nn.Module) -> None:
    """Raise if a checkpoint could not hold the model."""
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            found = f"a {type(value).__name__}, not a tensor"
        elif value.layout != torch.strided:
            found = f"of layout {value.layout}"
        elif value.dtype not in SAVED_TYPES:
            found = f"of type {value.dtype}"
        else:
            continue
        raise ModelError(
            f"{type(model).__name__} could not be saved: {name!r} is {found}. A checkpoint holds "
            "dense tensors of real numbers."
        )


@contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """Inside it a model may change its buffers; afterwards they are what they were."""
    before = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    try:
        yield
    finally:
        for module, name, buffer, values in before:
            module._buffers[name] = buffer
            buffer.data.copy_(values)


@torch.enable_grad()
def check_call(model: nn.Module, x: Inputs) -> None:
    """Raise a ``ModelError`` if a model cannot learn from inputs, which it takes.

    A model may change its inputs in place, as an activation at its front does, if the changed
    inputs have the same outputs: a learner uses inputs again.
    """
    if broken := not_finite(dict(model.named_parameters())):
        raise ModelError(f"{type(model).__name__} has NaN or Inf in {', '.join(broken)}.")
    x = apply(torch.clone, x)
    versions = [part._version for part in parts_of(x).values()]
    first = call(model, x)
    if not first.requires_grad:
        raise ModelError(
            f"The outputs of {type(model).__name__} have no gradient. Leave detach(), .data, "
            "numpy() and torch.no_grad() out of its forward pass."
        )
    if versions == [part._version for part in parts_of(x).values()]:
        return
    if not torch.equal(first, call(model, x)):
        raise ModelError(
            f"{type(model).__name__} changes its inputs in place, and a learner uses them again. "
            "Let forward() work on a copy, x = x.clone(), or set inplace=False."
        )


def hidden_buffers(model: nn.Module) -> dict[str, Tensor]:
    """The buffers that a model keeps out of its ``state_dict``, those that a file can hold."""
    saved = model.state_dict().keys()
    buffers = {n: b for n, b in model.named_buffers() if n not in saved}
    return {n: b for n, b in buffers.items() if b.dtype in SAVED_TYPES}


def may_draw(part: object) -> bool:
    """Whether a module or a function may draw from PyTorch's global generators.

    Code that is not PyTorch's or ours may do anything.
    """
    if isinstance(part, nn.Module):
        return any(map(_may_draw, part.modules()))
    return part is not None and not type(part).__module__.startswith("ocar.")


def _may_draw(module: nn.Module) -> bool:
    known = type(module).__module__.startswith(("torch.nn.modules.", "ocar."))
    changed = bool(module._forward_hooks or module._forward_pre_hooks)
    if not known or changed or "forward" in module.__dict__ or isinstance(module, _RANDOM):
        return True
    dropout = getattr(module, "dropout", 0.0)  # of attention and of recurrent layers
    return isinstance(dropout, (int, float)) and dropout > 0


def copy_model(model: nn.Module) -> nn.Module:
    """A copy with tensors of its own.

    Raises:
        ModelError: The model cannot be copied.
    """
    attributes = (value for module in model.modules() for value in vars(module).values())
    cached = (v for v in attributes if isinstance(v, Tensor) and not v.is_leaf)
    try:  # what a forward pass left in an attribute has a graph, which cannot be copied
        copied = copy.deepcopy(model, {id(value): value.detach().clone() for value in cached})
    except Exception as error:  # what a module's parts raise can be anything
        said = str(error).rstrip(".")
        raise ModelError(
            f"{type(model).__name__} cannot be copied: {said}. Of torch.nn.utils.weight_norm and "
            "spectral_norm use the form in torch.nn.utils.parametrizations."
        ) from error
    for mine, theirs in zip(copied.parameters(), model.parameters(), strict=True):
        for hook in (theirs._backward_hooks or {}).values():
            mine.register_hook(hook)
    return copied

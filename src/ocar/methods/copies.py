"""The model with other weights: after one more step, or of an earlier time."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ocar.models.head import set_data_
from ocar.structure import Inputs, call_with


class VirtualStep:
    """The model after a step of SGD, w − lr ∇L; the model itself does not change.

    Calls update copies of BatchNorm's running statistics, which are then dropped. The graph of the
    loss L, a scalar, is kept.
    """

    def __init__(self, model: nn.Module, loss: Tensor, *, lr: float) -> None:
        self.model = model
        trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        grads = torch.autograd.grad(
            loss, list(trainable.values()), retain_graph=True, allow_unused=True
        )
        moved = {
            name: p.detach() if grad is None else torch.sub(p.detach(), grad, alpha=lr)
            for (name, p), grad in zip(trainable.items(), grads, strict=True)
        }
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        self.tensors: dict[str, Tensor] = {**moved, **buffers}
        """Weights and buffers by name."""

    def __call__(self, x: Inputs) -> Tensor:
        """Outputs of the model with the weights after the step."""
        return call_with(self.model, self.tensors, x)


def fit_head_(layer: nn.Module, head: nn.Module) -> None:
    """Give a copy of the head the units that the head has now; new units get its weights."""
    for mine, theirs in zip(layer.parameters(), head.parameters(), strict=True):
        if mine.shape != theirs.shape:
            grown = theirs.detach().clone()
            grown[: mine.shape[0]] = mine
            set_data_(mine, grown)


@torch.no_grad()
def copy_values_(copied: nn.Module, model: nn.Module) -> None:
    """Copy all weights and buffers, in place."""
    weights = [p.detach() for p in model.parameters()]
    torch._foreach_copy_(list(copied.parameters()), weights)
    for mine, theirs in zip(copied.buffers(), model.buffers(), strict=True):
        mine.copy_(theirs)


def floating_buffers(model: nn.Module) -> list[Tensor]:
    """The buffers that a forward pass may change, such as BatchNorm's statistics."""
    return [buffer for buffer in model.buffers() if buffer.is_floating_point()]


def copy_modes_(copied: nn.Module, model: nn.Module, *, train: bool = True) -> None:
    """Put each module into the mode that it has in the model, or all into eval mode."""
    for mine, theirs in zip(copied.modules(), model.modules(), strict=True):
        mine.training = theirs.training and train


def mark_units(mask: Tensor, units: Iterable[int], *, like: Tensor) -> Tensor:
    """A mask of the shape of another that is true for some units: the given one, if it fits."""
    if mask.shape != like.shape:
        mask = torch.zeros_like(like)
    chosen = torch.tensor(list(units), dtype=torch.int64)
    return mask.zero_().index_fill_(0, chosen.to(mask.device, non_blocking=True), True)

"""A model after one more step, without taking the step."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class VirtualStep:
    """The model after a step of SGD, w − lr ∇L; the model itself does not change.

    Calls update copies of BatchNorm's running statistics, which are then dropped.

    Args:
        model: The model.
        loss: L, a scalar with its graph, which is kept.
        lr: Size of the step.
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

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs of the model with the weights after the step."""
        outputs: Tensor = torch.func.functional_call(self.model, self.tensors, (x,))
        return outputs

"""Experience replay with nothing around it: the floor of what a library can take.

It does the arithmetic of ER and no more: no checks, no growing head, no state to save, no report.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ocar.rng import make_generator


class BareReplay:
    """Replay from a full reservoir and plain SGD.

    Args:
        model: The model.
        x: What the memory holds, ``(memory, ...)`` uint8.
        y: The labels.
        lr: Learning rate.
        replay_batch: Replayed samples a step.
        passes: Steps a batch.
    """

    def __init__(
        self, model: nn.Module, x: Tensor, y: Tensor, *, lr: float, replay_batch: int, passes: int
    ) -> None:
        self.model = model.train()
        self.x = x.clone()
        self.y = y.clone()
        self.lr = lr
        self.replay_batch = replay_batch
        self.passes = passes
        self.seen = len(y)
        self._generator = make_generator(0, "memory")

    def learn(self, x: Tensor, y: Tensor) -> Tensor:
        """A few steps on new and replayed samples, then the new ones are offered to the memory.

        Args:
            x: Samples, ``(n, ...)`` uint8.
            y: Labels, ``(n,)``.

        Returns:
            The last loss.
        """
        parameters = list(self.model.parameters())
        for _ in range(self.passes):
            slots = torch.randperm(len(self.y), generator=self._generator)[: self.replay_batch]
            xs, ys = torch.cat([x, self.x[slots]]), torch.cat([y, self.y[slots]])
            for parameter in parameters:
                parameter.grad = None
            loss = functional.cross_entropy(self.model(xs.float().div_(255)), ys)
            loss.backward()
            with torch.no_grad():
                weights: list[Tensor] = list(parameters)
                grads = [p.grad for p in parameters if p.grad is not None]
                torch._foreach_add_(weights, grads, alpha=-self.lr)
        self._offer(x, y)
        return loss.detach()

    def _offer(self, x: Tensor, y: Tensor) -> None:
        """Vitter's algorithm R: a sample replaces the slot that it draws, if there is one."""
        places = self.seen + 1 + torch.arange(len(y))
        uniform = torch.rand(len(y), dtype=torch.float64, generator=self._generator)
        slots = (uniform * places).long()
        (rows,) = torch.nonzero(slots < len(self.y), as_tuple=True)
        if len(rows):
            self.x[slots[rows]], self.y[slots[rows]] = x[rows], y[rows]
        self.seen += len(y)

"""How much the steps on a batch have changed the predictions on its replayed samples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from ocar.accel.divergence import MeasuredResNet, measured
from ocar.accel.streams import Here, Lanes, beside
from ocar.methods.context import Context
from ocar.methods.objective import Step
from ocar.models.head import mask_logits


class Change:
    """Asks the model the same before the steps and after them.

    The answers before are those of the first forward pass, in train mode. BatchNorm's running
    statistics are left alone. A model that draws at random, which answers differently each time,
    is asked in eval mode.

    Args:
        context: The parts of the learner.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        modules = list(context.model.modules())
        self._asks_quietly = any(isinstance(m, _DropoutNd) for m in modules)
        self._coupled = any(isinstance(m, _BatchNorm) for m in modules)
        self._asked: tuple[Step, Tensor] | None = None
        self._asking: Lanes | Here = Here()
        self._in_few_kernels: MeasuredResNet | None = None
        self._looked = False

    def forget(self) -> None:
        """Drop what was asked."""
        self._asked = None

    def ask(self, step: Step, outputs: Tensor | None) -> None:
        """The first forward pass on a batch is done.

        Args:
            step: What it was on.
            outputs: What the model returned, if it was one pass over the joint batch.
        """
        if outputs is None or not step.replayed:
            return
        if self._asks_quietly:
            outputs = self._outputs(step)
        answers = outputs.detach()
        self._asking = beside(self.context.device)
        before = self._asking.start(1, lambda: self._predictions(step, answers), keep=answers)
        self._asked = step, before

    def divergence(self) -> Tensor | None:
        """The mean of :meth:`divergences`; None if nothing was asked."""
        divergences = self.divergences()
        return None if divergences is None else divergences.mean()

    @torch.no_grad()
    def divergences(self) -> Tensor | None:
        """KL(before ‖ after) in nats of each replayed sample; None if nothing was asked."""
        if self._asked is None:
            return None
        step, before = self._asked
        self._asking.join()
        found = self._measure(step, before)
        if found is not None:
            return found
        after = self._predictions(step, self._outputs(step))
        if step.active is None:
            return (after - before).square().sum(-1) / 2
        return (before.exp() * (before - after)).sum(-1)

    def _measure(self, step: Step, before: Tensor) -> Tensor | None:
        """The same in few kernels, if there are such for this model and these samples."""
        if step.active is None or self._asks_quietly:
            return None
        if not self._looked:
            self._in_few_kernels, self._looked = measured(self.context.model), True
        if self._in_few_kernels is None:
            return None
        return self._in_few_kernels.divergences(step.x, step.active, before)

    def _predictions(self, step: Step, outputs: Tensor) -> Tensor:
        """Log-probabilities of the replayed samples, or their outputs in a regression."""
        rows = outputs[-step.replayed :].float()
        if step.active is None:
            return rows
        return functional.log_softmax(mask_logits(rows, step.active), dim=-1)

    def _outputs(self, step: Step) -> Tensor:
        """The model's outputs now; of all the batch if its samples depend on each other."""
        model = self.context.model
        if self._asks_quietly:
            with self.context.evaluating():
                outputs = model(step.x[step.new :])
            return cast("Tensor", outputs)
        with torch.no_grad(), _statistics_kept(model):
            outputs = model(step.x if self._coupled else step.x[step.new :])
        return cast("Tensor", outputs)


@contextmanager
def _statistics_kept(model: nn.Module) -> Iterator[None]:
    """Inside it a BatchNorm layer in train mode leaves its running statistics alone."""
    tracking = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    for module in tracking:
        module.track_running_stats = False
    try:
        yield
    finally:
        for module in tracking:
            module.track_running_stats = True

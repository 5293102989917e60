"""A head in closed form: a ridge regression on the features of the memory.

A head that learns by gradient steps favours the classes of the last batches. With features f (the
inputs of the head, and a constant 1 if it has a bias) and one-hot labels y of the samples in the
memory, the head that minimises Σ_i w_i ‖W f_i − y_i‖² + λ ‖W‖² is

    W = C (A + λI)⁻¹,    A = Σ_i w_i f_i f_iᵀ,    C = Σ_i w_i y_i f_iᵀ.

Each class has the same weight, however many samples it has: w_i = 1 / (classes · samples of its
class). λ is ``DAMPING`` times the mean of A's diagonal. The logits are W f / ``TEMPERATURE``.

Only predictions use this head; the learned one learns as without it. It is solved for anew when a
prediction is asked after a batch, which takes a forward pass over the memory. An
:class:`ocar.Serving` asks each time it publishes: ``every`` makes that rarer.

W cannot replace the learned head if the model calls its head several times or with several rows a
sample, or changes what the head returns: by a factor, or by another order of the rows. Then the
learned head predicts. It also does where W is not finite.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from ocar import accel
from ocar.accel import linalg
from ocar.errors import ConfigError, ModelError
from ocar.methods.context import Context, with_inputs
from ocar.methods.objective import Objective
from ocar.models.head import GrowingHead
from ocar.models.modes import uncompiled
from ocar.structure import Inputs

DAMPING = 0.1
"""λ over the mean of A's diagonal, selected on split-digits, as the temperature is, see
``results/settings/closed-form-split-digits.json``."""

TEMPERATURE = 0.1
"""Divides the outputs of the regression, which are between 0 and 1 where it fits."""

CHUNK = 1000
"""Samples of the memory that go through the model at once."""

TOLERANCE = 1e-3
"""Largest difference between log probabilities of the model and of its head, as a share of the
largest logit and at least of 1. With 16-bit weights it is four units of rounding."""


class ClosedFormHead:
    """Weight and bias of the head for predictions, solved for on the memory.

    Args:
        context: The parts of a learner.
        head: Its output layer.
        needed: Whether a model that cannot have it is an error.

    Attributes:
        values: Weight and bias by their names in the model. They stay the same tensors until the
            head grows.
    """

    def __init__(self, context: Context, head: GrowingHead, *, needed: bool) -> None:
        self._context, self._head, self._needed = context, head, needed
        self.values: dict[str, Tensor] = {}
        self._made_of: object = None  # batches, memory and weights
        recorded = context.record and context.shared is None
        self._graph = accel.Graph(self._solve, device=context.device, enabled=recorded)

    @classmethod
    def make(cls, wanted: bool | None, context: Context, objective: Objective) -> Self | None:
        """The head that a setting asks for.

        Args:
            wanted: The setting; None for a head where the learner can have one.
            context: The parts of a learner.
            objective: Its loss.

        Raises:
            ConfigError: The head is wanted, and the learner has none that could be replaced.
        """
        if wanted is False:
            return None
        head, why = context.head, ""
        if head is None:
            why = "this is a regression"
        elif head.fixed:
            why = head.fixed
        elif objective.predicts:
            why = "the method predicts without the output layer"
        elif context.memory.sharded:
            why = "each rank has a part of the memory. Use Ranks(memory='replicated')"
        if wanted and why:
            raise ConfigError(f"Invalid closed_form_head=True. Must be None or False: {why}.")
        return None if why or head is None else cls(context, head, needed=bool(wanted))

    def try_model(self, x: Inputs) -> None:
        """Raise a ``ModelError`` if the head is needed, and the model cannot have it."""
        if self._needed and not bool(self._features(x)[1]):
            raise ModelError(
                f"The model changes the outputs of its output layer {self._head.name!r}, or their "
                "order. Must return them as they are for closed_form_head=True."
            )

    def _learned(self) -> list[Tensor]:
        """Weight and bias of the learned head."""
        layer = self._head.layer
        return [p for p in (layer.weight, layer.bias) if p is not None]

    def renew(self, batches: int) -> None:
        """Solve, unless nothing has changed since. The model must be in eval mode.

        ``batches`` says how many stream batches were given to the learner.
        """
        memory = self._context.memory
        now = batches, self._context.made_of()
        if self._made_of == now:
            return
        names = {id(p): name for name, p in self._context.model.named_parameters()}
        learned = {names[id(p)]: p.detach() for p in self._learned()}
        if [t.shape for t in self.values.values()] != [t.shape for t in learned.values()]:
            self._graph.forget()
            self.values = {name: torch.empty_like(t) for name, t in learned.items()}
        # While the memory fills up, each solution has a shape of its own.
        solve_all = self._graph if len(memory) == memory.capacity else self._solve
        with torch.autocast(self._context.device.type, enabled=False):
            solved = solve_all(memory.slots) if len(memory) else ()
        for value, found in zip(self.values.values(), solved or learned.values(), strict=True):
            value.copy_(found)
        self._made_of = now

    def _solve(self, slots: Tensor) -> tuple[Tensor, ...]:
        """Weight and bias, for the samples in all slots; nothing for the learned head."""
        memory, layer = self._context.memory, self._head.layer
        features, labels, same = [], [], []
        for part in slots.split(CHUNK):
            batch = memory.gather(part, check=False)
            try:
                found, as_they_are = self._features(self._context.normalize(batch.x))
            except ModelError:
                return ()
            features.append(found)
            labels.append(batch.y)
            same.append(as_they_are)
        rows = torch.cat(features)
        rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
        if layer.bias is not None:
            rows = functional.pad(rows, (0, 1), value=1.0)
        weights = solve(rows, torch.cat(labels), units=self._head.capacity) / TEMPERATURE
        weights = weights.to(layer.weight.dtype)
        good = torch.stack(same).all() & weights.isfinite().all()
        solved = (weights,) if layer.bias is None else (weights[:, :-1], weights[:, -1])
        pairs = zip(solved, self._learned(), strict=True)
        return tuple(torch.where(good, new, learned) for new, learned in pairs)

    def _features(self, x: Inputs) -> tuple[Tensor, Tensor]:
        """The inputs of the head, and whether the model returns its outputs, a scalar of bool.

        Raises:
            ModelError: It is not called once, with one row a sample.
        """
        layer = self._head.layer
        with uncompiled(self._context.model):
            features, outputs = with_inputs(layer, self._context.forward, x)
        if features.shape != (len(x), layer.in_features):
            raise ModelError(
                f"The output layer took inputs of {tuple(features.shape)} for {len(x)} samples. "
                "Must be one row (n, d) a sample for closed_form_head=True."
            )
        own = functional.linear(features, layer.weight, layer.bias)
        apart = (outputs.log_softmax(1) - own.log_softmax(1)).abs().max()
        share = max(TOLERANCE, 4 * torch.finfo(own.dtype).eps)
        return features, apart <= share * own.abs().max().clamp_min(1)

    def forget(self) -> None:
        """Solve anew for the next prediction, and drop what was recorded on a GPU."""
        self._made_of = None
        self._graph.forget()

    def release(self) -> None:
        """Give back the memory of what was recorded."""
        self._graph.release()

    def state_dict(self) -> Mapping[str, Tensor]:
        """Nothing: it is derived from weights and memory."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Let the next prediction solve for it."""
        self.forget()


def solve(features: Tensor, labels: Tensor, *, units: int, damping: float = DAMPING) -> Tensor:
    """The weights W of a ridge regression on one-hot labels, each class with the same weight.

    Args:
        features: Shape ``(n, d)``.
        labels: The unit of each sample, ``(n,)``.
        units: How many there are; units without samples get zeros.
        damping: λ over the mean of A's diagonal.

    Returns:
        Shape ``(units, d)``.
    """
    targets = (labels[:, None] == torch.arange(units, device=labels.device)).to(features.dtype)
    counts = targets.sum(0)
    weights = 1 / (counts.count_nonzero() * counts[labels])
    f, y = (weights.sqrt()[:, None] * rows for rows in (features, targets))
    ridge = damping * f.square().sum() / f.shape[1]
    ridge = ridge.clamp_min(torch.finfo(f.dtype).tiny)
    if len(f) < f.shape[1]:  # the same by the smaller matrix
        return y.T @ _inverse(f @ f.T, ridge) @ f
    return (f.T @ y).T @ _inverse(f.T @ f, ridge)


def _inverse(matrix: Tensor, ridge: Tensor) -> Tensor:
    """(matrix + ridge I)⁻¹."""
    return linalg.inverse(linalg.add_to_diagonal(matrix, ridge)[None])[0][0]

"""The full Fisher of all parameters together, for models of a few thousand parameters."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ocar import accel
from ocar.accel import linalg
from ocar.curvature.curvature import Curvature, at_step, full_precision
from ocar.curvature.fisher import FisherRoot, separate
from ocar.curvature.recorder import Recorder, pull_back
from ocar.errors import CheckpointError, ModelError

MAX_PARAMETERS = 20_000
"""Above this the matrix would take more than 3 GiB."""


@dataclass(eq=False, repr=False)
class DenseFisher(Curvature):
    """Preconditions gradients with (F + τI)⁻¹, F the averaged full Fisher.

    It has none of the approximations of :class:`~ocar.curvature.kfac.KFAC`, at a cost that only
    models of at most 20,000 parameters can bear. Samples are always independent (see
    :mod:`ocar.curvature.fisher`). An estimate after the model has grown is taken whole.
    """

    fisher: str | FisherRoot = field(default="exact", kw_only=True)
    """Root of the Fisher, see :mod:`ocar.curvature.fisher`."""

    def _start(self) -> None:
        super()._start()
        size = sum(p.numel() for p in self.parameters)
        if size > MAX_PARAMETERS:
            raise ModelError(
                f"{type(self.model).__name__} has {size:,} trainable parameters; the full Fisher "
                f"is for at most {MAX_PARAMETERS:,}. Use KFAC."
            )
        self.buffer = self._new_buffer()
        self._inverse: Tensor | None = None

    def _new_buffer(self) -> accel.FactorBuffer:
        size = sum(p.numel() for p in self.parameters)
        return accel.FactorBuffer({"model": (1, size, size)}, like=self.parameters[0].detach())

    @property
    def average(self) -> Tensor:
        """The averaged Fisher, ``(parameters, parameters)``."""
        return self.buffer.average("model")[0]

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The trainable parameters, in the order of the rows of the Fisher."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def record(self) -> AbstractContextManager[object]:
        """A context for the forward pass; nothing is hooked."""
        self._require_model()
        return Recorder({}, self.model)

    @full_precision
    def estimate(
        self,
        outputs: Tensor,
        *,
        weights: Tensor | None = None,
        targets: Tensor | None = None,
        active: Tensor | None = None,
    ) -> None:
        """The Fisher of a batch, 1/n Σ wᵢFᵢ."""
        if self.buffer.shapes != self._new_buffer().shapes:  # the model has grown
            self.buffer = self._new_buffer()
        columns = separate(self._columns(outputs, weights, targets, active))
        parameters = self.parameters
        gradients = pull_back(outputs, parameters, columns)
        scores = [
            columns.new_zeros(len(columns), p.numel()) if g is None else g.flatten(1)
            for p, g in zip(parameters, gradients, strict=True)
        ]
        score = torch.cat(scores, dim=1)
        torch.mm(score.mT, score / outputs.shape[0], out=self.buffer.estimate("model")[0])

    @full_precision
    def renew(self, damping: Tensor | float, ema: Tensor | float) -> None:
        """Average the Fisher and invert it."""
        estimate, average = self.buffer.estimate("model"), self.buffer.average("model")
        finite = estimate.diagonal(dim1=-2, dim2=-1).sum().isfinite()
        one = torch.ones((), dtype=torch.float64, device=self.device)
        rate = torch.where(self.buffer.counts[0] == 0, one, ema).to(average.dtype)
        average.lerp_(torch.where(finite, estimate, average), rate)
        self.buffer.counts += finite
        self.ok &= finite
        self._invert(damping)

    def _invert(self, damping: Tensor | float) -> None:
        average = self.buffer.average("model")
        inverse, failed = linalg.inverse(linalg.add_to_diagonal(average, damping))
        before = torch.zeros_like(inverse[0]) if self._inverse is None else self._inverse
        self._inverse = torch.where(failed, before, inverse[0])
        self._not_inverted += failed
        if accel.known(failed):
            self.buffer.derived["reason"] = linalg.not_invertible(
                average, damping, name="the model"
            )

    def _reason(self) -> str | None:
        reason: str | None = self.buffer.derived.pop("reason", None)
        return reason

    @full_precision
    def apply_(self) -> None:
        """Apply the inverse to all gradients, in place."""
        if self._inverse is None:
            return
        parameters = self.parameters
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        result = self._inverse @ torch.cat([grad.flatten() for grad in grads])
        parts = result.split([p.numel() for p in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter).clone()

    def tensors(self) -> list[Tensor]:
        """The average and its count."""
        return [self.buffer.averages, self.buffer.counts]

    def eigenvalues(self) -> dict[str, Tensor]:
        """Eigenvalues of the damped Fisher, ascending."""
        if not int(self.buffer.counts):
            return {}
        values, _ = linalg.eigen(self.buffer.average("model"), name="the model")
        return {"model": values[0] + at_step(self.damping, self.step)}

    def memory_usage(self) -> int:
        """Bytes of the Fisher and its inverse."""
        tensors = [self.buffer.averages, self.buffer.estimates]
        tensors += [] if self._inverse is None else [self._inverse]
        return sum(t.element_size() * t.numel() for t in tensors)

    def _averages(self) -> dict[str, Tensor]:
        if not int(self.buffer.counts):
            return {}
        return {"model": self.average, "count": self.buffer.counts[0]}

    def _load_averages(self, averages: Mapping[str, Tensor]) -> None:
        size = sum(p.numel() for p in self.parameters)
        given = {name: tuple(value.shape) for name, value in averages.items()}
        if given not in ({}, {"model": (size, size), "count": ()}):
            raise CheckpointError(
                f"The full Fisher needs one matrix of size {(size, size)}; "
                f"the checkpoint has {given}."
            )
        self.buffer = self._new_buffer()
        self._inverse = None
        if given:
            self.average.copy_(averages["model"])
            self.buffer.counts.fill_(int(averages["count"]))

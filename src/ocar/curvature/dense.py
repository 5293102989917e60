"""The full Fisher of all parameters together, for models of a few thousand parameters."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ocar.accel.streams import is_capturing
from ocar.curvature import linalg
from ocar.curvature.base import Curvature, LikelihoodName, Schedule, at_step, full_precision
from ocar.curvature.fisher import FisherRoot, separate
from ocar.curvature.recorder import Capture, pull_back
from ocar.errors import CheckpointError, ModelError, NumericalError

MAX_PARAMETERS = 20_000
"""Above this the matrix would take more than 3 GiB."""


class DenseFisher(Curvature):
    """Preconditions gradients with (F + τI)⁻¹, F the averaged full Fisher.

    It has the interface of :class:`~ocar.curvature.kfac.KFAC` and none of its
    approximations, at a cost that only tiny models can bear. Samples are always
    taken as independent (see :mod:`ocar.curvature.fisher`).

    Args:
        model: A module with at most 20,000 trainable parameters.
        damping: τ, a number or a function of the step.
        ema: Weight of a new estimate in the moving average, in (0, 1]. The first
            estimate is taken whole, and so is one after the model has grown.
        fisher: Root of the Fisher, see :mod:`ocar.curvature.fisher`.
        likelihood: ``"categorical"`` for logits, ``"gaussian"`` for regression.
        variance: σ² of a Gaussian likelihood.
        track_norms: Keep the ratio of gradient norms in ``norm_ratio``.
        seed: Seed of the random roots.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        damping: Schedule,
        ema: Schedule,
        fisher: str | FisherRoot = "exact",
        likelihood: LikelihoodName = "categorical",
        variance: float = 1.0,
        track_norms: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(
            model,
            damping=damping,
            ema=ema,
            fisher=fisher,
            likelihood=likelihood,
            variance=variance,
            track_norms=track_norms,
            seed=seed,
        )
        self.average: Tensor | None = None
        """The averaged Fisher, ``(parameters, parameters)``."""
        self._inverse: Tensor | None = None
        size = sum(p.numel() for p in self.parameters)
        if size > MAX_PARAMETERS:
            raise ModelError(
                f"{type(model).__name__} has {size:,} trainable parameters; the full Fisher is "
                f"for at most {MAX_PARAMETERS:,}. Use KFAC."
            )

    def __repr__(self) -> str:
        return (
            f"DenseFisher({type(self.model).__name__}, damping={self.damping!r}, "
            f"ema={self.ema!r}, fisher={str(self.fisher)!r}, likelihood={self.likelihood!r})"
        )

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The trainable parameters, in the order of the rows of the Fisher."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def capture(self) -> Capture:
        """A context manager, for the sake of the common interface: nothing is hooked."""
        return Capture({}, self.model)

    @full_precision
    def update(
        self,
        outputs: Tensor,
        *,
        weights: Tensor | None = None,
        targets: Tensor | None = None,
        active: Tensor | None = None,
        accepted: Tensor | None = None,
    ) -> None:
        """Take the Fisher of a batch, 1/n Σ wᵢFᵢ, into the moving average.

        Args:
            outputs: What the model returned, ``(n, outputs)``, with its graph.
            weights: One non-negative weight a sample, ``(n,)``; 1 by default.
            targets: The labels, needed by ``fisher="empirical"`` alone.
            active: Which outputs exist, ``(outputs,)`` of bool; all by default.
            accepted: A scalar of bool; where it is False the average stays as it is.

        Raises:
            NumericalError: The batch gives a curvature that is not finite.
        """
        if is_capturing(self._device):
            raise NotImplementedError("a full Fisher is looked at in every step")
        if accepted is not None and not accepted:
            return
        draws = self.generator.get_state()
        columns = separate(self._columns(outputs, weights, targets, active))
        parameters = self.parameters
        gradients = pull_back(outputs, parameters, columns)
        scores = [
            columns.new_zeros(len(columns), p.numel()) if g is None else g.flatten(1)
            for p, g in zip(parameters, gradients, strict=True)
        ]
        score = torch.cat(scores, dim=1)
        estimate = score.mT @ score / outputs.shape[0]
        if not bool(estimate.diagonal().sum().isfinite()):
            self.generator.set_state(draws)
            raise NumericalError("The Fisher of this batch is not finite. Nothing was changed.")
        if self.average is None or self.average.shape != estimate.shape:
            self.average = estimate
        else:
            self.average.lerp_(estimate, at_step(self.ema, self.step))
        self._stale = True

    def _invert(self, damping: float) -> None:
        assert self.average is not None
        self._inverse = linalg.damped_inverse(self.average[None], damping, name="the model")[0]

    def _rewrite_gradients(self) -> None:
        if self._inverse is None:
            return
        parameters = self.parameters
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        result = self._inverse @ torch.cat([grad.flatten() for grad in grads])
        parts = result.split([p.numel() for p in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter).clone()

    def eigenvalues(self) -> dict[str, Tensor]:
        """Eigenvalues of the damped Fisher, ascending."""
        if self.average is None:
            return {}
        values, _ = linalg.eigen(self.average[None], name="the model")
        return {"model": values[0] + at_step(self.damping, self.step)}

    def memory_usage(self) -> int:
        """Bytes of the Fisher and its inverse."""
        kept = [t for t in (self.average, self._inverse) if t is not None]
        return sum(t.element_size() * t.numel() for t in kept)

    def _averages(self) -> dict[str, Tensor]:
        return {} if self.average is None else {"model": self.average}

    def _load_averages(self, averages: Mapping[str, Tensor]) -> None:
        size = sum(p.numel() for p in self.parameters)
        fisher = averages.get("model")
        if set(averages) - {"model"} or (fisher is not None and fisher.shape != (size, size)):
            raise CheckpointError(
                f"The full Fisher needs one matrix of size {(size, size)}; "
                f"the checkpoint has { ({k: tuple(v.shape) for k, v in averages.items()}) }."
            )
        self.average = None if fisher is None else fisher.to(self._device, copy=True)
        self._inverse = None

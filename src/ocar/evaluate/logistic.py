"""Multinomial logistic regression of standardised features, as scikit-learn fits it.

    min over W, b of   1/n Σ_i CE(W z_i + b, y_i) + 1/(2 C n) ‖W‖²,

z the standardised features ``(n, d)``, W ``(classes, d)``, b ``(classes,)``: the objective of
``LogisticRegression`` after ``StandardScaler``, minimised by full-batch L-BFGS. It is our own code
because it runs on the features' device, and because the core does without scikit-learn.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ocar.errors import ConfigError, InputError


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearProbe:
    """A linear classifier of standardised features."""

    weight: Tensor  #: W, ``(classes, d)``.
    bias: Tensor  #: b, ``(classes,)``.
    mean: Tensor  #: Mean of each feature, ``(d,)``.
    scale: Tensor  #: Standard deviation of each feature, ``(d,)``; 1 for a constant one.
    classes: Tensor  #: The label of each row of ``weight``, ``(classes,)``, ascending.
    objective: float  #: The value reached.
    iterations: int  #: Iterations of L-BFGS.

    def predict(self, features: Tensor) -> Tensor:
        """Labels ``(n,)`` of features ``(n, d)``."""
        z = (features.to(self.weight) - self.mean) / self.scale
        return self.classes[torch.addmm(self.bias, z, self.weight.T).argmax(dim=1)]


def fit_probe(
    features: Tensor,
    y: Tensor,
    *,
    inverse_penalty: float = 1.0,
    max_iter: int = 200,
    tolerance: float = 1e-4,
) -> LinearProbe:
    """Fit a multinomial logistic regression by full-batch L-BFGS.

    Args:
        features: ``(n, d)``, floating point; the computation has their type and device.
        y: Labels ``(n,)``, int64, at least two different ones.
        inverse_penalty: C; the larger, the smaller the penalty of the weights.
        max_iter: Most iterations.
        tolerance: Stop when no component of the gradient is larger.
    """
    if features.dim() != 2 or y.shape != features.shape[:1] or not features.is_floating_point():
        raise InputError(
            f"Cannot fit features {tuple(features.shape)} of {features.dtype} to labels "
            f"{tuple(y.shape)}. Must be floating point (n, d) and (n,)."
        )
    if inverse_penalty <= 0 or max_iter < 1 or tolerance < 0:
        raise ConfigError(
            f"Invalid {inverse_penalty=}, {max_iter=}, {tolerance=}. Must be larger than 0, at "
            "least 1, at least 0."
        )
    classes, target = torch.unique(y.to(features.device), return_inverse=True)
    if len(classes) < 2:
        raise InputError(f"Cannot fit a classifier to {len(classes)} class. Must be 2 or more.")
    mean, scale = standardization(features)
    z = (features - mean) / scale
    penalty = 1 / (inverse_penalty * len(z))
    weight = torch.zeros(len(classes), z.shape[1], dtype=z.dtype, device=z.device)
    bias = torch.zeros(len(classes), dtype=z.dtype, device=z.device)
    optimizer = torch.optim.LBFGS(
        [weight.requires_grad_(), bias.requires_grad_()],
        max_iter=max_iter,
        max_eval=20 * max_iter,
        tolerance_grad=tolerance,
        tolerance_change=64 * torch.finfo(z.dtype).eps,
        history_size=10,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = logistic_objective(weight, bias, z, target, penalty=penalty)
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)
    iterations = int(optimizer.state[weight]["n_iter"])
    weight, bias = weight.detach(), bias.detach()
    return LinearProbe(
        weight=weight,
        bias=bias,
        mean=mean,
        scale=scale,
        classes=classes,
        objective=float(logistic_objective(weight, bias, z, target, penalty=penalty)),
        iterations=iterations,
    )


def logistic_objective(
    weight: Tensor, bias: Tensor, z: Tensor, y: Tensor, *, penalty: float
) -> Tensor:
    """Mean cross-entropy plus ``penalty / 2 · ‖W‖²``, a scalar; the bias is not penalised.

    ``y`` has rows of W, ``(n,)`` int64; ``penalty`` is 1 / (C n).
    """
    logits = torch.addmm(bias, z, weight.T)
    return functional.cross_entropy(logits, y) + penalty / 2 * weight.square().sum()


def standardization(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (ddof 0) of each feature of ``(n, d)``, ``(d,)`` each.

    The deviation of a constant is 1. Both are computed in double precision.
    """
    values = features.double()
    n, eps = len(values), torch.finfo(torch.float64).eps
    mean, variance = values.mean(dim=0), values.var(dim=0, correction=0)
    # A constant column has a variance of rounding errors.
    constant = variance <= n * eps * variance + (n * mean * eps) ** 2
    scale = torch.where(constant, 1.0, variance.sqrt())
    return mean.to(features.dtype), scale.to(features.dtype)

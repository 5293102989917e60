"""Detect samples of no known class by how unsure a learner is.

Two scores of a sample with the predicted probabilities p, higher where it is less known:

    predictive entropy −Σ p log p,   and   1 − max p (max-softmax).

Hendrycks and Gimpel, A Baseline for Detecting Misclassified and Out-of-Distribution Examples in
Neural Networks, ICLR 2017.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ocar.errors import InputError
from ocar.evaluate.measure import Predictor
from ocar.metrics.detection import auroc, false_positive_rate


@dataclass(frozen=True, kw_only=True)
class Detection:
    """How well one score tells unknown samples from known ones."""

    auroc: float  #: Area under the ROC curve.
    fpr95: float  #: Share of unknown samples accepted where 95 % of the known ones are.


def predictive_entropy(logits: Tensor) -> Tensor:
    """Entropy in nats of the predictions, ``(n, classes)`` to ``(n,)``."""
    log_p = logits.double().log_softmax(dim=1)
    return -(log_p.exp() * log_p).sum(dim=1)


def max_softmax(logits: Tensor) -> Tensor:
    """One minus the highest probability, ``(n, classes)`` to ``(n,)``."""
    return 1 - logits.double().softmax(dim=1).amax(dim=1)


SCORES = {"entropy": predictive_entropy, "max-softmax": max_softmax}
"""The scores by name."""


def detect_unknown(learner: Predictor, known: Tensor, unknown: Tensor) -> dict[str, Detection]:
    """How well a learner's uncertainty detects unknown samples, by the name of the score.

    Args:
        learner: Predicts logits of the classes seen so far; anything with ``predict``.
        known: Raw samples of classes that it has seen, ``(n, ...)``.
        unknown: Raw samples of no class, ``(m, ...)``.
    """
    if len(learner.classes) < 2:
        raise InputError(
            f"The learner knows {len(learner.classes)} classes. Must be 2 or more to be unsure."
        )
    with torch.no_grad():
        low, high = learner.predict(known).cpu(), learner.predict(unknown).cpu()
    return {
        name: Detection(
            auroc=auroc(score(low), score(high)),
            fpr95=false_positive_rate(score(low), score(high)),
        )
        for name, score in SCORES.items()
    }

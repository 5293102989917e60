"""Out-of-scope detection against scikit-learn and a direct count."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ocar
from ocar.errors import InputError
from ocar.evaluate import detect_unknown
from ocar.evaluate.unknown import max_softmax, predictive_entropy
from ocar.metrics import auroc, false_positive_rate

SCORES = st.lists(st.integers(0, 6), min_size=1, max_size=30)  # few values: many are equal


@settings(max_examples=100)
@given(known=SCORES, unknown=SCORES)
def test_auroc_is_that_of_scikit_learn(known: list[int], unknown: list[int]) -> None:
    sklearn_metrics = pytest.importorskip("sklearn.metrics")
    is_unknown = [0] * len(known) + [1] * len(unknown)
    expected = sklearn_metrics.roc_auc_score(is_unknown, known + unknown)
    assert auroc(known, unknown) == pytest.approx(expected, abs=1e-12)
    assert auroc(unknown, known) == pytest.approx(1 - expected, abs=1e-12)


@settings(max_examples=100)
@given(known=SCORES, unknown=SCORES, percent=st.integers(1, 100))
def test_false_positives_by_trying_each_threshold(
    known: list[int], unknown: list[int], percent: int
) -> None:
    enough = [t for t in sorted(known) if 100 * sum(k <= t for k in known) >= percent * len(known)]
    expected = sum(u <= enough[0] for u in unknown) / len(unknown)
    found = false_positive_rate(known, unknown, tpr=percent / 100)
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("bad", [[], [[1.0]], [1.0, float("nan")]])
def test_scores_are_checked(bad: list[float]) -> None:
    with pytest.raises(InputError, match="Invalid unknown scores"):
        auroc([1.0], bad)
    with pytest.raises(InputError, match="Invalid known scores"):
        false_positive_rate(bad, [1.0])
    with pytest.raises(InputError, match=r"Invalid tpr=0.0. Must be in \(0, 1\]"):
        false_positive_rate([1.0], [1.0], tpr=0.0)


def test_scores_of_known_predictions() -> None:
    p = torch.tensor([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]], dtype=torch.float64)
    entropy = predictive_entropy(p.clamp(min=1e-300).log())
    torch.testing.assert_close(entropy, torch.tensor([1.5 * np.log(2), 0.0]).double())
    torch.testing.assert_close(max_softmax(p.log()), torch.tensor([0.5, 0.0]).double())


def test_a_learner_is_unsure_of_what_lies_between_its_classes() -> None:
    generator = torch.Generator().manual_seed(0)
    learner = ocar.ER(torch.nn.Sequential(torch.nn.Linear(2, 4)), lr=0.1, memory=20, seed=0)
    with pytest.raises(InputError, match="The learner knows 0 classes"):
        detect_unknown(learner, torch.zeros(1, 2), torch.zeros(1, 2))
    centre = torch.tensor([[4.0, 0.0], [-4.0, 0.0]])
    for _ in range(40):
        y = torch.arange(10) % 2
        learner.learn(centre[y] + torch.randn(10, 2, generator=generator), y)
    known = centre.repeat(50, 1) + torch.randn(100, 2, generator=generator)
    between = torch.randn(100, 2, generator=generator) * torch.tensor([0.5, 1.0])
    found = detect_unknown(learner, known, between)
    assert set(found) == {"entropy", "max-softmax"}
    assert all(one.auroc > 0.9 and one.fpr95 < 0.5 for one in found.values())
    assert found["entropy"].auroc == pytest.approx(found["max-softmax"].auroc)  # of two classes
    same = detect_unknown(learner, known, known)
    assert same["entropy"].auroc == pytest.approx(0.5)

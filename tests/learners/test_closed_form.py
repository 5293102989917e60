"""The head that is solved for on the memory, against scikit-learn's ridge regression."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import Case, convnet, pictures
from tolerances import EXACT
from torch import Tensor, nn
from torch.testing import assert_close
from toys import RAW, assert_same, everything, mlp, seeded, vectors

import ocar
from ocar import closed_form
from ocar.closed_form import DAMPING, TEMPERATURE, solve
from ocar.errors import ConfigError, ModelError
from ocar.learner import Learner

CLOSED: dict[str, Any] = {"closed_form_head": True, "memory": 30, **RAW}
REGRESSION: dict[str, Any] = {"likelihood": "gaussian", "memory_kind": "reservoir", **CLOSED}


def ridge(features: Tensor, labels: Tensor, units: int) -> np.ndarray:
    """The same weights by another library; the samples of each class weigh one class's share."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    f, y = features.numpy(), np.eye(units)[labels.numpy()]
    counts = y.sum(0)
    weights = 1 / ((counts > 0).sum() * counts[labels.numpy()])
    damping = DAMPING * (weights[:, None] * f**2).sum() / f.shape[1]
    model = linear_model.Ridge(alpha=damping, fit_intercept=False, solver="cholesky")
    return model.fit(f, y, sample_weight=weights).coef_


def by_hand(learner: Learner, x: Tensor) -> Tensor:
    """Predictions of a learner with an MLP of two layers, one of them its head."""
    assert isinstance(learner.model, nn.Sequential)
    body = learner.model[:-1]
    memory, intake = learner.memory, learner.intake
    with torch.no_grad():
        stored, asked = (
            torch.cat([body(intake.normalize(s)), torch.ones(len(s), 1, dtype=s.dtype)], 1)
            for s in (memory.gather(memory.slots).x, x)
        )
    weights = torch.from_numpy(ridge(stored, memory.labels, learner.head.capacity))
    return (asked @ weights.T / TEMPERATURE)[:, : len(learner.classes)]


@pytest.mark.parametrize("samples", [5, 40])
def test_the_weights_are_those_of_a_ridge_regression(samples: int) -> None:
    """With fewer samples than features too, and with a unit that no sample has."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(samples, 12, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (samples,), generator=generator)
    labels[:2] = 3  # few samples of one class; unit 4 has none
    found = solve(features, labels, units=5)
    assert_close(found, torch.from_numpy(ridge(features, labels, 5)), **EXACT)
    assert not found[4].any()


def test_samples_without_features_give_a_head_of_zeros() -> None:
    found = solve(torch.zeros(4, 3), torch.tensor([0, 1, 0, 1]), units=2)
    assert torch.equal(found, torch.zeros(2, 3))


@pytest.mark.parametrize("method", ["er", "ocar"])
def test_predictions_by_hand_as_classes_and_the_head_grow(method: str) -> None:
    """And the learning does not change."""
    learner, without = (
        Case(method).make(mlp(2).double(), **{**CLOSED, "closed_form_head": closed})
        for closed in (True, False)
    )
    asked = next(iter(vectors(1, [0, 1])))[0].double()
    repeated = learner.predict_repeatedly(asked)
    for labels in ([0, 1], [2], [3, 4]):
        for x, y in vectors(2, labels):
            for each in (learner, without):
                each.learn(x.double(), y)
            expected = by_hand(learner, x.double())
            assert_close(learner.predict(x.double(), chunk=3), expected, **EXACT)
            assert_close(repeated(4, torch.clone), learner.predict(asked[:4]), **EXACT)
    for name, tensor in without.model.state_dict().items():
        assert torch.equal(learner.model.state_dict()[name], tensor)


def test_it_is_solved_for_once_a_batch_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    solved: list[int] = []

    def solve_and_count(features: Tensor, labels: Tensor, *, units: int) -> Tensor:
        solved.append(len(features))
        return solve(features, labels, units=units)

    monkeypatch.setattr(closed_form, "solve", solve_and_count)
    monkeypatch.setattr(closed_form, "CHUNK", 7)
    learner = ocar.ER(mlp().double(), lr=0.1, **CLOSED)
    stored = []
    for x, y in vectors(5, [0, 1, 2]):
        learner.learn(x.double(), y)
        stored.append(len(learner.memory))
        for _ in range(2):
            assert_close(learner.predict(x.double(), chunk=4), by_hand(learner, x.double()))
        learner.predict_repeatedly(x.double())(4, torch.clone)
    assert solved == stored
    serving = ocar.Serving(learner, every=2)
    for x, y in vectors(4, [0, 1, 2]):
        learner.learn(x.double(), y)
        serving.predict(x.double())
    assert len(solved) == 7


class Rows(nn.Module):
    """Its head sees two rows a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        rows: Tensor = self.head(x.unflatten(1, (2, 3)))
        return rows.mean(1)


class Twice(nn.Module):
    """It calls its head twice."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) + self.head(x.flip(1))


class SortsRows(Twice):
    """Its head sees the samples by length, as recurrent layers want them."""

    def forward(self, x: Tensor) -> Tensor:
        order = x[:, 0].argsort()
        return self.head(x[order])[order.argsort()]


class Scales(Twice):
    """It changes the outputs of its head."""

    def forward(self, x: Tensor) -> Tensor:
        return 3 * self.head(x)


CANNOT = {
    Rows: r"inputs of \(7, 2, 3\) for 7 samples. Must be one row",
    Twice: "called 2 times",
    SortsRows: "changes the outputs of its output layer 'head', or their order",
    Scales: "changes the outputs",
}


@pytest.mark.parametrize("model", CANNOT)
def test_a_model_that_cannot_have_it_is_refused_before_it_learns(model: type[nn.Module]) -> None:
    learner = ocar.ER(seeded(model), lr=0.1, **CLOSED)
    before = everything(learner)
    x, y = next(iter(vectors(1, [0, 1])))
    with pytest.raises(ModelError, match=CANNOT[model]):
        learner.learn(x, y)
    assert_same(everything(learner), before)


@pytest.mark.parametrize("model", [*CANNOT, lambda: mlp(4)])
def test_by_default_ocar_slow_has_it_where_it_is_possible(model: Any) -> None:
    possible = model not in CANNOT
    closed, without = (
        ocar.make_learner("ocar-slow", seeded(model), memory=30, **RAW, **given)
        for given in ({}, {"closed_form_head": False})
    )
    serving = ocar.Serving(closed)
    for x, y in vectors(4, [0, 1, 2]):
        for learner in (closed, without):
            learner.learn(x, y)
    assert torch.equal(closed.predict(x), without.predict(x)) != possible
    assert_close(serving.predict(x).logits, closed.predict(x))


def test_log_probabilities_are_outputs_of_the_head() -> None:
    plain, logs = mlp(2), nn.Sequential(mlp(2), nn.LogSoftmax(1))
    learners = [ocar.ER(model, lr=0.1, classes=[0, 1], **CLOSED) for model in (plain, logs)]
    for x, y in vectors(3, [0, 1]):
        for learner in learners:
            learner.learn(x, y)
    probabilities, same = (learner.predict_proba(x) for learner in learners)
    assert_close(same, probabilities)


def test_where_a_sample_has_infinite_features_the_learned_head_predicts() -> None:
    class Exp(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.exp()

    model = seeded(lambda: nn.Sequential(nn.Linear(6, 8), Exp(), nn.Linear(8, 4)))
    learner = ocar.ER(model, lr=1e-3, guard=None, **CLOSED)
    for x, y in vectors(2, [0, 1, 2]):
        learner.learn(x / 10, y)
    with torch.no_grad():
        learned = model.eval()(x / 10)[:, :3]
    assert not torch.allclose(learner.predict(x / 10), learned)
    learner.remember(1000 * x[:1], y[:1])
    assert_close(learner.predict(x / 10), learned)
    learner.forget(1000 * x[:1])
    assert not torch.allclose(learner.predict(x / 10), learned)


def test_it_is_the_same_in_inference_mode_and_under_autocast() -> None:
    """Whoever asks first, in whatever mode."""
    learner, same = (ocar.ER(mlp(2), lr=0.1, **CLOSED) for _ in range(2))
    for x, y in vectors(6, [0, 1, 2]):
        for each in (learner, same):
            each.learn(x, y)
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            learner.predict(x)
        assert torch.equal(learner.predict(x), same.predict(x))


def test_a_compiled_model_has_it_too() -> None:
    written, compiled = (
        ocar.ER(model, lr=0.1, **CLOSED)
        for model in (mlp(4), torch.compile(mlp(4), backend="eager"))
    )
    for x, y in vectors(3, [0, 1, 2]):
        for learner in (written, compiled):
            learner.learn(x, y)
            with torch.no_grad():
                learner.model.eval()(x)  # compiled without hooks
        assert_close(compiled.predict(x), written.predict(x))


def test_by_default_a_regression_goes_without() -> None:
    regression = {name: v for name, v in REGRESSION.items() if name != "closed_form_head"}
    learner = ocar.make_learner("ocar-slow", mlp(), **regression)
    for x, _ in vectors(3, [0, 1]):
        learner.learn(x, x[:, :4])
    assert learner.closed_form is None
    assert learner.predict(x).shape == (len(x), 4)


def test_it_follows_the_memory_and_a_restored_state(tmp_path: Path) -> None:
    """A batch that is remembered, samples that are forgotten, an earlier state."""
    learner = ocar.ER(mlp().double(), lr=0.1, **CLOSED)
    batches = [(x.double(), y) for labels in ([0, 1], [2, 3]) for x, y in vectors(2, labels)]
    for x, y in batches[:2]:
        learner.learn(x, y)
    serving = ocar.Serving(learner)
    learner.save(tmp_path / "file")
    early = learner.predict(x)
    learner.remember(*batches[2])
    assert_close(learner.predict(x), by_hand(learner, x), **EXACT)
    learner.forget(batches[2][0])
    learner.forget(label=1)
    assert_close(learner.predict(x), by_hand(learner, x), **EXACT)
    assert_close(serving.predict(x).logits, learner.predict(x), **EXACT)
    assert not learner.predict(x)[:, learner.classes.index(1)].any()
    for each in (ocar.load(tmp_path / "file", mlp().double()), copy.deepcopy(learner)):
        with_first = each.batches == 2 and 1 in each.memory.class_counts()
        assert_close(each.predict(x), early if with_first else learner.predict(x), **EXACT)
    learner.forget(label=0)
    learner.forget(label=2)
    learner.forget(label=3)
    assert len(learner.memory) == 0
    plain = ocar.ER(copy.deepcopy(learner.model), lr=0.1, classes=learner.classes, **RAW)
    assert_close(learner.predict(x), plain.predict(x), **EXACT)


@pytest.mark.parametrize("method", ["ocar-slow", "er", "der++"])
def test_with_slow_weights_it_is_served_saved_and_exported(method: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"prediction": "both", "augment": ocar.CropFlip(padding=1)}
    learner = Case(method).make(convnet(), closed_form_head=True, **settings)
    serving = ocar.Serving(learner)
    for labels in ([0, 1], [2, 3, 4]):
        for x, y in pictures(3, labels):
            learner.learn(x, y)
            assert_close(serving.predict(x, chunk=3).logits, learner.predict(x))
            repeated = learner.predict_repeatedly(x)
            assert_close(repeated(4, torch.clone), learner.predict(x)[:4])
    learned = copy.deepcopy(learner.model).eval()(learner.intake.normalize(x))
    assert not torch.allclose(
        learner.predict(x, prediction="plain"), learned[:, : len(learner.classes)]
    )
    learner.save(tmp_path / "file")
    assert torch.equal(ocar.load(tmp_path / "file", convnet()).predict(x), learner.predict(x))
    learner.export(tmp_path / "model.pt2", x=x)  # compares the predictions


def test_a_model_in_bfloat16_and_a_head_without_bias() -> None:
    def narrow() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4, bias=False))

    learner = ocar.ER(seeded(narrow).bfloat16(), lr=0.1, **CLOSED)
    for x, y in vectors(6, [0, 1, 2]):
        learner.learn(x.bfloat16(), y)
    units = torch.tensor([learner.classes.index(label) for label in y.tolist()])
    assert learner.predict(x.bfloat16()).dtype == torch.bfloat16
    assert (learner.predict(x.bfloat16()).argmax(1) == units).float().mean() > 0.8


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: ocar.OCAR(mlp(), **REGRESSION), "a regression"),
        (lambda: Case("scr").make(mlp(), closed_form_head=True), "predicts without the output"),
    ],
)
def test_what_cannot_be_is_said(make: Any, why: str) -> None:
    with pytest.raises(
        ConfigError, match=f"Invalid closed_form_head=True. Must be None or False: .*{why}"
    ):
        make()

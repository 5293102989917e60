"""scikit-learn's own checks, and what they do not look at."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import ocar
from ocar.errors import ConfigError, InputError
from ocar.integrations.sklearn import OnlineClassifier
from ocar.methods.registry import preset_settings


# Labels that say nothing about the samples can make a step that the guard shortens, and says so.
@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The guard has backed off from batches")
@parametrize_with_checks(
    [OnlineClassifier(), OnlineClassifier("er", settings={"lr": 0.1}, epochs=2)]
)
def test_estimator_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def iris() -> tuple[Any, Any]:
    data = load_iris()
    return StandardScaler().fit_transform(data.data), data.target_names[data.target]


def test_it_is_as_good_as_a_linear_model_on_iris() -> None:
    data = load_iris()
    model = make_pipeline(StandardScaler(), OnlineClassifier(epochs=3, random_state=0))
    assert cross_val_score(model, data.data, data.target, cv=3).mean() > 0.9


@pytest.mark.parametrize("preset", [None, "split-digits"])
def test_partial_fit_is_the_learner_on_the_same_batches(preset: str | None) -> None:
    x, names = iris()
    classifier = OnlineClassifier(random_state=3, preset=preset).partial_fit(x, names)
    ids = {name: i for i, name in enumerate(dict.fromkeys(names.tolist()))}
    seed = int(np.random.RandomState(3).randint(2**31 - 1))  # as scikit-learn does
    model = ocar.make_model("mlp", image_shape=(1, 1, 4), seed=seed).double()
    values = {} if preset is None else preset_settings(preset, "ocar")
    for name in ("normalize", "standardize", "augment", "n_new"):
        values.pop(name, None)
    learner = ocar.make_learner("ocar", model, seed=seed, **values)
    rows, y = torch.tensor(x), torch.tensor([ids[name] for name in names])
    for start in range(0, len(rows), 10):
        learner.learn(rows[start : start + 10], y[start : start + 10])
    expected = learner.predict(rows).softmax(1).numpy()
    assert classifier.classes_.tolist() == sorted(ids)
    columns = [ids[name] for name in classifier.classes_]
    np.testing.assert_array_equal(classifier.predict_proba(x), expected[:, columns])


def test_classes_grow_and_those_declared_wait() -> None:
    x, names = iris()
    classifier = OnlineClassifier(random_state=0)
    classifier.partial_fit(x[:50], names[:50], classes=["setosa", "another"])
    assert classifier.classes_.tolist() == ["another", "setosa"]
    np.testing.assert_array_equal(classifier.predict_proba(x[:2]), [[0, 1], [0, 1]])
    classifier.partial_fit(x[50:], names[50:])
    assert classifier.classes_.tolist() == ["another", "setosa", "versicolor", "virginica"]
    found = classifier.predict_proba(x)
    assert (found[:, 0] == 0).all()
    np.testing.assert_allclose(found.sum(1), 1)
    with pytest.raises(InputError, match="all be numbers, or all be strings"):
        classifier.partial_fit(x[:2], [0, 1])


def test_declared_classes_are_of_the_kind_of_the_labels() -> None:
    """Numbers beside texts would become texts. What is refused leaves nothing behind."""
    X, y = load_iris(return_X_y=True)
    classifier, other = (OnlineClassifier(random_state=0) for _ in range(2))
    with pytest.raises(InputError, match="Must all be numbers, or all be strings"):
        classifier.partial_fit(X[:, :2], y.astype(str), classes=[0, 1])
    for labels in (y, y + 1):
        for each in (classifier, other):
            each.partial_fit(X, y)
        with pytest.raises(InputError, match="Must all be numbers, or all be strings"):
            classifier.partial_fit(X, labels, classes=["setosa"])
        assert classifier.classes_.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(classifier.predict_proba(X), other.predict_proba(X))


def test_a_copy_goes_on_exactly() -> None:
    x, y = load_digits(return_X_y=True)
    x = x / 16
    classifier = OnlineClassifier(random_state=0).partial_fit(x[:200], y[:200])
    copies = [pickle.loads(pickle.dumps(classifier)), copy.deepcopy(classifier)]
    for each in (classifier, *copies):
        each.partial_fit(x[200:400], y[200:400])
    expected = classifier.predict_proba(x)
    for each in copies:
        np.testing.assert_array_equal(each.predict_proba(x), expected)


def test_fit_begins_again_and_random_state_decides() -> None:
    x, y = iris()
    first = OnlineClassifier(random_state=1).fit(x, y)
    again = OnlineClassifier(random_state=1).fit(x[:30], y[:30]).fit(x, y)
    other = OnlineClassifier(random_state=2).fit(x, y)
    np.testing.assert_array_equal(first.predict_proba(x), again.predict_proba(x))
    assert (first.predict_proba(x) != other.predict_proba(x)).any()


def test_a_model_and_settings_of_ones_own() -> None:
    def model(features: int) -> torch.nn.Module:
        return torch.nn.Linear(features, 2)

    x, y = iris()
    classifier = OnlineClassifier("er", model=model, settings={"lr": 0.1})
    assert clone(classifier).get_params()["settings"] == {"lr": 0.1}
    assert classifier.fit(x, y).score(x, y) > 0.7
    more = OnlineClassifier("er", model=model, settings={"lr": 0.1, "classes": range(5)}).fit(x, y)
    assert more.predict_proba(x).shape == (150, 3)  # a unit without a label is nobody's
    np.testing.assert_allclose(more.predict_proba(x).sum(1), 1)
    assert more.score(x, y) > 0.7
    with pytest.raises(ConfigError, match="needs a value for 'lr'"):
        OnlineClassifier("er").fit(x, y)
    with pytest.raises(InputError, match="Invalid epochs=0"):
        OnlineClassifier(epochs=0).fit(x, y)

"""river's own checks, and what they do not look at."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import numpy as np
import pytest

pytest.importorskip("river", reason="river is not installed: pip install 'ocar[river]'")

from river import checks, evaluate, metrics, preprocessing
from sklearn.datasets import load_iris
from sklearn.utils import shuffle

from ocar.errors import ConfigError, InputError
from ocar.integrations.river import RiverClassifier
from ocar.integrations.tabular import TabularLearner


def named(check: Any) -> str:
    inner = check.func if isinstance(check, functools.partial) else check
    return str(getattr(inner, "__name__", check))


def cheap() -> RiverClassifier:
    """The checks learn thousands of samples one by one; what they look at is in the wrapper."""
    return RiverClassifier("er", settings={"lr": 0.1, "passes": 1, "memory": 20})


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The guard has backed off from batches")
@pytest.mark.parametrize("check", [*checks.yield_checks(cheap())], ids=named)
def test_river_checks(check: Any) -> None:
    check(cheap())


def samples() -> list[tuple[dict[str, float], str]]:
    data = load_iris()
    x, y = shuffle(data.data, data.target_names[data.target], random_state=0)
    return [
        (dict(zip("abcd", row.tolist(), strict=True)), str(label))
        for row, label in zip(x, y, strict=True)
    ]


def scaled_samples() -> list[tuple[dict[str, float], str]]:
    """What a pipeline with a scaler hands on.

    Raw centimetres, all positive, a few at a time and with settings that were selected for pixels
    in [0, 1], let the guard step in with every root of the Fisher, the exact one included.
    """
    scaler, found = preprocessing.StandardScaler(), []
    for x, y in samples():
        scaler.learn_one(x)
        found.append((scaler.transform_one(x), y))
    return found


def test_progressive_accuracy_in_a_pipeline() -> None:
    model = preprocessing.StandardScaler() | RiverClassifier()
    metric = evaluate.progressive_val_score(iter(samples()), model, metrics.Accuracy())
    assert metric.get() > 0.8


def test_samples_wait_for_each_other_and_are_learned_as_a_batch() -> None:
    model = RiverClassifier(batch_size=10, seed=4)
    plain = TabularLearner(
        features=4,
        method="ocar",
        preset=None,
        settings=None,
        model=None,
        batch_size=10,
        seed=4,
    )
    stream_of = scaled_samples()
    for x, y in stream_of[:9]:
        model.learn_one(x, y)
    assert model.predict_proba_one(stream_of[0][0]) == {}
    for x, y in stream_of[9:]:
        model.learn_one(x, y)
    rows = np.array([list(x.values()) for x, _ in stream_of])
    plain.learn(rows, [y for _, y in stream_of])
    for (x, _), expected in zip(stream_of, plain.probabilities(rows), strict=True):
        found = model.predict_proba_one(x)
        assert list(found) == plain.labels
        np.testing.assert_allclose(list(found.values()), expected, atol=1e-12)


def test_missing_features_are_zero_and_new_ones_ignored() -> None:
    model = RiverClassifier()
    for x, y in scaled_samples()[:20]:
        model.learn_one(x, y)
    full = model.predict_proba_one({"a": 0.0, "b": 1.0, "c": 2.0, "d": 0.0})
    assert model.predict_proba_one({"b": 1.0, "c": 2.0}) == full
    assert model.predict_proba_one({"c": 2.0, "b": 1.0, "e": 9.0}) == full
    named = RiverClassifier(features=["a", "z"])
    named.learn_one({"a": 1.0}, True)
    named.learn_one({"z": 1.0}, False)
    assert named.predict_one({"a": 1.0}) is True
    assert named.predict_one({"z": 1.0}) is False


def test_a_copy_goes_on_exactly_with_what_waits() -> None:
    model = RiverClassifier(batch_size=4)
    data = scaled_samples()
    for x, y in data[:30]:
        model.learn_one(x, y)
    again = pickle.loads(pickle.dumps(model))
    for each in (model, again):
        for x, y in data[30:60]:
            each.learn_one(x, y)
    assert model.predict_proba_one(data[99][0]) == again.predict_proba_one(data[99][0])


def test_what_is_refused() -> None:
    model = RiverClassifier()
    with pytest.raises(InputError, match="must be numbers"):
        model.learn_one({"a": "red"}, 1)
    with pytest.raises(InputError, match="must be finite"):
        model.learn_one({"a": float("nan")}, 1)
    with pytest.raises(InputError, match="must be numbers"):
        model.learn_one({"a": 10**400}, 1)
    with pytest.raises(InputError, match="label must not be NaN"):
        model.learn_one({"a": 1.0}, float("nan"))
    with pytest.raises(InputError, match="no features"):
        model.learn_one({}, 1)
    model.learn_one({"b": 1.0}, 1)  # nothing had changed
    assert model.predict_proba_one({"b": 2.0}) == {1: 1.0}
    with pytest.raises(ConfigError, match="batch_size=0"):
        RiverClassifier(batch_size=0)

"""The probe against scikit-learn's scaler and logistic regression, and on features of networks."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import ocar
from ocar.augment import CropFlip
from ocar.datasets import load_digits
from ocar.errors import ConfigError, InputError, ModelError
from ocar.evaluate.logistic import LinearProbe, fit_probe, logistic_objective, standardization
from ocar.evaluate.probe import probe_accuracy, probe_stream
from ocar.models import make_model
from ocar.streams import make_stream

sklearn_linear = pytest.importorskip("sklearn.linear_model")
sklearn_preprocessing = pytest.importorskip("sklearn.preprocessing")


def digits_features(seed: int = 0) -> tuple[torch.Tensor, ...]:
    """What an untrained network makes of the digits: real, correlated, partly dead features."""
    arrays = load_digits()
    model = make_model("mlp", image_shape=(1, 8, 8), seed=seed)
    with torch.no_grad():
        parts = [model.features(x.float() / 255).double() for x in (arrays.x_train, arrays.x_test)]
    return parts[0], arrays.y_train, parts[1], arrays.y_test


def sklearn_fit(
    x: torch.Tensor, y: torch.Tensor, *, C: float = 1.0, max_iter: int = 200, tol: float = 1e-4
) -> tuple[object, object]:
    scaler = sklearn_preprocessing.StandardScaler().fit(x.numpy())
    classifier = sklearn_linear.LogisticRegression(C=C, max_iter=max_iter, tol=tol)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it has not converged
        classifier.fit(scaler.transform(x.numpy()), y.numpy())
    return scaler, classifier


def objective_of(classifier: object, scaler: object, x: torch.Tensor, y: torch.Tensor) -> float:
    """The probe's objective at scikit-learn's solution."""
    z = torch.from_numpy(scaler.transform(x.numpy()))  # type: ignore[attr-defined]
    weight = torch.from_numpy(classifier.coef_)  # type: ignore[attr-defined]
    bias = torch.from_numpy(classifier.intercept_)  # type: ignore[attr-defined]
    target = torch.searchsorted(torch.from_numpy(classifier.classes_), y)  # type: ignore[attr-defined]
    penalty = 1 / (classifier.C * len(z))  # type: ignore[attr-defined]
    return float(logistic_objective(weight, bias, z, target, penalty=penalty))


@pytest.mark.parametrize("C", [1.0, 0.01])
def test_digits_features_give_scikit_learns_classifier(C: float) -> None:
    x, y, x_test, y_test = digits_features()
    # To the optimum, where the two must meet.
    scaler, classifier = sklearn_fit(x, y, C=C, max_iter=5000, tol=1e-9)
    probe = fit_probe(x, y, inverse_penalty=C, max_iter=5000, tolerance=1e-9)
    coefficients = torch.from_numpy(classifier.coef_)  # type: ignore[attr-defined]
    intercepts = torch.from_numpy(classifier.intercept_)  # type: ignore[attr-defined]
    torch.testing.assert_close(probe.weight, coefficients, rtol=0, atol=1e-4)
    # A constant added to every bias changes nothing.
    torch.testing.assert_close(
        probe.bias - probe.bias.mean(), intercepts - intercepts.mean(), rtol=0, atol=1e-4
    )
    torch.testing.assert_close(probe.mean, torch.from_numpy(scaler.mean_))  # type: ignore[attr-defined]
    torch.testing.assert_close(probe.scale, torch.from_numpy(scaler.scale_))  # type: ignore[attr-defined]
    assert probe.objective == pytest.approx(objective_of(classifier, scaler, x, y), abs=1e-8)
    labels = classifier.predict(scaler.transform(x_test.numpy()))  # type: ignore[attr-defined]
    assert probe.predict(x_test).tolist() == labels.tolist()
    assert 0.8 < float((probe.predict(x_test) == y_test).double().mean()) < 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_stopped_as_scikit_learn_stops_it_is_as_good(dtype: torch.dtype) -> None:
    x, y, x_test, y_test = digits_features(seed=1)
    scaler, classifier = sklearn_fit(x, y)
    probe = fit_probe(x.to(dtype), y)
    assert probe.weight.dtype == dtype
    assert probe.iterations <= 200
    assert probe.objective <= objective_of(classifier, scaler, x, y) + 1e-4
    theirs = float((classifier.predict(scaler.transform(x_test.numpy())) == y_test.numpy()).mean())  # type: ignore[attr-defined]
    ours = float((probe.predict(x_test) == y_test).double().mean())
    assert ours == pytest.approx(theirs, abs=2.5 / len(y_test))


def test_few_iterations_are_few() -> None:
    x, y, *_ = digits_features()
    probes = [fit_probe(x, y, max_iter=n) for n in (1, 5, 20)]
    assert [probe.iterations for probe in probes] == [1, 5, 20]
    assert probes[0].objective > probes[1].objective > probes[2].objective


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(3, 40),
    d=st.integers(1, 6),
    labels=st.sets(st.integers(-5, 300), min_size=2, max_size=4),
    seed=st.integers(0, 10_000),
)
def test_the_gradient_vanishes_where_it_stops(n: int, d: int, labels: set[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = 10 * torch.randn(n, d, generator=generator, dtype=torch.float64) + 3
    names = torch.tensor(sorted(labels))
    y = names[torch.cat([torch.tensor([0, 1]), torch.randint(len(names), (n - 2,))])]
    probe = fit_probe(x, y, max_iter=5000, tolerance=1e-7)
    assert probe.classes.tolist() == sorted(set(y.tolist()))
    z = (x - x.mean(0)) / x.std(0, correction=0)
    target = torch.searchsorted(probe.classes, y)
    # The gradient, written out.
    share = torch.softmax(z @ probe.weight.T + probe.bias, dim=1)
    error = (share - nn.functional.one_hot(target, len(probe.classes))) / n
    assert float((error.T @ z + probe.weight / n).abs().max()) < 1e-6
    assert float(error.sum(0).abs().max()) < 1e-6


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 30),
    st.sampled_from([1e-3, 1.0, 1e5]),
    st.sampled_from([0.0, 1e4]),
    st.booleans(),
)
def test_standardization_is_scikit_learns(n: int, size: float, mean: float, dead: bool) -> None:
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    x = size * x + mean
    if dead:
        x[:, 1] = 1e4  # constant but for a rounding error
        x[0, 1] = np.nextafter(1e4, np.inf)
    scaler = sklearn_preprocessing.StandardScaler().fit(x.numpy())
    found_mean, found_scale = standardization(x)
    np.testing.assert_allclose(found_mean, scaler.mean_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found_scale, scaler.scale_, rtol=1e-6)
    if dead:
        assert float(found_scale[1]) == 1.0


# --- from a learner or a module to its accuracy ---


class Net(nn.Module):
    """Dropout and BatchNorm, which must be in eval mode, and a layer after the head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.BatchNorm1d(20), nn.ReLU())
        self.drop = nn.Dropout(0.5)
        self.top = nn.Linear(20, 10)
        self.extra = nn.Linear(10, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        top: torch.Tensor = self.top(self.drop(self.body(x)))
        self.extra(top)
        return top


def digits() -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    arrays = load_digits()
    return (arrays.x_train, arrays.y_train), (arrays.x_test, arrays.y_test)


def unit(x: torch.Tensor) -> torch.Tensor:
    return x.double() / 255


def trained_net() -> Net:
    """Running statistics that are not those of a batch."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Net().double()
        net(unit(digits()[0][0][:300]))
    return net


def test_a_module_is_probed_before_its_head_in_eval_mode() -> None:
    train, test = digits()
    net = trained_net()
    net.body.eval()  # a mixture of modes, which must not change
    modes = {name: module.training for name, module in net.named_modules()}
    weights = {name: value.clone() for name, value in net.state_dict().items()}
    got = probe_accuracy(net, train, test, passes=3, normalize=unit, head="top", chunk=77)
    assert {name: module.training for name, module in net.named_modules()} == modes
    assert all(torch.equal(weights[name], value) for name, value in net.state_dict().items())
    assert not net.top._forward_pre_hooks
    with torch.no_grad():
        features = [net.body.eval()(unit(x)) for x, _ in (train, test)]
    scaler, classifier = sklearn_fit(torch.cat([features[0]] * 3), torch.cat([train[1]] * 3))
    labels = classifier.predict(scaler.transform(features[1].numpy()))  # type: ignore[attr-defined]
    want = float((labels == test[1].numpy()).mean())
    assert got == pytest.approx(want, abs=1.5 / len(test[1]))
    assert 0.7 < got < 0.99
    last = probe_accuracy(net, train, test, passes=1, normalize=unit)  # before the last layer
    assert last != got


def make_learner(**options: object) -> ocar.Learner:
    stream = make_stream("split-digits")
    model = make_model("mlp", image_shape=(1, 8, 8))
    learner = ocar.ER(model, lr=0.05, memory=100, **options)  # type: ignore[arg-type]
    for batch in stream:
        if batch.task == 2:
            break
        learner.learn(batch.x, batch.y)
    return learner


def probed(x: torch.Tensor, y: torch.Tensor, x_test: torch.Tensor, y_test: torch.Tensor) -> float:
    probe = fit_probe(x, y)
    return float((probe.predict(x_test) == y_test).double().mean())


def test_a_learner_is_probed_with_its_own_preparation_and_augmentation() -> None:
    train, test = digits()

    class Noted(CropFlip):
        calls: list[tuple[int, int]] = []  # noqa: RUF012

        def __call__(self, x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
            assert x.dtype == torch.uint8
            self.calls.append((len(x), int(x.long().sum())))
            return super().__call__(x, generator)

    augment = Noted(padding=1)
    learner = make_learner(normalize=ocar.Normalize((0.5,), (0.5,)), augment=augment)
    before = learner.predict(test[0][:20])
    state = learner.state()[0]
    augment.calls.clear()
    got = probe_accuracy(learner, train, test, passes=3, seed=4, chunk=500)
    rows = [500] * (len(train[1]) // 500) + [len(train[1]) % 500]
    assert [count for count, _ in augment.calls] == rows * 3  # only training data, three times
    after = learner.state()[0]
    assert all(torch.equal(state[name], after[name]) for name in state)
    assert torch.equal(before, learner.predict(test[0][:20]))
    again = probe_accuracy(learner, train, test, passes=3, seed=4, chunk=500)
    others = {probe_accuracy(learner, train, test, seed=seed) for seed in range(4)}
    assert got == again
    assert len(others) > 1  # the seed decides what the augmentation draws

    plain = make_learner(normalize=ocar.Normalize((0.5,), (0.5,)))
    model = plain.model.eval()
    with torch.no_grad():
        features = [model.features((x.float() / 255 - 0.5) / 0.5) for x, _ in (train, test)]
    want = probed(torch.cat([features[0]] * 3), torch.cat([train[1]] * 3), features[1], test[1])
    assert probe_accuracy(plain, train, test) == pytest.approx(want, abs=1.5 / len(test[1]))


def test_averaged_weights_are_probed_where_they_predict() -> None:
    train, test = digits()
    learner = make_learner(prediction="average", average_rate=0.01)
    averaged = make_model("mlp", image_shape=(1, 8, 8))
    average = {name: value for name, value in learner.state()[0].items() if "slow." in name}
    averaged.load_state_dict({n.removeprefix("slow."): v for n, v in average.items()})
    want = probe_accuracy(averaged, train, test, passes=1, normalize=lambda x: x.float() / 255)
    assert probe_accuracy(learner, train, test, passes=1) == pytest.approx(want, abs=0.005)
    plain = probe_accuracy(
        learner.model, train, test, passes=1, normalize=lambda x: x.float() / 255
    )
    assert plain != want  # else this says nothing


def test_where_both_predict_the_slow_weights_are_probed() -> None:
    train, test = digits()
    slower = {"slow_rate": 1e-4, "slow_warmup": 0}
    both, slow = (make_learner(prediction=kind, **slower) for kind in ("both", "slow"))
    want = probe_accuracy(slow, train, test, passes=1)
    assert probe_accuracy(both, train, test, passes=1) == want
    assert probe_accuracy(make_learner(), train, test, passes=1) != want  # else this says nothing


def test_scr_is_probed_on_the_features_that_its_class_means_compare() -> None:
    train, test = ((x[::3], y[::3]) for x, y in digits())
    model = make_model("mlp", image_shape=(1, 8, 8))
    learner = ocar.make_learner("scr", model, memory=20, lr=0.01)
    learner.learn(train[0][:20], train[1][:20])
    model.eval()
    with torch.no_grad():
        raw = [model.features(x.float() / 255) for x, _ in (train, test)]
    unit = [features / features.norm(dim=1, keepdim=True) for features in raw]
    want, plain = (
        probed(torch.cat([f[0]] * 3), torch.cat([train[1]] * 3), f[1], test[1]) for f in (unit, raw)
    )
    assert probe_accuracy(learner, train, test) == pytest.approx(want, abs=1.5 / len(test[1]))
    assert abs(want - plain) > 3 / len(test[1])  # else this says nothing


def test_a_stream_is_probed_with_all_its_training_data() -> None:
    stream = make_stream("split-digits", seed=3)
    learner = make_learner()
    parts = [stream.training(task) for task in range(5)], [stream.test(task) for task in range(5)]
    train, test = (
        (torch.cat([x for x, _ in part]), torch.cat([y for _, y in part])) for part in parts
    )
    assert len(train[1]) + sum(len(stream.validation(t)[1]) for t in range(5)) == 1438
    whole = probe_accuracy(learner, train, test, seed=1)
    list(stream)
    position = stream.position
    assert probe_stream(learner, stream, seed=1) == pytest.approx(whole, abs=1.5 / 359)
    assert stream.position == position
    counts: list[int] = []

    def counted(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        counts.append(len(x))
        return x

    pieces = probe_accuracy(learner, iter(parts[0]), iter(parts[1]), seed=1, augment=counted)
    assert pieces == pytest.approx(whole, abs=1.5 / 359)
    assert counts == [len(y) for _, y in parts[0]] * 3  # an iterator is read three times, too


def test_labels_that_were_not_trained_on_count_as_wrong() -> None:
    x = torch.tensor([[-1.0], [1.0]]).repeat(10, 1)
    y = torch.tensor([3, 8]).repeat(10)
    net = nn.Linear(1, 2)
    assert probe_accuracy(net, (x, y), (x, y)) == 1.0
    assert probe_accuracy(net, (x, y), (torch.cat([x, x]), torch.cat([y, y + 1]))) == 0.5


def test_errors_name_what_is_allowed() -> None:
    x, y = torch.randn(6, 2), torch.tensor([0, 1] * 3)
    with pytest.raises(InputError, match=r"Must be floating point \(n, d\) and \(n,\)"):
        fit_probe(x, y[:5])
    with pytest.raises(InputError, match="Cannot fit a classifier to 1 class"):
        fit_probe(x, torch.zeros(6).long())
    with pytest.raises(ConfigError, match="Invalid inverse_penalty=0"):
        fit_probe(x, y, inverse_penalty=0)
    net = nn.Linear(2, 2)
    with pytest.raises(ConfigError, match="Invalid passes=0"):
        probe_accuracy(net, (x, y), (x, y), passes=0)
    with pytest.raises(InputError, match="no training data"):
        probe_accuracy(net, [], [(x, y)])
    with pytest.raises(InputError, match="no test data"):
        probe_accuracy(net, (x, y), [])
    with pytest.raises(ModelError, match="Invalid head='z'"):
        probe_accuracy(net, (x, y), (x, y), head="z")
    with pytest.raises(ModelError, match=r"has no nn\.Linear layer"):
        probe_accuracy(nn.ReLU(), (x, y), (x, y))
    unused = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    unused.forward = unused["a"].forward  # type: ignore[method-assign]
    with pytest.raises(ModelError, match=r"for 6 samples\. Must be one row"):
        probe_accuracy(unused, (x, y), (x, y))
    with pytest.raises(ConfigError, match="A learner brings its own"):
        probe_accuracy(make_learner(), (x, y), (x, y), normalize=unit)


def test_a_probe_says_what_it_is() -> None:
    probe = LinearProbe(
        weight=torch.tensor([[1.0], [-1.0]]),
        bias=torch.tensor([0.0, 1.0]),
        mean=torch.tensor([10.0]),
        scale=torch.tensor([2.0]),
        classes=torch.tensor([4, 7]),
        objective=0.0,
        iterations=1,
    )
    assert probe.predict(torch.tensor([[12.0], [10.0], [11.2]])).tolist() == [4, 7, 4]

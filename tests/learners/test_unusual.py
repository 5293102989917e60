"""Unusual models and inputs: they learn as the usual ones do, or are refused before a step."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from toys import RAW, assert_same, everything, mlp, seeded, vectors
from zoo.parts import Net, head, stream

import ocar
from ocar.accel import Graph
from ocar.errors import InputError, ModelError

X, Y = next(vectors(1, [0, 1, 2]))
MADE: dict[str, dict[str, Any]] = {
    "er": {"lr": 0.1},
    "ocar": {},
    "ocar-slow": {"lr": 0.05},
    "ewc": {"lr": 0.1, "strength": 1.0},
}
ALL = pytest.mark.parametrize("method", ["er", "ocar", "ocar-slow"])


def make(method: str, model: nn.Module, **settings: Any) -> ocar.Learner:
    return ocar.make_learner(method, model, memory=30, **{**MADE.get(method, {}), **settings})


def check_refused(learner: ocar.Learner, kind: type[Exception], match: str) -> None:
    before = everything(learner)
    with pytest.raises(kind, match=match):
        learner.learn(X, Y)
    assert_same(everything(learner), before)


# --- models --------------------------------------------------------------------------------------


def words(kind: type[nn.Module], **options: Any) -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        found = m.embed(x.long())
        outputs: Tensor = m.head(found if kind is nn.EmbeddingBag else found.mean(1))
        return outputs

    return seeded(lambda: Net(run, embed=kind(30, 16, **options), head=head()))


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize(
    ("method", "settings"), [*((name, {}) for name in MADE), ("ocar", {"curvature": "dense"})]
)
@pytest.mark.filterwarnings("ignore:No curvature for")
def test_sparse_gradients_learn_as_dense_ones(
    kind: type[nn.Module], method: str, settings: dict[str, Any]
) -> None:
    sparse, dense = (make(method, words(kind, sparse=s), **settings) for s in (True, False))
    for x, y in stream("tokens", 4):
        sparse.learn(x, y)
        dense.learn(x, y)
    assert_same(everything(sparse), everything(dense))


def wrapped(dtype: torch.dtype, *, first: bool) -> nn.Module:
    """A layer of another type than the other."""

    def run(m: Any, x: Tensor) -> Tensor:
        hidden = m.a(x.to(m.a.weight.dtype)).relu()
        outputs: Tensor = m.head(hidden.to(m.head.weight.dtype))
        return outputs

    model = seeded(lambda: Net(run, a=nn.Linear(6, 16), head=head()))
    (model.a if first else model.head).to(dtype)
    return model


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        *(("ocar", {}), ("ocar", {"curvature": "dense"}), ("ocar-slow", {})),
        *(("lpr", {"lr": 0.1}), ("ewc", {})),
    ],
)
def test_layers_of_two_types_learn(
    method: str, settings: dict[str, Any], dtype: torch.dtype, first: bool
) -> None:
    learner = make(method, wrapped(dtype, first=first), **settings)
    x, y = next(vectors(1, [0, 1, 2], size=40))
    for batch in zip(x.split(10), y.split(10), strict=True):
        learner.learn(*batch)
    assert learner.guarded.skipped == 0
    assert learner.predict(x).isfinite().all()


def test_the_type_of_the_inputs_is_said_if_layers_have_two() -> None:
    model = mlp()
    model[0].bfloat16()
    model[2].weight.data = model[2].weight.data.double()
    check_refused(make("er", model), InputError, r"is given numbers as torch.bfloat16, the type")


class WithoutGroup(nn.parallel.DistributedDataParallel):
    """Without the processes that the other needs."""

    def __init__(self, module: nn.Module) -> None:
        nn.Module.__init__(self)
        self.module = module


@pytest.mark.parametrize("kind", [nn.DataParallel, WithoutGroup])
def test_a_model_that_is_spread_over_devices_is_refused(kind: type[nn.Module]) -> None:
    spread = r"spread over devices .* by \w*Parallel\. .* give the module .* ocar.Ranks"
    for model, name in ((kind(mlp()), kind.__name__), (nn.Sequential(kind(mlp())), "in '0'")):
        with pytest.raises(ModelError, match=rf"{name}.* is {spread}"):
            make("er", model)


@ALL
def test_torchscript_is_refused(method: str) -> None:
    reason = r"is compiled by TorchScript \(\w+\), .* Give the module before torch.jit"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        compiled = torch.jit.script(mlp()), torch.jit.trace(mlp(), X)
    for model in (*compiled, nn.Sequential(compiled[0], nn.ReLU(), nn.Linear(4, 4))):
        with pytest.raises(ModelError, match=reason):
            make(method, model)


@ALL
@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda x: x.long(), r"shape \(n, outputs\), of floating point; it returned torch.int64"),
        (lambda x: x + 0j, "of floating point; it returned torch.complex64"),
        (lambda x: x[:, :0], r"with at least one output; it returned \(7, 0\)"),
    ],
)
def test_outputs_of_a_regression_that_are_no_numbers_are_refused(
    method: str, change: Callable[[Tensor], Tensor], match: str
) -> None:
    model = Net(lambda m, x: change(m.inner(x)), inner=mlp(units=2))
    learner = make(method, model, likelihood="gaussian", memory_kind="reservoir")
    with pytest.raises(ModelError, match=match):
        learner.learn(X, torch.ones(10, 2))


@ALL
def test_outputs_without_a_gradient_are_refused(method: str) -> None:
    for run in (lambda m, x: m.inner(x).detach(), torch.no_grad()(lambda m, x: m.inner(x))):
        learner = make(method, Net(run, inner=mlp()))
        check_refused(learner, ModelError, "The outputs of Net have no gradient. Leave detach")


@ALL
@pytest.mark.parametrize("likelihood", ["categorical", "gaussian"])
@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda x: (x, x), "as a tensor; it returned a tuple. Give a module that"),
        (lambda x: x[1:], r"it returned \(9, 4\) for 10 samples"),
    ],
)
def test_other_outputs_in_train_mode_are_refused(
    method: str, likelihood: str, change: Callable[[Tensor], Any], match: str
) -> None:
    """As those of networks with auxiliary heads."""

    def run(m: Any, x: Tensor) -> Any:
        return change(m.inner(x)) if m.training else m.inner(x)

    kind = {"likelihood": likelihood, "memory_kind": "reservoir", "replay_batch": 0}
    learner = make(method, Net(run, inner=mlp()), **kind)
    before = everything(learner)
    with pytest.raises(ModelError, match=match):
        learner.learn(X, Y if likelihood == "categorical" else torch.ones(10, 4))
    assert_same(everything(learner), before)


@ALL
@pytest.mark.parametrize("replaced", [True, False])
def test_buffers_that_change_in_eval_mode_resume_to_the_bit(
    method: str, replaced: bool, tmp_path: Path
) -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        m.calls = m.calls + 1 if replaced else m.calls.add_(1)
        outputs: Tensor = m.inner(x) + m.calls / 1000
        return outputs

    def model() -> nn.Module:
        return Net(run, inner=mlp(), calls=nn.Buffer(torch.zeros(())))

    learner = make(method, model())
    batches = list(vectors(4, [0, 1, 2]))
    for x, y in batches[:2]:
        learner.learn(x, y)
    learner.save(tmp_path / "file")
    resumed = ocar.load(tmp_path / "file", model())
    for one in (learner, resumed):
        for x, y in batches[2:]:
            one.learn(x, y)
    assert_same(everything(resumed), everything(learner))


@ALL
@pytest.mark.parametrize(
    "front",
    [lambda x: x.mul_(2), lambda x: F.silu(x, inplace=True), lambda x: x.sub_(1) / 2],
)
def test_a_model_that_changes_its_inputs_is_refused(
    method: str, front: Callable[[Tensor], Tensor]
) -> None:
    model = Net(lambda m, x: m.inner(front(x)), inner=mlp())
    x = X.clone()
    check_refused(make(method, model, **RAW), ModelError, r"Net changes its inputs in place")
    assert torch.equal(x, X)


def test_an_activation_at_the_front_may_work_in_place() -> None:
    one, other = (make("er", nn.Sequential(nn.ReLU(inplace=i), *mlp())) for i in (True, False))
    for learner in (one, other):
        for x, y in vectors(4, [0, 1, 2]):
            learner.learn(x, y)
    assert_same(everything(one), everything(other))


@ALL
@pytest.mark.filterwarnings("ignore:No curvature for")
def test_a_refused_batch_leaves_the_buffers_of_a_computed_weight_alone(method: str) -> None:
    """To read a weight under ``spectral_norm`` in train mode changes its vectors."""

    def model() -> nn.Module:
        layer = parametrizations.spectral_norm(nn.Linear(6, 8))
        return nn.Sequential(layer, nn.Tanh(), nn.Linear(8, 4))

    learner = make(method, seeded(model))
    learner.learn(X, Y)
    before = everything(learner)
    with pytest.raises(InputError, match="Labels must be at least 0"):
        learner.learn(X, -1 - Y)
    assert_same(everything(learner), before)


@ALL
def test_a_model_that_keeps_a_tensor_of_its_last_forward_pass_is_copied(method: str) -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        outputs: Tensor = m.inner(x)
        m.seen = outputs + 1
        return outputs

    learner = make(method, Net(run, inner=mlp()))
    learner.learn(X, Y)
    seen = learner.model.seen = learner.model.inner(X) + 1
    copied = copy.deepcopy(learner)
    assert torch.equal(copied.model.seen, seen)
    assert learner.model.seen is seen
    for one in (learner, copied):
        one.learn(X, Y)
    assert_same(everything(copied), everything(learner))


@pytest.mark.parametrize("method", [*MADE, "der", "er-lwf", "mir", "agem", "gdumb", "ocm"])
def test_the_head_grows_while_somebody_holds_a_graph_of_the_model(method: str) -> None:
    """Outputs that the model itself stores, as for a plot, or a clone of its weights."""

    def run(m: Any, x: Tensor) -> Tensor:
        m.seen = m.inner(x)
        outputs: Tensor = m.seen
        return outputs

    settings = {} if method in MADE else {"lr": 0.1}
    holding = make(method, Net(run, inner=mlp()), **settings)
    plain = make(method, Net(lambda m, x: m.inner(x), inner=mlp()), **settings)
    clones = []
    for step, (x, y) in enumerate(vectors(6, [0, 1, 2])):
        clones.append([p.clone() for p in holding.model.parameters()])
        for one in (holding, plain):
            one.learn(x, y + 3 * step)
        assert torch.equal(holding.predict(X), plain.predict(X))
    assert len(holding.classes) > len(clones[0][-1])


@ALL
def test_weights_that_are_not_finite_are_named(method: str) -> None:
    model = mlp()
    model[0].weight.data[1, 2] = -torch.inf
    model[2].bias.data[0] = torch.inf
    check_refused(make(method, model), ModelError, "Sequential has NaN or Inf in 0.weight, 2.bias")


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("method", ["ocar", "ocar-slow", "lpr", "ewc", "ocm"])
def test_freezing_or_thawing_what_a_method_follows_is_refused(
    method: str, frozen: bool, tmp_path: Path
) -> None:
    def start() -> ocar.Learner:
        model = mlp()
        model[0].requires_grad_(not frozen)
        learner = make(method, model, **({"lr": 0.1} if method in ("lpr", "ocm") else {}))
        learner.learn(X, Y)
        return learner

    learner, other = start(), start()
    learner.model[0].requires_grad_(frozen)
    match = r"requires_grad of 0\.bias, 0\.weight has changed since .* Set it back, or make"
    for act in (
        lambda: learner.learn(X, Y),
        lambda: learner.save(tmp_path / "file"),
        lambda: learner.forget(label=1),
        lambda: copy.deepcopy(learner),
    ):
        with pytest.raises(ModelError, match=match):
            act()
    assert not (tmp_path / "file").exists()
    assert torch.equal(learner.predict(X), other.predict(X))
    learner.model[0].requires_grad_(not frozen)
    for one in (learner, other):
        one.learn(X, Y)
    assert_same(everything(learner), everything(other))


@pytest.mark.parametrize("method", ["er", "agem", "der++"])
def test_a_method_that_follows_no_parameters_goes_on_with_others(
    method: str, tmp_path: Path
) -> None:
    learner = make(method, mlp(), lr=0.1)
    for frozen in (True, False, True):
        layer = learner.model[0].requires_grad_(not frozen)
        before = layer.weight.detach().clone()
        learner.learn(X, Y)
        assert torch.equal(layer.weight, before) == frozen
    learner.save(tmp_path / "file")
    model = mlp()
    model[0].requires_grad_(False)
    resumed = ocar.load(tmp_path / "file", model)
    for one in (learner, resumed):
        one.learn(X, Y)
    assert_same(everything(resumed), everything(learner))


def test_a_graph_is_recorded_for_the_parameters_that_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, keys = make("er", mlp(), lr=0.1, replay_batch=5), []
    learner.learn(X, Y)
    call = Graph.__call__

    def called(self: Graph, *tensors: Tensor, key: Any = None) -> Any:
        keys.append((key, *(t.shape for t in tensors)))
        return call(self, *tensors, key=key)

    monkeypatch.setattr(Graph, "__call__", called)
    for frozen in (False, True, False):
        learner.model[0].requires_grad_(not frozen)
        learner.learn(X, Y)
    assert keys[0] == keys[2] != keys[1]


def test_parameters_of_the_model_itself_that_have_no_curvature_are_named() -> None:
    model = Net(lambda m, x: m.inner(x) / m.heat, inner=mlp(), heat=nn.Parameter(torch.ones(())))
    with pytest.warns(UserWarning, match=r"plain gradient: heat \(parameter\)\."):
        make("ocar", model)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_a_head_without_units_is_refused() -> None:
    with pytest.raises(ModelError, match="The output layer '2' has no units"):
        make("er", nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 0)))


def test_rar_needs_a_gradient_for_the_inputs() -> None:
    learner = make("rar", words(nn.Embedding), lr=0.1)
    first, second = stream("tokens", 2)
    learner.learn(*first)
    with pytest.raises(ModelError, match=r"RAR moves samples .* perhaps it rounds them"):
        learner.learn(*second)


# --- inputs --------------------------------------------------------------------------------------

X_WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "sparse": (lambda: X.to_sparse(), "x must be a dense tensor; given torch.sparse_coo"),
    "jagged": (
        lambda: torch.nested.nested_tensor([X[0], X[1][:3]], layout=torch.jagged),
        "x must be a dense tensor; given a nested tensor",
    ),
    "masked": (
        lambda: np.ma.masked_array(X.numpy(), X.numpy() > 1),
        r"x must have no mask, which would be lost; .* array.filled\(0\)",
    ),
    "objects": (
        lambda: X.numpy().astype(object),
        "x must hold numbers; given object. Sequences must all have one length",
    ),
}


@pytest.mark.parametrize("name", X_WRONG)
def test_samples_that_are_refused(name: str) -> None:
    made, message = X_WRONG[name]
    learner = make("er", mlp())
    learner.learn(X, Y)
    before = everything(learner)
    x = made()
    for act in (lambda: learner.learn(x, Y[: len(x)]), lambda: learner.predict(x)):
        with pytest.raises(InputError, match=message):
            act()
    assert_same(everything(learner), before)


Y_WRONG: dict[str, tuple[Any, str]] = {
    "list": (Y.tolist(), r"y must be a tensor or an array of labels \(n,\), .* given list\."),
    "none": (None, r"y must be a tensor or an array .* given NoneType\."),
    "number": (3, r"y must be a tensor or an array .* given int\."),
    "words": (np.array(["a"] * 10), r"y must hold numbers; given <U1\.$"),
    "sparse": (Y.to_sparse(), "y must be a dense tensor"),
    "masked": (np.ma.masked_array(Y.numpy(), Y.numpy() > 1), "y must have no mask"),
}


@pytest.mark.parametrize("name", Y_WRONG)
def test_labels_that_are_refused(name: str) -> None:
    y, message = Y_WRONG[name]
    learner = make("er", mlp())
    before = everything(learner)
    with pytest.raises(InputError, match=message):
        learner.learn(X, y)
    assert_same(everything(learner), before)


@ALL
def test_samples_and_targets_of_the_users_graph_leave_it_alone(method: str) -> None:
    weight = torch.ones(6, requires_grad=True)
    settings = {"likelihood": "gaussian", "memory_kind": "reservoir", "standardize": False}
    learner, plain = (make(method, mlp(units=2), **settings) for _ in range(2))
    targets = torch.ones(10, 2)
    for _ in range(2):
        learner.learn(X * weight, targets * weight[:2])
        plain.learn(X, targets)
    assert weight.grad is None
    assert_same(everything(learner), everything(plain))

"""K-FAC end to end: its factors and the gradients it rewrites, against dense references."""

from __future__ import annotations

import pytest
import reference
import torch
from checks import assert_factors, average, layer_gradient
from hypothesis import given, settings
from hypothesis import strategies as st
from nets import NETS, batch_norm_net, conv_net, mlp, observe, set_gradients, token_mlp
from strategies import convolutions
from tolerances import EXACT
from torch import Tensor, nn
from torch.testing import assert_close

from ocar.curvature import KFAC
from ocar.curvature.layers import MatrixLayer
from ocar.errors import ConfigError, InputError, ModelError

ROOT_OF = {"coupled": "exact", "independent": "exact(independent)"}


def kronecker_names(kfac: KFAC) -> list[str]:
    return [name for name, layer in kfac.layers.items() if isinstance(layer, MatrixLayer)]


def sample_weights(n: int) -> Tensor:
    return torch.linspace(0.5, 4.0, n)


# --- factors ------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 3),
    leading=st.lists(st.integers(1, 3), max_size=2),
    inputs=st.integers(1, 3),
    hidden=st.integers(1, 3),
    outputs=st.integers(2, 4),
    bias=st.booleans(),
    sharing=st.sampled_from(["expand", "reduce"]),
    weighting=st.sampled_from([None, "gradients", "both"]),
    masked=st.booleans(),
    target=st.sampled_from(["coupled", "independent"]),
    seed=st.integers(0, 1000),
)
def test_linear_factors(
    n, leading, inputs, hidden, outputs, bias, sharing, weighting, masked, target, seed
):
    torch.manual_seed(seed)
    model = token_mlp(inputs, hidden, outputs, bias=bias)
    x = torch.randn(n, *leading, inputs)
    active = torch.arange(outputs) < outputs - 1 if masked else None
    weights = sample_weights(n) if weighting else None
    options = {"sharing": sharing, "weighting": weighting or "gradients"}
    kfac = KFAC(model, damping=0.1, ema=1.0, fisher=ROOT_OF[target], **options)
    observe(kfac, x, active=active, weights=weights)
    expected = reference.kronecker_factors(
        model, x, ["0", "3"], target=target, active=active, weights=weights, **options
    )
    assert_factors(kfac, expected)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    case=convolutions(),
    sharing=st.sampled_from(["expand", "reduce"]),
    weighting=st.sampled_from([None, "gradients", "both"]),
    masked=st.booleans(),
)
def test_convolution_factors(case, sharing, weighting, masked):
    conv, x = case
    model = conv_net(conv, x)
    active = torch.tensor([True, False, True]) if masked else None
    weights = sample_weights(len(x)) if weighting else None
    options = {"sharing": sharing, "weighting": weighting or "gradients"}
    kfac = KFAC(model, damping=0.1, ema=1.0, fisher="exact", **options)
    observe(kfac, x, active=active, weights=weights)
    expected = reference.kronecker_factors(
        model, x, ["0", "3"], active=active, weights=weights, **options
    )
    assert_factors(kfac, expected)


@pytest.mark.parametrize("target", ["coupled", "independent"])
@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize("weighting", [None, "gradients", "both"])
@pytest.mark.parametrize("masked", [False, True])
def test_batch_norm_factors_in_train_mode(target, sharing, weighting, masked):
    model, x = batch_norm_net().train(), torch.randn(4, 2, 5, 5)
    active = torch.tensor([True, False, True]) if masked else None
    weights = sample_weights(4) if weighting else None
    options = {"sharing": sharing, "weighting": weighting or "gradients"}
    kfac = KFAC(model, damping=0.1, ema=1.0, fisher=ROOT_OF[target], **options)
    observe(kfac, x, active=active, weights=weights)
    expected = reference.kronecker_factors(
        model, x, ["0", "3", "7"], target=target, active=active, weights=weights, **options
    )
    assert_factors(kfac, expected)


def test_the_two_targets_differ_in_train_mode_alone():
    x = torch.randn(4, 2, 5, 5)
    for training in (True, False):
        model = batch_norm_net().train(training)
        by_target = []
        for root in ROOT_OF.values():
            kfac = KFAC(model, damping=0.1, ema=1.0, fisher=root)
            observe(kfac, x)
            by_target.append(average(kfac, "0", "G"))
        error = torch.linalg.norm(by_target[0] - by_target[1]) / torch.linalg.norm(by_target[0])
        assert float(error) > 0.05 if training else float(error) < 1e-12


@pytest.mark.parametrize("variance", [1.0, 0.5])
@pytest.mark.parametrize("target", ["coupled", "independent"])
def test_gaussian_factors(variance, target):
    model, x = batch_norm_net().train(), torch.randn(4, 2, 5, 5)
    kfac = KFAC(
        model,
        damping=0.1,
        ema=1.0,
        fisher=ROOT_OF[target],
        likelihood="gaussian",
        variance=variance,
    )
    observe(kfac, x)
    expected = reference.kronecker_factors(
        model, x, ["0", "3", "7"], target=target, variance=variance
    )
    assert_factors(kfac, expected)


def test_empirical_factors_are_those_of_the_loss():
    """With the true labels G is 1/n Σ of the gradients of each sample's loss."""
    model, x, y = mlp(), torch.randn(4, 5), torch.tensor([0, 2, 1, 2])
    kfac = KFAC(model, damping=0.1, ema=1.0, fisher="empirical")
    observe(kfac, x, targets=y)
    outputs, _, points = reference.record(model, x, ["0", "2"])
    loss = nn.functional.cross_entropy(outputs, y, reduction="sum")
    gradients = torch.autograd.grad(loss, list(points.values()))
    for name, g in zip(("0", "2"), gradients, strict=True):
        expected = sum(torch.outer(row, row) for row in g) / 4
        assert_close(average(kfac, name, "G")[0], expected, **EXACT)


# --- inverses -----------------------------------------------------------------------------------


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("kind", ["factored", "exact"])
@pytest.mark.parametrize("target", ["coupled", "independent"])
def test_gradients_are_multiplied_with_the_dense_inverse(net, kind, target):
    model, x = NETS[net]()
    weights = sample_weights(len(x))
    kfac = KFAC(model, damping=0.01, ema=1.0, fisher=ROOT_OF[target], damping_kind=kind)
    observe(kfac, x, weights=weights)
    plain = set_gradients(model)
    names = kronecker_names(kfac)
    factors = reference.kronecker_factors(model, x, names, target=target, weights=weights)
    expected = {
        name: reference.preconditioned(model.get_submodule(name), factors[name], 0.01, kind=kind)
        for name in names
    }
    kfac.precondition_()
    for name in names:
        assert_close(layer_gradient(model.get_submodule(name)), expected[name], **EXACT)
    covered = {f"{name}.{key}" for name in names for key in ("weight", "bias")}
    for name, parameter in model.named_parameters():
        if name not in covered:  # batch normalisation
            assert torch.equal(parameter.grad, plain[name])


@pytest.mark.parametrize("kind", ["factored", "exact"])
def test_a_layer_without_influence_has_nothing_but_its_damping(kind):
    """A factor of zeros: π is 1, and nothing is NaN."""
    model, x = mlp(), torch.randn(4, 5)
    nn.init.zeros_(model[2].weight)  # so the first layer has no influence: its G is zero
    kfac = KFAC(model, damping=0.04, ema=1.0, fisher="exact", damping_kind=kind)
    observe(kfac, x)
    assert not average(kfac, "0", "G").any()
    set_gradients(model)
    grad, a = layer_gradient(model[0])[0], average(kfac, "0", "A")[0]
    kfac.precondition_()
    level = 0.2 * (a + 0.2 * torch.eye(6)) if kind == "factored" else 0.04 * torch.eye(6)
    assert_close(layer_gradient(model[0])[0], torch.linalg.solve(level, grad.mT).mT, **EXACT)


def test_a_frozen_bias_is_left_out_and_left_alone():
    model, x = mlp(), torch.randn(4, 5)
    model[0].bias.requires_grad_(False)
    kfac = KFAC(model, damping=0.1, ema=1.0, fisher="exact")
    observe(kfac, x)
    assert_factors(kfac, reference.kronecker_factors(model, x, ["0", "2"]))
    assert average(kfac, "0", "A").shape == (1, 5, 5)
    set_gradients(model)
    factors = reference.kronecker_factors(model, x, ["0"])["0"]
    expected = reference.preconditioned(model[0], factors, 0.1)
    kfac.precondition_()
    assert_close(layer_gradient(model[0]), expected, **EXACT)
    assert model[0].bias.grad is None


def test_layers_without_gradient_or_curvature_are_left_alone():
    model, x = mlp(), torch.randn(4, 5)
    kfac = KFAC(model, damping=0.1, ema=1.0, fisher="exact")
    plain = set_gradients(model)
    kfac.precondition_()  # no update yet
    assert all(torch.equal(p.grad, plain[n]) for n, p in model.named_parameters())
    observe(kfac, x)
    model[0].weight.grad = None
    kfac.precondition_()
    assert model[0].weight.grad is None
    assert torch.equal(model[0].bias.grad, plain["0.bias"])
    assert not torch.equal(model[2].weight.grad, plain["2.weight"])


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"damping": 0.0}, "Invalid damping=0.0. Must be larger than 0."),
        ({"damping": float("nan")}, "Invalid damping=nan. Must be larger than 0."),
        ({"damping": lambda step: -1.0}, "Invalid damping(0)=-1.0. Must be larger than 0."),
        ({"ema": 0.0}, "Invalid ema=0.0. Must be in (0, 1]."),
        ({"ema": 1.5}, "Invalid ema=1.5. Must be in (0, 1]."),
        ({"variance": 0.0}, "Invalid variance=0.0. Must be larger than 0."),
        (
            {"degrees_of_freedom": 0.0},
            "Invalid degrees_of_freedom=0.0. Must be larger than 0.",
        ),
        (
            {"likelihood": "poisson"},
            "Invalid likelihood='poisson'. Must be one of 'categorical', 'gaussian', 'student-t'.",
        ),
        (
            {"damping_kind": "none"},
            "Invalid damping_kind='none'. Must be one of 'factored', 'exact'.",
        ),
        ({"damping": "x"}, "Invalid damping='x'. Must be a number or a function."),
        ({"max_cost": "x"}, "Invalid max_cost='x'. Must be a number or None."),
        ({"weighting": "a"}, "Invalid weighting='a'. Must be one of 'gradients', 'both'."),
        ({"sharing": "a"}, "Invalid sharing='a'. Must be one of 'expand', 'reduce'."),
        ({"head": "x"}, "Invalid head='x'. Must be the name of a layer: 0, 2."),
        (
            {"exclude": ["x", "0", "y*"]},
            "Invalid exclude: no parameter, module or class of modules of Sequential matches 'x', "
            "'y*'. Its modules: 0, 1, 2.",
        ),
    ],
)
def test_options_out_of_range_are_refused(options, text):
    with pytest.raises(ConfigError) as caught:
        KFAC(mlp(), **{"damping": 0.1, "ema": 0.1, **options})
    assert str(caught.value) == text


def test_models_without_anything_to_do_are_refused():
    with pytest.raises(ModelError) as caught:
        KFAC(nn.Sequential(nn.BatchNorm1d(3)), damping=0.1, ema=0.1)
    assert str(caught.value) == (
        "Sequential has no trainable Linear, convolution, MultiheadAttention or Embedding layer to "
        "take the curvature of, or exclude and include leave none."
    )
    with pytest.raises(ModelError) as caught:
        KFAC(mlp().requires_grad_(False), damping=0.1, ema=0.1)
    assert str(caught.value) == "Sequential has no parameter that requires a gradient."


def test_outputs_and_weights_of_the_wrong_shape_are_refused():
    model = mlp()
    kfac = KFAC(model, damping=0.1, ema=0.1)
    with pytest.raises(InputError) as caught:
        observe(kfac, torch.randn(4, 5), weights=torch.ones(3))
    assert str(caught.value) == (
        "weights must have one number for each of the 4 samples; given shape (3,)."
    )
    for inputs, shape in ((torch.randn(4, 2, 5), "(4, 2, 3)"), (torch.randn(0, 5), "(0, 3)")):
        with pytest.raises(InputError) as caught:
            observe(kfac, inputs)
        assert str(caught.value) == (
            f"outputs must have shape (n, outputs) with at least one sample; given {shape}."
        )


def test_the_representation_shows_every_setting():
    kfac = KFAC(mlp(), damping=0.1, ema=0.2, fisher="top(3)", head="2")
    assert repr(kfac) == (
        "KFAC(Sequential, damping=0.1, ema=0.2, fisher='top(3)', likelihood='categorical', "
        "variance=1.0, degrees_of_freedom=5.0, head='2', exclude=(), include=(), "
        "track_norms=False, seed=0, weighting='gradients', sharing='expand', norm_layers=False, "
        "max_cost=1.5, damping_kind='factored', factor_scale='none')"
    )

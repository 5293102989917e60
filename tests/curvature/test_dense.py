"""The full Fisher, against n·K separate backward passes."""

from __future__ import annotations

import pytest
import reference
import torch
from nets import NETS, mlp, observe, set_gradients
from tolerances import EXACT
from torch import Tensor, nn
from torch.testing import assert_close

from ocar.curvature import DenseFisher
from ocar.errors import ConfigError, ModelError, NumericalError


def flat_gradient(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad])


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("root", ["exact", "exact(independent)"])
@pytest.mark.parametrize("case", ["plain", "weighted", "masked", "gaussian"])
def test_the_fisher_of_all_parameters(net, root, case):
    """In train mode, too: samples are taken as independent whatever the root."""
    model, x = NETS[net]()
    variance = 0.5 if case == "gaussian" else None
    active = torch.tensor([True, False, True]) if case == "masked" else None
    weights = torch.linspace(0.5, 2, len(x)) if case == "weighted" else None
    likelihood = {"likelihood": "gaussian", "variance": 0.5} if case == "gaussian" else {}
    dense = DenseFisher(model, damping=0.01, ema=1.0, fisher=root, **likelihood)
    observe(dense, x, active=active, weights=weights)
    expected = reference.full_fisher(model, x, active=active, weights=weights, variance=variance)
    assert_close(dense.average, expected, **EXACT)


def test_a_fisher_is_the_expected_hessian_of_the_loss():
    """An oracle without scores: for a linear model the Fisher is the Hessian of the loss."""
    model, x, y = nn.Linear(4, 3), torch.randn(6, 4), torch.randint(3, (6,))
    dense = DenseFisher(model, damping=0.01, ema=1.0)
    observe(dense, x)

    def loss(weight: Tensor, bias: Tensor) -> Tensor:
        return nn.functional.cross_entropy(x @ weight.mT + bias, y)

    parameters = (model.weight.detach(), model.bias.detach())
    parts = torch.autograd.functional.hessian(loss, parameters)
    hessian = torch.cat(
        [
            torch.cat([parts[0][0].reshape(12, 12), parts[0][1].reshape(12, 3)], dim=1),
            torch.cat([parts[1][0].reshape(3, 12), parts[1][1].reshape(3, 3)], dim=1),
        ]
    )
    assert_close(dense.average, hessian, **EXACT)


@pytest.mark.parametrize("net", NETS)
def test_gradients_are_solved_for(net):
    model, x = NETS[net]()
    dense = DenseFisher(model, damping=0.03, ema=1.0)
    observe(dense, x)
    set_gradients(model)
    fisher, before = reference.full_fisher(model, x), flat_gradient(model)
    dense.precondition_()
    expected = torch.linalg.solve(fisher + 0.03 * torch.eye(len(fisher)), before)
    assert_close(flat_gradient(model), expected, **EXACT)


def test_averages_move_by_ema_after_a_first_estimate_taken_whole():
    model, x1, x2 = mlp(), torch.randn(4, 5), torch.randn(4, 5)
    dense = DenseFisher(model, damping=0.03, ema=0.25)
    first, second = reference.full_fisher(model, x1), reference.full_fisher(model, x2)
    observe(dense, x1)
    assert_close(dense.average, first, **EXACT)
    observe(dense, x2)
    assert_close(dense.average, 0.75 * first + 0.25 * second, **EXACT)


def test_frozen_parameters_are_left_out():
    model, x = mlp(), torch.randn(4, 5)
    model[0].requires_grad_(False)
    dense = DenseFisher(model, damping=0.03, ema=1.0)
    observe(dense, x)
    assert_close(dense.average, reference.full_fisher(model, x), **EXACT)
    assert dense.average.shape == (15, 15)
    set_gradients(model)
    dense.precondition_()
    assert model[0].weight.grad is None


def test_parameters_that_the_outputs_do_not_depend_on_have_no_curvature():
    model, x = mlp(), torch.randn(4, 5)
    model.spare = nn.Linear(2, 1, bias=False)
    model.forward = lambda x: model[2](model[1](model[0](x)))
    dense = DenseFisher(model, damping=0.03, ema=1.0)
    observe(dense, x)
    assert_close(dense.average, reference.full_fisher(model, x), **EXACT)
    plain = set_gradients(model)
    dense.precondition_()
    assert_close(model.spare.weight.grad, plain["spare.weight"] / 0.03, **EXACT)


def test_a_missing_gradient_counts_as_zero():
    model, x = mlp(), torch.randn(4, 5)
    dense = DenseFisher(model, damping=0.03, ema=1.0)
    observe(dense, x)
    set_gradients(model)
    model[0].weight.grad = None
    dense.precondition_()
    moved = flat_gradient(model)
    set_gradients(model)
    model[0].weight.grad.zero_()
    dense.precondition_()
    assert_close(moved, flat_gradient(model), **EXACT)


def test_eigenvalues_and_memory():
    model, x = mlp(), torch.randn(4, 5)
    dense = DenseFisher(model, damping=lambda step: 0.5 / (step + 1), ema=1.0)
    assert dense.eigenvalues() == {}
    fisher = reference.full_fisher(model, x)
    size = len(fisher)
    assert dense.memory_usage() == 2 * 8 * size**2  # the average and the estimate
    observe(dense, x)
    assert dense.memory_usage() == 3 * 8 * size**2
    expected = torch.linalg.eigvalsh(fisher + 0.5 * torch.eye(size))
    assert_close(dense.eigenvalues()["model"], expected, **EXACT)
    set_gradients(model)
    dense.precondition_()
    expected = torch.linalg.eigvalsh(fisher + 0.25 * torch.eye(size))
    assert_close(dense.eigenvalues()["model"], expected, **EXACT)


def test_norm_ratio_is_after_over_before():
    model, x = mlp(), torch.randn(4, 5)
    dense = DenseFisher(model, damping=0.03, ema=1.0, track_norms=True)
    assert dense.norm_ratio is None
    observe(dense, x)
    set_gradients(model)
    before = flat_gradient(model).norm()
    dense.precondition_()
    assert_close(dense.norm_ratio, flat_gradient(model).norm() / before, **EXACT)


@pytest.mark.parametrize("root", ["exact", "sketched(2)", "sampled(2)", "top(1)"])
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_batch_that_is_not_finite_changes_nothing(root, bad):
    model, x = mlp(), torch.randn(4, 5)
    dense = DenseFisher(model, damping=0.03, ema=0.5, fisher=root)
    observe(dense, x)
    before = {k: v.clone() for k, v in dense.state_dict().items()}
    with pytest.raises(NumericalError) as caught:
        observe(dense, torch.full_like(x, bad))
    assert str(caught.value) == (
        "The curvature of a batch was not finite, by step 0. Nothing was changed. Check the inputs "
        "for extreme values, or try a smaller learning rate."
    )
    for key, value in dense.state_dict().items():
        assert torch.equal(value, before[key])


def test_large_models_are_refused():
    with pytest.raises(ModelError) as caught:
        DenseFisher(nn.Linear(200, 100), damping=0.1, ema=0.1)
    assert str(caught.value) == (
        "Linear has 20,100 trainable parameters; the full Fisher is for at most 20,000. Use KFAC."
    )


def test_options_out_of_range_are_refused():
    with pytest.raises(ConfigError, match="Invalid damping=0"):
        DenseFisher(mlp(), damping=0, ema=0.1)


def test_the_representation_shows_the_settings():
    assert repr(DenseFisher(mlp(), damping=0.1, ema=0.2)) == (
        "DenseFisher(Sequential, damping=0.1, ema=0.2, fisher='exact', likelihood='categorical', "
        "variance=1.0, degrees_of_freedom=5.0, head='2', exclude=(), include=(), "
        "track_norms=False, seed=0)"
    )

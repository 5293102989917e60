"""LPR against its formula, written out layer by layer with PyTorch's own unfolding."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from tolerances import EXACT
from torch import Tensor, nn
from torch.testing import assert_close
from toys import RAW, assert_same, convnet, everything, images, mlp, seeded, vectors

import ocar
from ocar.errors import CheckpointError, ConfigError, ModelError, NumericalError
from ocar.learner import Learner
from ocar.methods.lpr import LPRSettings


def make(model: nn.Module, **settings) -> Learner:
    return ocar.make_learner("lpr", model, **{"lr": 0.1, "memory": 40, **RAW, **settings})


def network() -> nn.Module:
    """Every kind of layer that LPR knows: strides, groups, dilation, with a bias and without."""
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 6, 3, padding=2, dilation=2, groups=2),
            nn.Flatten(),
            nn.Linear(6 * 16, 5),
            nn.BatchNorm1d(5),
            nn.Linear(5, 4),
        )
    ).double()


def preconditioner(layer: nn.Module, x: Tensor, omega0: float, power: float, kind: str) -> Tensor:
    """(I + ω₀ L^−β 1/N Σ z zᵀ)⁻¹ for each group, sample by sample and place by place."""
    if isinstance(layer, nn.Conv2d):
        patches = nn.functional.unfold(
            x, layer.kernel_size, layer.dilation, layer.padding, layer.stride
        )
        z = patches.unflatten(1, (layer.groups, -1))
    elif isinstance(layer, nn.Linear):
        z = x[:, None, :, None]
    else:
        variance = (layer.running_var + layer.eps).view(-1, 1)
        scale = variance if kind == "variance" else variance.sqrt()
        z = (x.flatten(2) if x.dim() > 2 else x[:, :, None]) - layer.running_mean.view(-1, 1)
        z = (z / scale).unsqueeze(2)
    if layer.bias is not None:
        z = torch.cat([z, torch.ones_like(z[:, :, :1])], dim=2)
    samples, groups, size, places = z.shape
    result = []
    for group in range(groups):
        total = torch.zeros(size, size, dtype=z.dtype)
        for sample in range(samples):
            for place in range(places):
                one = z[sample, group, :, place]
                total += torch.outer(one, one)
        eye = torch.eye(size, dtype=z.dtype)
        result.append(torch.linalg.inv(eye + omega0 / places**power * total / samples))
    return torch.stack(result)


def inputs_of(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    found, hooks = {}, []
    for name, layer in model.named_modules():
        hooks.append(
            layer.register_forward_pre_hook(
                lambda module, args, name=name: found.__setitem__(name, args[0].detach().clone())
            )
        )
    with torch.no_grad():
        model(x)
    for hook in hooks:
        hook.remove()
    return found


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("kind", ["variance", "deviation", "plain"])
@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_the_gradient_is_preconditioned_by_the_inputs_on_the_memory(
    kind: str, power: float
) -> None:
    model = network()
    for norm in (model[1], model[6]):
        norm.running_mean.fill_(0.3)
        norm.running_var.fill_(0.25)
    learner = make(model, omega0=3.0, omega_power=power, batchnorm=kind, passes=1)
    ((x, y),) = images(1, [0, 1], size=12)
    learner.remember(x, y)
    held = (learner.memory.gather(torch.arange(12)).x.float() / 255).double()
    evaluated = copy.deepcopy(model).eval()
    inputs = inputs_of(evaluated, held)
    transform = learner.transform
    rewrite, before = transform.rewrite_, {}
    transform.rewrite_ = lambda: (before.update(gradients(model)), rewrite())
    ((x, y),) = images(1, [2, 3], seed=1)
    learner.learn(x, y)
    after = gradients(model)
    for name, layer in evaluated.named_modules():
        if not name or not list(layer.parameters()):
            continue
        weight, size = before[f"{name}.weight"], layer.weight[0].numel()
        groups = weight.numel() if weight.dim() == 1 else getattr(layer, "groups", 1)
        matrix = weight.reshape(groups, -1, size)
        if layer.bias is not None:
            matrix = torch.cat([matrix, before[f"{name}.bias"].reshape(groups, -1, 1)], dim=2)
        if kind != "plain" or not isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)):
            matrix = matrix @ preconditioner(layer, inputs[name], 3.0, power, kind)
        expected = matrix[:, :, :size].reshape(weight.shape)
        assert_close(after[f"{name}.weight"], expected, **EXACT)
        if layer.bias is not None:
            assert_close(after[f"{name}.bias"], matrix[:, :, size].flatten(), **EXACT)


def test_the_step_is_that_of_a_proximal_point() -> None:
    """It minimises ⟨G, Δ⟩ + 1/2α (‖Δ‖² + ω₀ E‖Δ z‖²) over the change Δ of a linear layer."""
    model = seeded(lambda: nn.Linear(6, 4, bias=False)).double()
    learner = make(model, omega0=2.0, passes=1)
    ((x, y),) = vectors(1, [0, 1, 2, 3], size=30)
    learner.remember(x.double(), y)
    z = learner.memory.gather(torch.arange(30)).x
    start = model.weight.detach().clone()
    transform = learner.transform
    rewrite, plain = transform.rewrite_, []
    transform.rewrite_ = lambda: (plain.append(model.weight.grad.clone()), rewrite())
    learner.learn(x.double(), y)
    delta = (model.weight.detach() - start).requires_grad_()
    held = 2.0 * (z @ delta.T).square().sum(1).mean()
    value = (plain[0] * delta).sum() + (delta.square().sum() + held) / 0.2
    (slope,) = torch.autograd.grad(value, delta)
    assert slope.abs().max() < 1e-12


def test_with_omega_zero_it_is_er() -> None:
    settings = {"lr": 0.1, "memory": 40, "augment": ocar.CropFlip(padding=1)}
    er = ocar.ER(convnet(), **settings)
    lpr = make(convnet(), omega0=0.0, **settings)
    for x, y in images(8, [0, 1, 2]):
        er.learn(x, y)
        lpr.learn(x, y)
    ours, theirs = everything(lpr), everything(er)
    # Other are the names of the settings, and what the guard measures of a transform.
    other = ("values", "guard.largest_kl")
    for name in other:
        ours.pop(name), theirs.pop(name)
    assert_same(ours, theirs)


def test_as_omega_vanishes_it_becomes_er() -> None:
    er, lpr = convnet().double(), convnet().double()
    memory = {"lr": 0.1, "memory": 100, "replay_batch": 100}  # all is replayed: no draw matters
    one, other = ocar.ER(er, **memory), make(lpr, omega0=1e-12, **memory)
    for x, y in images(6, [0, 1, 2]):
        one.learn(x, y)
        other.learn(x, y)
    both = [nn.utils.parameters_to_vector(m.parameters()) for m in (er, lpr)]
    assert_close(both[0], both[1], rtol=1e-8, atol=1e-9)


def test_outputs_on_the_memory_move_less_the_larger_omega_is() -> None:
    moves = []
    for omega0 in (0.0, 1.0, 10.0, 1000.0):
        learner = make(mlp().double(), omega0=omega0, passes=1, replay_batch=0)
        ((x, y),) = vectors(1, [0, 1], size=40)
        learner.remember(x.double(), y)
        before = learner.predict(x.double())
        ((new, label),) = vectors(1, [1, 0], seed=4)
        learner.learn(new.double(), label)
        moves.append(float((learner.predict(x.double()) - before).norm()))
    assert moves == sorted(moves, reverse=True)
    assert moves[3] < 0.05 * moves[0]


@pytest.mark.parametrize(
    ("every", "passes", "expected"),
    [(1, 3, [3, 6, 9, 12, 15]), (6, 3, [6, 12]), (4, 3, [6, 9, 12]), (2, 1, [2, 4])],
)
def test_when_the_preconditioner_is_made(every: int, passes: int, expected, monkeypatch) -> None:
    """As in the authors' code it is first made when ``every`` steps are done, not before."""
    learner = make(mlp(), refresh_every=every, passes=passes)
    transform, made = learner.transform, []
    refresh = transform.refresh
    monkeypatch.setattr(transform, "refresh", lambda: (made.append(learner.steps), refresh()))
    for i, (x, y) in enumerate(vectors(6, [0, 1])):
        before = {name: t.clone() for name, t in transform.inverses.items()}
        places = {name: t.data_ptr() for name, t in transform.inverses.items()}
        learner.learn(x, y)
        changed = any(not torch.equal(t, before[n]) for n, t in transform.inverses.items())
        assert changed == (i * passes in expected)
        assert places == {name: t.data_ptr() for name, t in transform.inverses.items()}
    assert made == expected


def test_the_memory_is_seen_augmented_in_chunks_and_in_eval_mode(monkeypatch) -> None:
    monkeypatch.setattr("ocar.methods.lpr.PIXELS", 110 * 8 * 8)  # of 110 images
    seen, model = [], convnet()
    augmented = []
    learner = make(
        model,
        augment=lambda x, g: (augmented.append(len(x)), x.flip(-1))[1],
        memory_kind="reservoir",
        memory=240,
    )
    ((x, y),) = images(1, [0, 1], size=240)
    learner.remember(x, y)
    model.register_forward_pre_hook(
        lambda module, args: seen.append((len(args[0]), module.training, torch.is_grad_enabled()))
    )
    learner.transform.refresh()
    assert seen == [(110, False, False), (110, False, False), (20, False, False)]
    assert augmented == [110, 110, 20]
    assert int(model[1].num_batches_tracked) == 0
    assert not model[0]._forward_pre_hooks  # nothing stays behind
    seen.clear()
    some = make(convnet(), refresh_samples=10)
    some.remember(x, y)
    some.model.register_forward_pre_hook(lambda module, args: seen.append(len(args[0])))
    some.transform.refresh()
    assert seen == [10]


def test_frozen_layers_and_a_frozen_bias_have_no_part() -> None:
    model = convnet()
    model[0].requires_grad_(False)
    model[3].bias.requires_grad_(False)
    learner = make(model, lr=0.01)
    for x, y in images(3, [0, 1]):
        learner.learn(x, y)
    shapes = {name: tuple(t.shape) for name, t in learner.transform.inverses.items()}
    assert shapes == {"1": (4, 2, 2), "3": (1, 4, 4), "6": (1, 145, 145)}


def test_a_shared_parameter_is_refused() -> None:
    one = nn.Linear(6, 6)
    other = nn.Linear(6, 6)
    other.weight = one.weight
    with pytest.raises(ModelError, match=r"share a parameter.*Untie them"):
        make(nn.Sequential(one, nn.Tanh(), other, nn.Linear(6, 6)))


def test_it_goes_with_other_losses_and_with_regression() -> None:
    ace = ocar.make_learner("er-ace", convnet(), transform="lpr", lr=0.1, alpha=0.5)
    for x, y in images(4, [0, 1, 2]):
        assert torch.isfinite(ace.learn(x, y).loss)
    model = seeded(lambda: nn.Linear(6, 2))
    learner = make(model, likelihood="gaussian", memory_kind="reservoir", lr=0.05, omega0=0.1)
    truth = torch.randn(6, 2, generator=torch.Generator().manual_seed(3))
    for x, _ in vectors(200, [0, 1, 2]):
        learner.learn(x, x @ truth)
    assert_close(learner.predict(x), x @ truth, rtol=1e-2, atol=5e-2)


def test_a_state_of_another_preconditioner_is_refused() -> None:
    learner = make(mlp())
    state = learner.transform.state_dict()
    state.pop("inverses.0")
    with pytest.raises(CheckpointError, match=r"another preconditioner: missing \['inverses.0'\]"):
        learner.transform.load_state_dict(state)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"omega0": -1.0}, r"Invalid omega0=-1\.0\. Must be at least 0\."),
        ({"omega_power": math.inf}, r"Invalid omega_power=inf\. Must be a number\."),
        ({"refresh_every": 0}, r"Invalid refresh_every=0\. Must be at least 1\."),
        ({"refresh_samples": 0}, r"Invalid refresh_samples=0\. Must be at least 1, or None"),
        ({"batchnorm": "root"}, r"Invalid batchnorm='root'\. Must be one of 'variance'"),
    ],
)
def test_settings_out_of_range_are_refused(setting, message) -> None:
    with pytest.raises(ConfigError, match=message):
        LPRSettings(**setting)


def test_a_layer_whose_inputs_have_no_finite_inverse_is_named() -> None:
    learner = make(mlp(), guard=None)
    ((x, y),) = vectors(1, [0, 1])
    learner.remember(x * 1e30, y)
    before = {name: inverse.clone() for name, inverse in learner.transform.inverses.items()}
    with pytest.raises(NumericalError, match=r"the inputs of layer '0' holds? NaN or Inf"):
        learner.transform.refresh()
    assert_same(learner.transform.inverses, before)

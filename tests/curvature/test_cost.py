"""Curvature in parts: equal to the blocks on the diagonal of A, and only where it is too expensive.

The oracle is the whole curvature with the blocks off the diagonal of its damped A set to zero.
"""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from nets import MeanOverLocations, observe, set_gradients
from tolerances import BITWISE, EXACT
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

import ocar
from ocar.curvature import EKFAC, FOOF, KFAC, LayerCurvature, cost
from ocar.curvature.cost import LayerCost, Work, find_parts
from ocar.curvature.layers import MatrixLayer
from ocar.errors import CheckpointError, ConfigError
from ocar.guard import Guard
from ocar.models import make_model

OPTIONS = {"damping": 0.02, "ema": 0.3, "fisher": "exact"}
SETTINGS = {"lr": 0.05, "tau_step": 1e-3, "ema": 0.2, "memory": 20, "passes": 2}
SPLIT = "ignore:The curvature of these layers would take"


@pytest.fixture
def narrow(monkeypatch):
    """Layers of a few inputs are wide."""
    monkeypatch.setattr(cost, "WIDE", 12)
    monkeypatch.setattr(cost, "SMALLEST", 6)
    monkeypatch.setattr(cost, "FREE", 0)


def net(*, bias: bool = True) -> nn.Sequential:
    """Six channels of 3 × 3 have 54 inputs; for images ``(n, 2, 5, 5)``."""
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(2, 6, 3),
        nn.Tanh(),
        nn.Conv2d(6, 7, 3, bias=bias),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(7, 4),
    )


def images(count: int = 8, seed: int = 0) -> Tensor:
    return torch.randn(count, 2, 5, 5, generator=torch.Generator().manual_seed(seed))


def in_parts(kind, model: nn.Module, parts: int, **options):
    curvature = kind(model, **{**OPTIONS, **options})
    curvature.layers["2"].parts = parts
    return curvature


def preconditioned(curvature: LayerCurvature, *, seed: int) -> list[Tensor]:
    """Random gradients in the layout of the parameters, preconditioned."""
    set_gradients(curvature.model, seed=seed)
    for parameter in curvature.model.parameters():
        parameter.grad = torch.empty_like(parameter).copy_(parameter.grad).detach()
    curvature.precondition_()
    return [parameter.grad.clone() for parameter in curvature.model.parameters()]


def by_hand(kfac: KFAC, grad: Tensor, bias: Tensor | None, parts: int) -> tuple[Tensor, ...]:
    """G⁻¹ ∇ A⁻¹ with the factors of a whole layer, A without the blocks off its diagonal."""
    buffer = kfac.blocks[0].buffer
    a, g = (buffer.average(f"2.{key}")[0].clone() for key in ("A", "G"))
    matrix = grad.flatten(1)
    size = matrix.shape[1] // parts
    blocks = torch.arange(matrix.shape[1]) // size
    if bias is not None:
        matrix = torch.cat([matrix, bias[:, None]], dim=1)
        blocks = torch.cat([blocks, blocks[-1:]])
    # π counts the zeros in place of the bias.
    rows = parts * (size + (bias is not None))
    pi = ((a.trace() / rows) / (g.trace() / len(g))).sqrt()
    damped = a * (blocks[:, None] == blocks) + pi * 0.02**0.5 * torch.eye(len(a))
    solved = torch.linalg.solve(g + 0.02**0.5 / pi * torch.eye(len(g)), matrix)
    solved = solved @ damped.inverse()
    return solved[:, : parts * size].view_as(grad), solved[:, parts * size :]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("parts", [2, 3, 6])
@pytest.mark.parametrize("rows", ["many", "few"])
def test_kfac_in_parts_is_kfac_without_the_blocks_off_the_diagonal(bias, parts, rows):
    """Eight rows are more than seven outputs; with four the gradient is taken as a product."""
    model, x = net(bias=bias), images(8 if rows == "many" else 4)
    whole, split = KFAC(model, **OPTIONS), in_parts(KFAC, model, parts)
    for seed in range(3):
        for kfac in (whole, split):
            observe(kfac, images(seed=seed))
    with split.follow():
        loss = functional.cross_entropy(model(x), torch.arange(len(x)) % 4)
    model.zero_grad()
    loss.backward()
    layer = model[2]
    expected, column = by_hand(
        whole, layer.weight.grad.clone(), layer.bias.grad.clone() if bias else None, parts
    )
    assert (split.blocks[0].rows.rows("2") is None) == (rows == "many")
    split.precondition_()
    assert_close(layer.weight.grad, expected, **EXACT)
    if bias:
        assert_close(layer.bias.grad, column[:, 0], **EXACT)
    whole.precondition_()
    assert not torch.allclose(layer.weight.grad, expected)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (KFAC, {}),
        (KFAC, {"damping_kind": "exact"}),
        (EKFAC, {"basis_every": 2}),
        (FOOF, {}),
    ],
)
def test_kernels_that_are_channels_last_have_the_same_parts(kind, options):
    one = in_parts(kind, net(), 3, **options)
    other = copy.deepcopy(net()).to(memory_format=torch.channels_last)
    two = in_parts(kind, other, 3, **options)
    for step in range(3):
        for curvature in (one, two):
            # More samples than inputs, so that an eigenbasis is unique.
            observe(curvature, images(64, seed=step))
        assert_close(*(preconditioned(c, seed=step) for c in (two, one)), **EXACT)
    loaded = kind(other, **{**OPTIONS, **options})
    loaded.load_state_dict(one.state_dict())
    assert loaded.layers["2"].parts == 3
    assert_close(*(preconditioned(c, seed=9) for c in (loaded, two)), **EXACT)


def test_linear_layers_of_tokens_have_parts():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 5), nn.Tanh(), MeanOverLocations(), nn.Linear(5, 3))
    kfac = KFAC(model, **OPTIONS)
    kfac.layers["0"].parts = 4
    observe(kfac, torch.randn(6, 7, 12))
    assert kfac.blocks[0].buffer.average("0.A").shape == (4, 4, 4)
    first = kfac.blocks[0].buffer.average("0.A")[:, -1, -1]
    assert_close(first, torch.tensor([0.0, 0.0, 0.0, 7.0]))


# The estimate


def test_the_operations_of_a_layer():
    layer = MatrixLayer("conv", nn.Conv2d(512, 512, 3, bias=False))
    own = LayerCost(layer, rows=20, passes=3)
    assert own.gradients == 6 * 3 * 20 * 512 * 4608
    assert own.curvature(1) == (
        20 * 4608**2 + 4608**3 // 3 + 512**3 + 6 * 20 * (4608**2 + 4608 * 512 + 512**2)
    )
    assert own.curvature(8) == (
        8 * (20 * 576**2 + 576**3 // 3) + 512**3 + 6 * 20 * (4608 * (576 + 512) + 512**2)
    )
    many = LayerCost(layer, rows=10_000, passes=1)
    assert many.curvature(1) == (
        10_000 * 4608**2 + 4608**3 // 3 + 512**3 + 2 * 4608 * 512 * (4608 + 512)
    )


@pytest.mark.parametrize(
    ("name", "side", "channels", "split"),
    [
        ("mlp", 28, 1, False),
        ("slim-resnet18", 32, 3, False),
        ("resnet18", 224, 3, False),
        ("resnet18", 32, 3, True),
    ],
)
def test_only_wide_layers_of_small_images_are_split(name, side, channels, split):
    torch.set_default_dtype(torch.float32)
    model = make_model(name, image_shape=(channels, side, side), classes=10).eval()
    kfac = KFAC(model)
    kfac.try_recording(torch.zeros(2, channels, side, side))
    parts, _ = find_parts(kfac._matrices(), kfac._locations, Work(20, 3), max_cost=kfac.max_cost)
    assert bool(parts) == split
    assert all(kfac.layers[name].d_in > cost.WIDE for name in parts)


def test_a_higher_bound_needs_no_more_parts(narrow):
    kfac = KFAC(net())
    kfac.try_recording(images())
    counts = [
        sum(find_parts(kfac._matrices(), kfac._locations, Work(4, 1), max_cost=bound)[0].values())
        for bound in (0.01, 1.0, 10.0, 1e6)
    ]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1] == 0


@pytest.mark.parametrize("value", [0, -1.0, float("nan")])
def test_a_bound_is_positive(value):
    with pytest.raises(ConfigError, match="max_cost"):
        ocar.OCAR(net(), max_cost=value, **SETTINGS)
    with pytest.raises(ConfigError, match="max_cost"):
        KFAC(net(), max_cost=value)


# Learners


def batches(count: int, start: int = 0):
    for seed in range(start, start + count):
        generator = torch.Generator().manual_seed(seed)
        y = torch.randint(4, (4,), generator=generator)
        yield torch.randn(4, 2, 5, 5, generator=generator) + y.view(-1, 1, 1, 1), y


def parts_of(learner) -> int:
    return learner.transform.curvature.layers["2"].parts


def assert_same_state(one, other, *, but: tuple[str, ...] = ("-",)) -> None:
    tensors = (
        {k: v for k, v in x.state()[0].items() if not k.startswith(but)} for x in (one, other)
    )
    assert_close(*tensors, **BITWISE)


@pytest.mark.usefixtures("narrow")
def test_the_first_batch_says_what_is_split():
    learner = ocar.OCAR(net(), max_cost=0.1, **SETTINGS)
    (x, y), (next_x, next_y) = batches(2)
    with pytest.warns(UserWarning, match=r"2 wide layer\(s\).*2 \(6 parts of 9 inputs\).*max_cost"):
        learner.learn(x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner.learn(next_x, next_y)
    assert parts_of(learner) == 6


@pytest.mark.usefixtures("narrow")
@pytest.mark.filterwarnings(SPLIT)
def test_without_a_bound_nothing_is_split():
    learners = [ocar.OCAR(net(), max_cost=bound, **SETTINGS) for bound in (None, 1e6, 0.1)]
    for x, y in batches(3):
        for learner in learners:
            learner.learn(x, y)
    assert [parts_of(learner) for learner in learners] == [1, 1, 6]
    assert_same_state(*learners[:2])
    with pytest.raises(AssertionError):
        assert_same_state(learners[0], learners[2])


@pytest.mark.usefixtures("narrow")
@pytest.mark.filterwarnings(SPLIT)
def test_a_saved_learner_goes_on_with_its_parts(tmp_path):
    learner = ocar.OCAR(net(), max_cost=0.1, **SETTINGS)
    for x, y in batches(3):
        learner.learn(x, y)
    learner.save(tmp_path / "learner")
    other = ocar.load(tmp_path / "learner", net())
    assert parts_of(other) == 6
    one = torch.randn(1, 2, 5, 5), torch.tensor([1])  # its size would ask for other parts
    for x, y in (one, *batches(2, start=9)):
        for each in (learner, other):
            each.learn(x, y)
    assert_same_state(learner, other)


@pytest.mark.usefixtures("narrow")
@pytest.mark.filterwarnings(SPLIT)
@pytest.mark.filterwarnings("ignore::ocar.guard.GuardWarning")
def test_a_skipped_first_batch_decides_nothing():
    learner = ocar.OCAR(net(), max_cost=0.1, guard=Guard(), **SETTINGS)
    clean = ocar.OCAR(net(), max_cost=0.1, guard=Guard(), **SETTINGS)
    bad = torch.full((4, 2, 5, 5), 1e200)
    learner.learn(bad, torch.arange(4))
    assert parts_of(learner) == 1
    assert learner.transform.curvature.blocks[0].buffer.average("2.A").shape == (1, 55, 55)
    for x, y in batches(3):
        for each in (learner, clean):
            each.learn(x, y)
    assert parts_of(learner) == 6
    assert_same_state(learner, clean, but=("guard",))


def test_a_state_that_does_not_fit_changes_no_parts():
    split, other = in_parts(KFAC, net(), 3), KFAC(net(), **OPTIONS)
    observe(split, images())
    state = split.state_dict()
    state["averages.2.G"] = torch.zeros(1, 2, 2)
    with pytest.raises(CheckpointError, match="other curvature"):
        other.load_state_dict(state)
    assert other.layers["2"].parts == 1

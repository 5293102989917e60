"""Heads with room for classes to come: masked, grown, and what starts again then."""

from __future__ import annotations

import pytest
import reference
import torch
from checks import average
from nets import batch_norm_net, mlp, observe, set_gradients
from tolerances import EXACT
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

from ocar.curvature import KFAC, DenseFisher

CAPACITY = 6


def active(count: int) -> Tensor:
    return torch.arange(CAPACITY) < count


def features() -> nn.Sequential:
    return batch_norm_net(outputs=5)


def masked_and_small(count: int) -> tuple[nn.Sequential, nn.Sequential]:
    """The same net twice, with a head of full capacity and one of ``count`` outputs."""
    nets = []
    weight, bias = torch.randn(CAPACITY, 5), torch.randn(CAPACITY)
    body = features().state_dict()
    for size in (CAPACITY, count):
        trunk, head = features(), nn.Linear(5, size)
        trunk.load_state_dict(body)
        head.weight.data, head.bias.data = weight[:size].clone(), bias[:size].clone()
        nets.append(nn.Sequential(trunk, nn.Tanh(), head))
    return nets[0], nets[1]


def grow(head: nn.Linear, weight: Tensor, bias: Tensor) -> None:
    head.weight, head.bias = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())
    head.out_features = weight.shape[0]


def gradient_step(
    curvature: KFAC | DenseFisher, x: Tensor, y: Tensor, count: int, *, masked: bool
) -> list[Tensor]:
    """One step's rewritten gradients, those of outputs that do not exist cut off."""
    model = curvature.model
    mask = active(count) if masked else None
    weights = torch.linspace(0.5, 2, len(x))
    outputs = observe(curvature, x, active=mask, weights=weights)
    model.zero_grad()
    functional.cross_entropy(outputs[:, :count], y).backward()
    curvature.precondition_()
    head = model[2]
    assert not head.weight.grad[count:].any()
    assert not head.bias.grad[count:].any()
    rest = [p.grad.clone() for p in model[0].parameters()]
    return [*rest, head.weight.grad[:count].clone(), head.bias.grad[:count].clone()]


OPTIONS = {
    "factored": {"damping_kind": "factored"},
    "exact": {"damping_kind": "exact"},
    "independent": {"fisher": "exact(independent)"},
    "both": {"weighting": "both"},
}


@pytest.mark.parametrize("options", OPTIONS)
def test_a_masked_head_gives_the_update_of_a_smaller_one(options):
    nets = masked_and_small(3)
    x, y = torch.randn(4, 2, 5, 5), torch.tensor([0, 2, 1, 1])
    results = []
    for net in nets:
        kfac = KFAC(net, **{"damping": 0.01, "ema": 0.3, "fisher": "exact", **OPTIONS[options]})
        results.append(gradient_step(kfac, x, y, 3, masked=net is nets[0]))
    for masked, small in zip(*results, strict=True):
        assert_close(masked, small, **EXACT)


@pytest.mark.parametrize("kind", ["factored", "exact"])
def test_a_masked_head_gives_the_updates_of_one_that_grows(kind):
    """Two steps with two classes, then two with four: the same gradients in every step."""
    nets = masked_and_small(2)
    weight, bias = nets[0][2].weight.data, nets[0][2].bias.data
    batches = [(torch.randn(4, 2, 5, 5), torch.randint(2, (4,))) for _ in range(4)]
    results = []
    for net in nets:
        kfac = KFAC(net, damping=0.01, ema=0.3, fisher="exact", damping_kind=kind)
        steps = []
        for position, (x, y) in enumerate(batches):
            count = 2 if position < 2 else 4
            if net is nets[1] and position == 2:
                grow(net[2], weight[:4], bias[:4])
            steps += gradient_step(kfac, x, y, count, masked=net is nets[0])
        results.append(steps)
    for masked, grown in zip(*results, strict=True):
        assert_close(masked, grown, **EXACT)


def test_a_masked_head_gives_the_update_of_a_smaller_one_with_the_full_fisher():
    x, y = torch.randn(4, 5), torch.tensor([0, 2, 1, 1])
    results = []
    weight = torch.randn(CAPACITY, 5)
    for size in (CAPACITY, 3):
        model = nn.Sequential(nn.Identity(), nn.Identity(), nn.Linear(5, size, bias=True))
        model[2].weight.data, model[2].bias.data = weight[:size].clone(), torch.zeros(size)
        dense = DenseFisher(model, damping=0.01, ema=1.0)
        results.append(gradient_step(dense, x, y, 3, masked=size == CAPACITY))
    for masked, small in zip(*results, strict=True):
        assert_close(masked, small, **EXACT)


def test_pi_counts_active_outputs_only():
    model, x = mlp((5, 4, CAPACITY)), torch.randn(4, 5)
    kfac = KFAC(model, damping=0.01, ema=1.0, fisher="exact")
    observe(kfac, x, active=active(3))
    set_gradients(model)
    factors = reference.kronecker_factors(model, x, ["0", "2"], active=active(3))
    expected = reference.preconditioned(model[2], factors["2"], 0.01, g_dim=3)
    other = reference.preconditioned(model[2], factors["2"], 0.01)
    kfac.precondition_()
    grad = reference.as_matrix(model[2], model[2].weight.grad, model[2].bias.grad)
    assert_close(grad, expected, **EXACT)
    assert float((grad - other).abs().max()) > 1e-3


# --- what starts again --------------------------------------------------------------------------


def factor_history(masks: list[Tensor | None], **options: object) -> list[dict[str, Tensor]]:
    """The averages after each update, ema 0.25, and the single estimates of each batch."""
    torch.manual_seed(0)
    model = mlp((5, 4, CAPACITY))
    batches = [torch.randn(4, 5) for _ in masks]
    kfac = KFAC(model, damping=0.1, ema=0.25, fisher="exact", **options)
    history = []
    for x, mask in zip(batches, masks, strict=True):
        observe(kfac, x, active=mask)
        fresh = reference.kronecker_factors(model, x, ["0", "2"], active=mask)
        history.append(
            {
                "A": average(kfac, "2", "A").clone(),
                "G": average(kfac, "2", "G").clone(),
                "hidden G": average(kfac, "0", "G").clone(),
                "new A": fresh["2"][0],
                "new G": fresh["2"][1],
                "new hidden G": fresh["0"][1],
            }
        )
    return history


def mixed(history: list[dict[str, Tensor]], key: str) -> Tensor:
    """(1 − ¼) · old + ¼ · new."""
    return 0.75 * history[0][key] + 0.25 * history[1][f"new {key}"]


@pytest.mark.parametrize(
    "masks",
    [
        [active(3), active(4)],
        [active(4), active(3)],
        [None, active(3)],
        [active(3), None],
    ],
    ids=["grows", "shrinks", "first-mask", "last-mask"],
)
def test_the_heads_gradient_factor_starts_again_when_the_number_of_classes_changes(masks):
    history = factor_history(masks)
    assert_close(history[1]["G"], history[1]["new G"], **EXACT)
    assert_close(history[1]["A"], mixed(history, "A"), **EXACT)
    assert_close(history[1]["hidden G"], mixed(history, "hidden G"), **EXACT)


@pytest.mark.parametrize(
    "masks",
    [[active(3), active(3)], [None, None], [active(CAPACITY), None], [None, active(CAPACITY)]],
    ids=["three", "all", "all-then-none", "none-then-all"],
)
def test_the_heads_gradient_factor_goes_on_when_it_does_not(masks):
    history = factor_history(masks)
    for key in ("G", "A", "hidden G"):
        assert_close(history[1][key], mixed(history, key), **EXACT)


def test_another_layer_may_be_the_head():
    history = factor_history([active(3), active(4)], head="0")
    assert_close(history[1]["hidden G"], history[1]["new hidden G"], **EXACT)
    assert_close(history[1]["G"], mixed(history, "G"), **EXACT)


@pytest.mark.parametrize("how", ["frozen", "excluded"])
def test_a_head_without_a_block_is_not_replaced_by_another_layer(how):
    model, x = mlp((5, 4, CAPACITY)), torch.randn(4, 5)
    if how == "frozen":
        model[2].requires_grad_(False)
    kfac = KFAC(
        model, damping=0.1, ema=0.25, fisher="exact", exclude=["2"] if how == "excluded" else []
    )
    assert kfac.head == "2"
    observe(kfac, x, active=active(2))
    before = average(kfac, "0", "G").clone()
    observe(kfac, x, active=active(3))
    fresh = reference.kronecker_factors(model, x, ["0"], active=active(3))["0"][1]
    assert_close(average(kfac, "0", "G"), 0.75 * before + 0.25 * fresh, **EXACT)
    set_gradients(model)
    factors = (average(kfac, "0", "A"), average(kfac, "0", "G"))
    expected = reference.preconditioned(model[0], factors, 0.1)  # π of all four outputs
    kfac.precondition_()
    grad = reference.as_matrix(model[0], model[0].weight.grad, model[0].bias.grad)
    assert_close(grad, expected, **EXACT)

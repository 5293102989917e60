"""Which layers get curvature; the others keep their gradient to the bit, and are named."""

from __future__ import annotations

import pytest
import reference
import torch
from checks import assert_factors
from nets import batch_norm_net, mlp, observe, set_gradients
from torch import Tensor, nn

from ocar.curvature import KFAC


def make(model: nn.Module, **options: object) -> KFAC:
    return KFAC(model, **{"damping": 0.1, "ema": 1.0, "fisher": "exact", **options})


class Mixture(nn.Module):
    """A convolution and layers that have parameters but no curvature."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 2)
        self.up = nn.ConvTranspose3d(3, 2, (1, 2, 2))
        self.norm = nn.BatchNorm2d(2)
        self.scale = Scale()
        self.head = nn.Linear(18, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(
            self.scale(self.norm(self.up(self.conv(x).unsqueeze(2)).squeeze(2))).flatten(1)
        )


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x * self.factor)


def test_layers_of_other_kinds_keep_their_gradient_and_one_warning_names_them():
    model, x = Mixture(), torch.randn(4, 2, 3, 3)
    with pytest.warns(UserWarning, match="No curvature") as caught:
        kfac = make(model)
    assert [str(w.message) for w in caught] == [
        "No curvature for 2 layer(s), which keep their plain gradient: "
        "up (ConvTranspose3d), scale (Scale)."
    ]
    observe(kfac, x)  # no second warning: it would be an error
    assert_factors(kfac, reference.kronecker_factors(model, x, ["conv", "head"]))
    plain = set_gradients(model)
    kfac.precondition_()
    for name, parameter in model.named_parameters():
        covered = name.startswith(("conv", "head"))
        assert torch.equal(parameter.grad, plain[name]) != covered


def test_excluded_layers_keep_their_gradient_without_a_warning():
    model, x = Mixture(), torch.randn(4, 2, 3, 3)
    kfac = make(model, exclude=["up", "scale", "conv"])
    assert list(kfac.layers) == ["head"]
    observe(kfac, x)
    plain = set_gradients(model)
    kfac.precondition_()
    assert torch.equal(model.conv.weight.grad, plain["conv.weight"])
    assert torch.equal(model.conv.bias.grad, plain["conv.bias"])


class NeverCalled(nn.Module):
    """A layer that is there and not called."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.spare = nn.Linear(4, 3), nn.Conv1d(2, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)


def test_layers_that_are_never_called_keep_their_gradient_and_are_named():
    model, x = NeverCalled(), torch.randn(4, 4)
    kfac = make(model)
    with pytest.warns(UserWarning, match=r"1 layer\(s\).*: spare \(Conv1d\)\."):
        observe(kfac, x)
    observe(kfac, x)  # no second warning
    plain = set_gradients(model)
    kfac.precondition_()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, plain[name]) != name.startswith("head")


class Branches(nn.Module):
    """A branch that is computed and does not reach the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.other = nn.Linear(5, 4), nn.Linear(4, 3), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.body(x))
        self.extra = self.other(hidden)
        return self.head(hidden)


@pytest.mark.parametrize("batched", [True, False])
def test_layers_that_the_outputs_do_not_depend_on_keep_their_gradient_and_are_named(batched):
    model, x = Branches(), torch.randn(4, 5)
    kfac = make(model, head="head")
    kfac._recorder.pull.batched = batched
    with pytest.warns(UserWarning, match="No curvature") as caught:
        observe(kfac, x)
    assert [str(w.message) for w in caught] == [
        "No curvature for 1 layer(s), which keep their plain gradient: other (Linear)."
    ]
    assert_factors(kfac, reference.kronecker_factors(model, x, ["body", "head"]))
    plain = set_gradients(model)
    kfac.precondition_()
    assert torch.equal(model.other.weight.grad, plain["other.weight"])
    assert not torch.equal(model.body.weight.grad, plain["body.weight"])


def test_frozen_layers_get_no_block():
    model, x = batch_norm_net(), torch.randn(4, 2, 5, 5)
    model[0].requires_grad_(False)
    model[1].requires_grad_(False)
    kfac = make(model, norm_layers=True)
    assert list(kfac.layers) == ["3", "4", "7"]
    observe(kfac, x)
    assert_factors(kfac, reference.kronecker_factors(model, x, ["3", "7"]))
    set_gradients(model)
    kfac.precondition_()
    assert model[0].weight.grad is None


def test_a_layer_with_a_frozen_weight_keeps_the_gradient_of_its_bias():
    model = mlp()
    model[0].weight.requires_grad_(False)
    with pytest.warns(UserWarning, match=r": 0 \(Linear\)\."):
        kfac = make(model)
    assert list(kfac.layers) == ["2"]
    observe(kfac, torch.randn(4, 5))
    plain = set_gradients(model)
    kfac.precondition_()
    assert torch.equal(model[0].bias.grad, plain["0.bias"])

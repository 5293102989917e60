"""The backward pass of a recorded step, against autograd.

What a GPU records on several streams is made here on the CPU, one after another.
"""

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from ocar.accel import backward as recorded_backward
from ocar.accel.backward import RecordedBackward
from ocar.accel.convolution import inputs_only


@pytest.fixture(autouse=True)
def recording(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(recorded_backward, "is_capturing", lambda device: True)
    monkeypatch.setattr(recorded_backward, "_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=True),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 6, 3, stride=2, groups=2, dilation=2, bias=False),
        nn.Conv2d(6, 4, 2, padding="same"),  # left to autograd
        nn.Conv2d(4, 4, (3, 2), padding=(1, 0), bias=False),  # turned, and not square
        nn.Flatten(),
        nn.Linear(24, 3),
    ).double()


def once(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().sum()


def twice(model: nn.Module, x: Tensor) -> Tensor:
    return model(x[:3]).square().sum() + model(x[3:]).sin().sum()


X = torch.randn(5, 2, 10, 10, generator=torch.Generator().manual_seed(1)).double()


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("loss", [once, twice])
@pytest.mark.parametrize("frozen", [None, "0.weight", "0.bias", "3.weight"])
def test_gradients_are_those_of_autograd(
    loss: Callable[[nn.Module, Tensor], Tensor], frozen: str | None
) -> None:
    ours, theirs = make_model(), make_model()
    for model in (ours, theirs):
        if frozen is not None:
            model.get_parameter(frozen).requires_grad_(False)
    side = RecordedBackward(ours, torch.device("cpu"))
    with side.prepared():
        value = loss(ours, X)
    side.backward(value)
    loss(theirs, X).backward()
    for name, parameter in theirs.named_parameters():
        assert_close(ours.get_parameter(name).grad, parameter.grad, msg=name)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_gradients_that_were_there_are_added_to() -> None:
    ours, theirs = make_model(), make_model()
    for model in (ours, theirs):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
    side = RecordedBackward(ours, torch.device("cpu"))
    with side.prepared():
        value = once(ours, X)
    side.backward(value)
    once(theirs, X).backward()
    for name, parameter in theirs.named_parameters():
        assert_close(ours.get_parameter(name).grad, parameter.grad, msg=name)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_other_backward_passes_get_all_gradients() -> None:
    ours, theirs = make_model(), make_model()
    side = RecordedBackward(ours, torch.device("cpu"))
    with side.prepared():
        value = once(ours, X)
    mine = torch.autograd.grad(value, list(ours.parameters()))
    assert_close(mine, torch.autograd.grad(once(theirs, X), list(theirs.parameters())))
    assert all(p.grad is None for p in ours.parameters())


@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_pulling_back_reaches_the_inputs() -> None:
    ours, theirs = make_model(), make_model()
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    side = RecordedBackward(ours, torch.device("cpu"))
    with side.prepared():
        value = once(ours, x)
    with inputs_only():
        (mine,) = torch.autograd.grad(value, [x])
    assert_close(mine, torch.autograd.grad(once(theirs, y), [y])[0])


@pytest.mark.parametrize("by_pixel", [False, True])
def test_columns_are_pulled_back_together(by_pixel: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 5, 3, padding=1), nn.Conv2d(5, 3, 3, padding=2)).double()
    if by_pixel:
        model = model.to(memory_format=torch.channels_last)
    x = X.clone().requires_grad_()
    with RecordedBackward(model, torch.device("cpu")).prepared():
        y = model(x)
    columns = torch.randn(4, *y.shape, dtype=torch.float64)

    def pull_back(column: Tensor) -> Tensor:
        return torch.autograd.grad(y, x, column, retain_graph=True)[0]

    with inputs_only():
        together = torch.func.vmap(pull_back)(columns)
    expected = model(x)
    for column, gradient in zip(columns, together, strict=True):
        assert_close(gradient, torch.autograd.grad(expected, x, column, retain_graph=True)[0])


def test_a_weight_that_has_changed_since_is_not_the_one_that_was_turned() -> None:
    model = make_model()[:1]

    def pulled_back(weights: dict[str, Tensor]) -> Tensor:
        x = X.clone().requires_grad_()
        y = torch.func.functional_call(model, weights, x)
        return torch.autograd.grad(y.square().sum(), x)[0]

    own, other = dict(model.named_parameters()), {"0.weight": -model[0].weight.detach()}
    with RecordedBackward(model, torch.device("cpu")).prepared():
        found = [pulled_back(own), pulled_back(other)]
        with torch.no_grad():
            model[0].weight.mul_(2)
        found.append(pulled_back(own))
    twice = pulled_back(own)
    with torch.no_grad():
        model[0].weight.div_(2)
    assert_close(found, [pulled_back(own), pulled_back(other), twice])


def test_no_layer_stays_changed() -> None:
    model = make_model()
    with RecordedBackward(model, torch.device("cpu")).prepared():
        assert "forward" in model[0].__dict__
    assert "forward" not in model[0].__dict__

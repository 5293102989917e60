"""BatchNorm with a backward pass for many columns, against PyTorch's own."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from cases_convolution import make_norm as make_norm_2d
from implementations import numbers, on_gpu
from tolerances import BFLOAT16, BITWISE, EXACT, relative_error
from torch import Tensor, nn
from torch.testing import assert_close

from ocar.accel import norm_act
from ocar.accel.layout import is_channels_last, lay_out_
from ocar.accel.norm import _fits, batched_norms
from ocar.curvature.recorder import pull_back
from ocar.models import make_model

pytestmark = pytest.mark.usefixtures("double")

LAYERS = [
    (nn.BatchNorm1d, (7, 3)),
    (nn.BatchNorm1d, (7, 3, 5)),
    (nn.BatchNorm2d, (7, 3, 5, 4)),
    (nn.BatchNorm3d, (4, 3, 2, 3, 2)),
]
EVERY_LAYER = pytest.mark.parametrize(("kind", "shape"), LAYERS)


def make_norm(kind: Any, **options: Any) -> Any:
    """A layer whose scale, shift and running statistics are not 1 and 0."""
    norm = kind(3, **options)
    with torch.no_grad():
        for tensor in norm.state_dict().values():
            if tensor.is_floating_point():
                tensor.uniform_(0.5, 1.5)
    return norm


def make_net() -> nn.Sequential:
    """Two BatchNorms, one after the other, and one over vectors."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 3, 3),
        nn.BatchNorm2d(3),
        nn.Flatten(),
        nn.Linear(12, 6),
        nn.BatchNorm1d(6),
        nn.Tanh(),
        nn.Linear(6, 5),
    )


def is_replaced(module: nn.Module) -> bool:
    return "forward" in module.__dict__


# --- the forward pass ----------------------------------------------------------------------------


@EVERY_LAYER
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "options", [{}, {"momentum": 0.3, "eps": 1e-2}, {"track_running_stats": False}]
)
def test_outputs_statistics_and_gradients_are_the_same_to_the_bit(
    kind, shape, dtype, options
) -> None:
    ours = make_norm(kind, **options).to(dtype)
    theirs = copy.deepcopy(ours)
    for seed in range(3):
        x = torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))
        direction = torch.randn(shape, dtype=dtype)
        x_ours, x_theirs = (x.clone().requires_grad_() for _ in range(2))
        with batched_norms([ours]):
            assert is_replaced(ours)
            y = ours(x_ours)
        expected = theirs(x_theirs)
        assert_close(y, expected, **BITWISE)
        for name, tensor in theirs.state_dict().items():  # num_batches_tracked too
            assert_close(ours.state_dict()[name], tensor, **BITWISE)
        y.backward(direction)
        expected.backward(direction)
        assert_close(x_ours.grad, x_theirs.grad, **BITWISE)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert_close(one.grad, other.grad, **BITWISE)


@EVERY_LAYER
def test_the_gradient_is_that_of_finite_differences(kind, shape) -> None:
    norm = make_norm(kind)

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        layer = copy.deepcopy(norm)
        with batched_norms([layer]):
            return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (x,))

    x = torch.randn(shape, requires_grad=True)
    assert torch.autograd.gradcheck(
        function, (x, norm.weight, norm.bias), check_batched_grad=True, fast_mode=True
    )


def test_frozen_parameters_get_no_gradient() -> None:
    norm = make_norm(nn.BatchNorm1d).requires_grad_(False)
    x = torch.randn(7, 3, requires_grad=True)
    with batched_norms([norm]):
        norm(x).square().sum().backward()
    assert x.grad is not None
    assert norm.weight.grad is None


def test_hooks_of_the_layer_still_run() -> None:
    norm, seen = nn.BatchNorm1d(3), []
    norm.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    with batched_norms([norm]):
        norm(torch.randn(7, 3))
    assert seen == [(7, 3)]


@pytest.mark.parametrize(
    ("kind", "shape", "message"),
    [
        (nn.BatchNorm1d, (1, 3), "Expected more than 1 value per channel when training"),
        (nn.BatchNorm2d, (1, 3, 1, 1), "Expected more than 1 value per channel when training"),
        (nn.BatchNorm2d, (7, 3), "expected 4D input"),
    ],
)
def test_inputs_that_the_layer_refuses_change_nothing(kind, shape, message) -> None:
    norm = make_norm(kind)
    before = copy.deepcopy(norm.state_dict())
    with pytest.raises(ValueError, match=message):
        copy.deepcopy(norm)(torch.randn(shape))
    with batched_norms([norm]), pytest.raises(ValueError, match=message):
        norm(torch.randn(shape))
    for name, tensor in before.items():
        assert_close(norm.state_dict()[name], tensor, **BITWISE)


def test_a_layer_that_does_not_track_keeps_its_statistics() -> None:
    ours, x = make_norm(nn.BatchNorm2d), torch.randn(5, 3, 2, 2)
    ours.track_running_stats = False
    theirs, before = copy.deepcopy(ours), copy.deepcopy(ours.state_dict())
    with batched_norms([ours]):
        assert_close(ours(x), theirs(x), **BITWISE)
    for norm in (ours, theirs):
        for name, tensor in before.items():
            assert_close(norm.state_dict()[name], tensor, **BITWISE)


def test_one_sample_with_many_locations_is_fine() -> None:
    ours, x = make_norm(nn.BatchNorm2d), torch.randn(1, 3, 2, 2)
    theirs = copy.deepcopy(ours)
    with batched_norms([ours]):
        assert_close(ours(x), theirs(x), **BITWISE)
    assert_close(ours.running_var, theirs.running_var, **BITWISE)


# --- many columns --------------------------------------------------------------------------------


def pulled(net: nn.Sequential, x: Tensor, columns: Tensor, *, batched: bool) -> list[Tensor]:
    """Gradients at the output of every layer and at every parameter, for all columns."""
    points: list[Tensor] = []
    for layer in net:
        x = layer(x)
        if not isinstance(layer, nn.ReLU):  # done in place: the tensor is that of the layer before
            points.append(x)
    points = [*points[:-1], *net.parameters()]
    return pull_back(x, points, columns, batched=batched)


@pytest.mark.parametrize("count", [1, 4])
def test_all_columns_at_once_are_one_column_after_another(count: int) -> None:
    net, x, columns = make_net(), torch.randn(6, 1, 6, 6), torch.randn(count, 6, 5)
    expected = pulled(copy.deepcopy(net), x, columns, batched=False)  # PyTorch's own BatchNorm
    with batched_norms(net.modules()):
        at_once = pulled(net, x, columns, batched=True)
        one_by_one = pulled(net, x, columns, batched=False)
    assert len(expected) == 8 + 13
    for name, ours in (("at once", at_once), ("one by one", one_by_one)):
        for index, (one, other) in enumerate(zip(ours, expected, strict=True)):
            assert one is not None
            assert_close(one, other, **EXACT, msg=lambda m, n=name, i=index: f"{n}, {i}: {m}")


@pytest.mark.parametrize("dimension", [0, 1, 2])
def test_the_columns_may_be_any_dimension(dimension: int) -> None:
    norm, x = make_norm(nn.BatchNorm2d), torch.randn(4, 3, 2, 5, requires_grad=True)
    with batched_norms([norm]):
        y = norm(x)
    columns = torch.randn(6, *y.shape)

    def differentiate(g: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(y, (x, norm.weight, norm.bias), g, retain_graph=True)

    moved = columns.movedim(0, dimension)
    at_once = torch.func.vmap(differentiate, in_dims=dimension)(moved)
    expected = [torch.stack(g) for g in zip(*map(differentiate, columns), strict=True)]
    for one, other in zip(at_once, expected, strict=True):
        assert_close(one, other, **EXACT)


def test_the_loss_can_be_differentiated_after_the_columns() -> None:
    net, x, y = make_net(), torch.randn(6, 1, 6, 6), torch.randint(5, (6,))
    plain = copy.deepcopy(net)
    nn.functional.cross_entropy(plain(x), y).backward()
    with batched_norms(net.modules()):
        outputs = net(x)
    pull_back(outputs, list(net.parameters()), torch.randn(3, 6, 5))
    nn.functional.cross_entropy(outputs, y).backward()
    for one, other in zip(net.parameters(), plain.parameters(), strict=True):
        assert_close(one.grad, other.grad, **EXACT)


def test_there_is_no_second_derivative_rather_than_a_wrong_one() -> None:
    norm, x = make_norm(nn.BatchNorm1d), torch.randn(7, 3, requires_grad=True)
    with batched_norms([norm]):
        y = norm(x)
    (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.autograd.grad(grad.square().sum(), x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision(dtype: torch.dtype) -> None:
    """Parameters in float32, activations in half precision, as under autocast."""
    net = make_net().float()
    x, columns = torch.randn(6, 1, 6, 6).float(), torch.randn(3, 6, 5)
    theirs = copy.deepcopy(net)
    with torch.autocast("cpu", dtype=dtype):
        expected = pulled(theirs, x, columns, batched=False)
        with batched_norms(net.modules()):
            at_once = pulled(net, x, columns, batched=True)
    for name, tensor in theirs.state_dict().items():
        assert_close(net.state_dict()[name], tensor, **BITWISE)
    errors = [relative_error(a, b) for a, b in zip(at_once, expected, strict=True)]
    assert [a.dtype for a in at_once] == [b.dtype for b in expected]
    # A shift before a BatchNorm has no effect: the gradients of three biases are only rounding.
    biases = {i for i, b in enumerate(expected) if b.dim() == 2 and b.norm() < 0.05}
    assert len(biases) == 3
    assert max(e for i, e in enumerate(errors) if i not in biases) < BFLOAT16, errors


# --- which layers, and for how long --------------------------------------------------------------


class Subclass(nn.BatchNorm2d):
    """Somebody's own, which may compute anything."""


@pytest.mark.parametrize(
    "module",
    [
        nn.BatchNorm2d(3).eval(),
        nn.BatchNorm2d(3, momentum=None),
        nn.BatchNorm2d(3, affine=False),
        nn.SyncBatchNorm(3),
        nn.InstanceNorm2d(3, affine=True),
        nn.GroupNorm(1, 3),
        Subclass(3),
        nn.Conv2d(3, 3, 1),
    ],
    ids=lambda module: repr(module).replace("True", "").replace("False", ""),
)
def test_other_layers_are_left_alone(module: nn.Module) -> None:
    with batched_norms([module]):
        assert not is_replaced(module)
    assert not is_replaced(module)


def test_a_cumulative_average_is_still_right() -> None:
    ours = nn.Sequential(nn.BatchNorm1d(3, momentum=None))
    theirs = copy.deepcopy(ours)
    for _ in range(3):
        x = torch.randn(7, 3)
        with batched_norms(ours.modules()):
            ours(x)
        theirs(x)
    assert_close(ours[0].running_mean, theirs[0].running_mean, **BITWISE)
    assert int(ours[0].num_batches_tracked) == 3


def test_nothing_is_left_on_the_modules() -> None:
    net = make_net()
    before = [dict(module.__dict__) for module in net.modules()]
    with batched_norms(net.modules()):
        assert sum(map(is_replaced, net.modules())) == 3
        net(torch.randn(6, 1, 6, 6))
    assert [dict(module.__dict__) for module in net.modules()] == before


def test_nothing_is_left_after_an_exception() -> None:
    net = make_net()

    def fail() -> None:
        with batched_norms(net.modules()):
            raise KeyError("of the user's")

    with pytest.raises(KeyError, match="of the user's"):
        fail()
    assert not any(map(is_replaced, net.modules()))


def test_nothing_is_left_when_the_modules_cannot_be_listed() -> None:
    norm = nn.BatchNorm1d(3)

    def broken():
        yield norm
        raise KeyError("of the user's")

    with pytest.raises(KeyError, match="of the user's"), batched_norms(broken()):
        pass
    assert not is_replaced(norm)


def test_one_inside_another() -> None:
    norm = nn.BatchNorm1d(3)
    with batched_norms([norm]):
        with batched_norms([norm]):
            assert is_replaced(norm)
        assert is_replaced(norm)  # it is the outer one's
    assert not is_replaced(norm)


def test_a_forward_of_the_users_own_stays() -> None:
    norm = nn.BatchNorm1d(3)
    norm.forward = lambda x: 2 * x
    own = norm.forward
    with batched_norms([norm]):
        assert norm.forward is own
        assert_close(norm(torch.ones(2, 3)), torch.full((2, 3), 2.0))
    assert norm.forward is own


# --- on a GPU -----------------------------------------------------------------------------------


@on_gpu
def test_where_the_kernel_does_not_apply_pytorch_does_it() -> None:
    norm, x = make_norm_2d(3, {}).cuda().float(), numbers(4, 3, 5, 5).cuda().float()
    assert _fits(norm, x)
    assert not _fits(norm, x.double())
    assert not _fits(norm, x.cpu())
    assert _fits(norm, x.new_zeros(256, 3, 64, 64))
    assert not _fits(norm, x.new_zeros(257, 3, 64, 64))
    assert not _fits(nn.BatchNorm2d(3, affine=False).cuda().float(), x)
    with torch.autocast("cuda"):
        assert not _fits(norm, x)
    handle = norm.register_forward_hook(lambda *_: None)
    assert not _fits(norm, x)
    handle.remove()
    with batched_norms([norm]):
        assert _fits(norm, x)
    assert not _fits(norm.eval(), x)


@on_gpu
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")
def test_a_network_learns_the_same_without_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(20, 3, 32, 32, dtype=torch.float32).cuda()

    def losses() -> list[float]:
        model = make_model("slim-resnet18", image_shape=(3, 32, 32), seed=0).cuda().float()
        found = []
        for _ in range(3):
            labels = torch.arange(20, device="cuda") % 5
            loss = nn.functional.cross_entropy(model(x)[:, :5], labels)
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(parameter.grad, alpha=0.05)
                    parameter.grad = None
            found.append(loss.item())
        return found

    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        fused = losses()
        monkeypatch.setattr(norm_act, "_choices", [])
        assert fused == pytest.approx(losses(), rel=2e-3)


@on_gpu
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")
def test_a_network_computes_the_same_in_either_layout() -> None:
    x = torch.randn(20, 3, 32, 32, dtype=torch.float32).cuda()
    models = [
        make_model("slim-resnet18", image_shape=(3, 32, 32), seed=0).cuda().float()
        for _ in range(2)
    ]
    lay_out_(models[1])
    assert sum(is_channels_last(p) for p in models[1].parameters()) == 8
    assert not any(is_channels_last(p) for p in models[0].parameters())
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for model in models:
            model(x).square().sum().backward()
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert one.grad is not None
        largest = float(one.grad.abs().max())
        assert_close(other.grad, one.grad, rtol=1e-2, atol=1e-3 * largest)
    for one, other in zip(*(model.buffers() for model in models), strict=True):
        assert_close(other, one, rtol=1e-3, atol=1e-4)

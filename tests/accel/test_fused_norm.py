"""BatchNorm, shortcut and ReLU in one kernel against PyTorch's own in double precision."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from ocar.accel.batchnorm import batched_backward
from torch import Tensor, nn
from torch.nn import functional

from ocar.accel import norm as fused_norm
from ocar.accel.layout import lies_by_pixel
from ocar.accel.norm import can_fuse, norm_relu, normalize
from ocar.models import make_model
from ocar.models.resnet import lay_out_


def on_gpu(test: Callable[..., None]) -> Callable[..., None]:
    """For tests that need a CUDA device."""
    missing = not torch.cuda.is_available()
    return pytest.mark.gpu(pytest.mark.skipif(missing, reason="needs a CUDA device")(test))


SHAPES = [(20, 20, 32, 32), (20, 160, 4, 4), (3, 2, 5, 7), (8, 3, 64, 64), (2, 1, 1, 1)]
"""The widest and the deepest layer of the slim network, odd sizes, the most and the least."""


def made(shape: tuple[int, ...]) -> tuple[nn.BatchNorm2d, Tensor, Tensor, Tensor]:
    """A layer, its input, a shortcut and three columns of gradients."""
    generator = torch.Generator().manual_seed(0)
    norm = nn.BatchNorm2d(shape[1])
    with torch.no_grad():
        norm.weight.copy_(torch.rand(shape[1], generator=generator) + 0.5)
        norm.bias.copy_(torch.randn(shape[1], generator=generator))
    x = torch.randn(shape, generator=generator) * 3 + 1
    return norm, x, torch.randn(shape, generator=generator), torch.randn(3, *shape)


def test_on_a_cpu_it_is_what_pytorch_does() -> None:
    norm, x, shortcut, _ = made((4, 3, 5, 5))
    assert not can_fuse(norm, x)
    torch.testing.assert_close(norm_relu(norm, x), functional.relu(norm(x)), rtol=0, atol=0)
    expected = functional.relu(norm(x) + shortcut)
    torch.testing.assert_close(norm_relu(norm, x, shortcut), expected, rtol=0, atol=0)


@on_gpu
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("by_pixel", [False, True])
@pytest.mark.parametrize(("relu", "with_shortcut"), [(True, True), (True, False), (False, False)])
def test_values_gradients_and_statistics(
    shape: tuple[int, ...], by_pixel: bool, relu: bool, with_shortcut: bool
) -> None:
    norm, x, shortcut, columns = made(shape)
    if by_pixel:  # of x alone: what goes with it is made to lie as it does
        x = x.contiguous(memory_format=torch.channels_last)
    exact = nn.BatchNorm2d(shape[1]).double()
    exact.load_state_dict(norm.state_dict())
    norm.cuda()
    inputs = [x.cuda().requires_grad_(), norm.weight, norm.bias]
    reference = [x.double().requires_grad_(), exact.weight, exact.bias]
    if with_shortcut:
        inputs.append(shortcut.cuda().requires_grad_())
        reference.append(shortcut.double().requires_grad_())
    assert can_fuse(norm, inputs[0])
    y = norm_relu(norm, inputs[0], *inputs[3:]) if relu else normalize(norm, inputs[0])
    assert lies_by_pixel(y) == lies_by_pixel(x)
    expected = exact(reference[0])
    if with_shortcut:
        expected = expected + reference[3]
    expected = functional.relu(expected) if relu else expected
    close = {"rtol": 1e-4, "atol": 1e-4, "check_dtype": False}
    torch.testing.assert_close(y.cpu(), expected, **close)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        torch.testing.assert_close(getattr(norm, name).cpu(), getattr(exact, name), **close)

    def pulled(g: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(y, inputs, g, retain_graph=True)

    single = pulled(columns[0].cuda())
    together = torch.func.vmap(pulled)(columns.cuda())
    for number, column in enumerate(columns):
        found = torch.autograd.grad(expected, reference, column.double(), retain_graph=True)
        for index, gradient in enumerate(found):
            size = float(gradient.abs().max())
            close["atol"] = 1e-4 * max(1.0, size)
            torch.testing.assert_close(together[index][number].cpu(), gradient, **close)
            if number == 0:
                torch.testing.assert_close(single[index].cpu(), gradient, **close)


@on_gpu
def test_where_it_does_not_apply_pytorch_does_it() -> None:
    norm, x, _, _ = made((4, 3, 5, 5))
    norm, x = norm.cuda(), x.cuda()
    assert can_fuse(norm, x)
    assert not can_fuse(norm, x.double())
    assert not can_fuse(norm, x.cpu())
    assert not can_fuse(norm, x.new_zeros(9, 3, 64, 64))
    assert not can_fuse(nn.BatchNorm2d(3, affine=False).cuda(), x)
    with torch.autocast("cuda"):
        assert not can_fuse(norm, x)
    handle = norm.register_forward_hook(lambda *_: None)
    assert not can_fuse(norm, x)
    handle.remove()
    with batched_backward([norm]):
        assert can_fuse(norm, x)
    assert not can_fuse(norm.eval(), x)


@on_gpu
def test_a_network_computes_the_same_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(20, 3, 32, 32, generator=torch.Generator().manual_seed(0)).cuda()

    def losses() -> list[float]:
        model = make_model("slim-resnet18", image_shape=(3, 32, 32), seed=0).cuda()
        found = []
        for _ in range(3):
            loss = functional.cross_entropy(model(x)[:, :5], torch.arange(20, device="cuda") % 5)
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(parameter.grad, alpha=0.05)
                    parameter.grad = None
            found.append(loss.item())
        return found

    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        fused = losses()
        monkeypatch.setattr(fused_norm, "_kernels", lambda: None)
        assert fused == pytest.approx(losses(), rel=2e-3)


@on_gpu
def test_a_network_computes_the_same_however_it_is_laid_out() -> None:
    x = torch.randn(20, 3, 32, 32, generator=torch.Generator().manual_seed(0)).cuda()
    models = [make_model("slim-resnet18", image_shape=(3, 32, 32), seed=0).cuda() for _ in range(2)]
    lay_out_(models[1])
    assert sum(lies_by_pixel(p) for p in models[1].parameters()) == 8
    assert not any(lies_by_pixel(p) for p in models[0].parameters())
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for model in models:
            model(x).square().sum().backward()
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert one.grad is not None
        largest = float(one.grad.abs().max())
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-2, atol=1e-3 * largest)
    for one, other in zip(*(model.buffers() for model in models), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-4)

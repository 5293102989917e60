"""Networks with BatchNorm folded into the convolutions, against eval mode."""

from __future__ import annotations

import copy

import pytest
import torch
from implementations import on_gpu
from tiny_resnet import TinyResNet
from tolerances import FLOAT16_NETWORK, relative_error
from torch import Tensor, nn

from ocar.accel.folded import FoldedResNet, fold
from ocar.models import MLP, ResNet18, SlimResNet18

# Image size and how to make the network; widths that are a multiple of 8 and that are not.
NETWORKS = {
    "slim": (32, lambda: SlimResNet18(32, classes=7)),
    "slim, two pooled rows": (64, lambda: SlimResNet18(64, width=4, classes=7)),
    "slim, aligned": (32, lambda: SlimResNet18(32, width=8, channels=1, classes=7)),
    "slim, many channels": (32, lambda: SlimResNet18(32, width=4, channels=9, classes=7)),
    "standard": (64, lambda: ResNet18(classes=7)),
    "tiny": (8, lambda: TinyResNet()),
    "tiny, no convolution in a shortcut": (8, lambda: TinyResNet(widths=(4, 4))),
}
EVERY_NETWORK = pytest.mark.parametrize("name", NETWORKS)


def channels_of(model: nn.Module) -> int:
    stem = model.stem
    assert isinstance(stem, nn.Sequential)
    assert isinstance(stem[0], nn.Conv2d)
    return stem[0].in_channels


def images(model: nn.Module, size: int, count: int = 4, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (count, channels_of(model), size, size)
    return torch.randn(shape, generator=generator).to(model.head.weight.dtype)


def train(model: nn.Module, x: Tensor, steps: int = 2, lr: float = 0.05) -> None:
    """A few steps of SGD: weights, scales and running statistics all move."""
    model.train()
    for step in range(steps):
        y = (torch.arange(len(x)) + step) % model.head.out_features
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter -= lr * parameter.grad
    model.eval()


def trained(name: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor]:
    size, make = NETWORKS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = make().to(dtype)
    train(model, images(model, size, seed=1))
    return model, images(model, size)


def folded_from(model: nn.Module, dtype: torch.dtype | None = None) -> FoldedResNet:
    found = fold(model, model.head.weight.dtype if dtype is None else dtype)
    assert found is not None
    return found


def predicted(model: FoldedResNet, x: Tensor) -> Tensor:
    model.refresh_()
    return model(model.prepare(x))


@EVERY_NETWORK
@torch.no_grad()
def test_it_predicts_as_the_network_does_in_eval_mode(name: str) -> None:
    with torch.enable_grad():
        model, x = trained(name)
    norm = model.stem[1]
    assert not torch.allclose(norm.running_mean, torch.zeros(1).double())  # it was trained
    assert not torch.equal(norm.weight, torch.ones_like(norm.weight))
    expected = model(x)
    logits = predicted(folded_from(model), x)
    assert logits.dtype == torch.float64
    torch.testing.assert_close(logits, expected, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_refreshing_follows_the_weights_and_the_statistics() -> None:
    with torch.enable_grad():
        model, x = trained("slim")
    folded = folded_from(model)
    before = predicted(folded, x)
    with torch.enable_grad():
        train(model, images(model, 32, seed=2))
    after = model(x)
    assert relative_error(before, after) > 0.01
    # Folded weights do not move by themselves; only the head is the network's own.
    stale = folded(folded.prepare(x))
    assert relative_error(stale, after) > 0.01
    torch.testing.assert_close(predicted(folded, x), after, rtol=1e-10, atol=1e-10)
    model.stem[1].running_var *= 4.0  # only the statistics
    torch.testing.assert_close(predicted(folded, x), model(x), rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_refreshing_changes_values_in_place() -> None:
    """A CUDA graph reads the same memory again."""
    model, _ = torch.enable_grad()(trained)("slim")
    folded = folded_from(model)
    folded.refresh_()
    tensors = [t for part in folded._parts for t in (part.weight, part.bias)]
    assert len(tensors) == 2 * 20
    places = [t.data_ptr() for t in tensors]
    folded.refresh_()
    assert [t.data_ptr() for t in tensors] == places


@torch.no_grad()
@pytest.mark.parametrize("name", ["slim", "standard"])
def test_half_precision_is_close(name: str) -> None:
    with torch.enable_grad():
        model, x = trained(name, torch.float32)
    expected = model(x)
    logits = predicted(folded_from(model, torch.float16), x)
    assert logits.dtype == torch.float32  # the head is the network's own
    assert relative_error(logits, expected) < FLOAT16_NETWORK
    single = relative_error(predicted(folded_from(model), x), expected)
    assert single < 1e-5 < relative_error(logits, expected)  # half precision was really used


@torch.no_grad()
def test_the_network_and_the_images_stay_as_they_were() -> None:
    with torch.enable_grad():
        model, x = trained("slim, aligned")  # no channel to pad, and no other type
    before, image = copy.deepcopy(model.state_dict()), x.clone()
    predicted(folded_from(model), x)
    assert torch.equal(x, image)
    for key, tensor in before.items():
        assert torch.equal(model.state_dict()[key], tensor)


@torch.no_grad()
def test_a_head_that_has_grown() -> None:
    with torch.enable_grad():
        model, x = trained("slim")
    folded = folded_from(model)
    for parameter in model.head.parameters():
        parameter.data = torch.cat([parameter.data, parameter.data])
    model.head.out_features = 14
    torch.testing.assert_close(predicted(folded, x), model(x), rtol=1e-10, atol=1e-10)


def test_prepare_pads_the_channels_with_zeros() -> None:
    model, x = trained("slim")
    ready = folded_from(model).prepare(x)
    assert ready.shape == (4, 8, 32, 32)
    assert torch.equal(ready[:, :3], x)
    assert not ready[:, 3:].any()
    assert ready.is_contiguous(memory_format=torch.channels_last)


def test_which_networks_can_be_folded() -> None:
    assert isinstance(fold(SlimResNet18(width=2), torch.float32), FoldedResNet)
    assert fold(MLP(4), torch.float32) is None
    without = SlimResNet18(width=2)
    norms = [m for m in without.modules() if isinstance(m, nn.BatchNorm2d)]
    norms[3].track_running_stats = False
    assert fold(without, torch.float32) is None
    plain = SlimResNet18(width=2)
    plain.blocks[0].bn1 = nn.BatchNorm2d(2, affine=False)
    assert fold(plain, torch.float32) is None


@on_gpu
@torch.no_grad()
@pytest.mark.parametrize("name", ["slim", "tiny", "standard"])
def test_half_precision_on_a_gpu(name: str) -> None:
    with torch.enable_grad():
        model, x = trained(name, torch.float32)
    expected = model(x)
    model = model.cuda()
    found = predicted(folded_from(model, torch.float16), x.cuda())
    assert relative_error(found.cpu(), expected) < FLOAT16_NETWORK

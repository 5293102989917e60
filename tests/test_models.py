"""Models: shapes, sizes, reproducible weights, and the arithmetic against a plain reference."""

from __future__ import annotations

import math
from typing import Self

import pytest
import torch
from torch import nn
from torch.nn import functional

from ocar.errors import ConfigError
from ocar.models import (
    MLP,
    MODELS,
    LinearModel,
    ResNet,
    ResNet18,
    SlimResNet18,
    TextTransformer,
    make_model,
)
from ocar.models.modes import evaluating

SHAPES = {
    "mlp": (1, 28, 28),
    "mlp-256": (1, 1, 256),
    "text-transformer": (1, 1, 24),
    "slim-resnet18": (3, 32, 32),
    "resnet18": (3, 64, 64),
    "linear": (1, 1, 10),
}


def inputs(name: str, n: int) -> torch.Tensor:
    """Random images, or token ids."""
    x = torch.randn(n, *SHAPES[name], generator=torch.Generator().manual_seed(0))
    return x.abs().mul(1000).long() if name == "text-transformer" else x


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def head_of(model: nn.Module) -> nn.Linear:
    head = model.get_submodule("head")
    assert isinstance(head, nn.Linear)
    return head


def features_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    assert isinstance(model, MLP | ResNet | LinearModel | TextTransformer)
    return model.features(x)


def reference_resnet(model: ResNet, x: torch.Tensor, *, slim: bool) -> torch.Tensor:
    """ResNet-18 in eval mode from the parameters in the order of use, stage by stage."""
    state = iter([t for name, t in model.state_dict().items() if "num_batches" not in name])

    def conv_bn(x: torch.Tensor, stride: int) -> torch.Tensor:
        weight, gamma, beta, mean, var = (next(state) for _ in range(5))
        x = functional.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
        scale: torch.Tensor = gamma / torch.sqrt(var + 1e-5)
        shift: torch.Tensor = beta - mean * scale
        return x * scale.view(-1, 1, 1) + shift.view(-1, 1, 1)

    x = conv_bn(x, 1 if slim else 2).relu()
    if not slim:
        x = functional.max_pool2d(x, 3, 2, 1)
    for stage in range(4):
        for block in range(2):
            stride = 2 if stage > 0 and block == 0 else 1
            out = conv_bn(conv_bn(x, stride).relu(), 1)
            x = (out + (conv_bn(x, stride) if stride == 2 else x)).relu()
    x = functional.avg_pool2d(x, 4) if slim else x.mean((2, 3))
    return functional.linear(x.flatten(1), next(state), next(state))


def test_every_registered_model_is_covered() -> None:
    assert set(SHAPES) == set(MODELS)


@pytest.mark.parametrize("name", SHAPES)
def test_forward_is_head_of_features(name: str) -> None:
    model = make_model(name, image_shape=SHAPES[name], classes=7).eval()
    x = inputs(name, 2)
    features = features_of(model, x)
    head = head_of(model)
    assert features.shape == (2, head.in_features)
    assert head.out_features == 7
    torch.testing.assert_close(model(x), features @ head.weight.T + head.bias, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", SHAPES)
def test_weights_follow_the_seed_and_leave_the_global_state_alone(name: str) -> None:
    before = torch.get_rng_state()
    first, again, other = (
        make_model(name, image_shape=SHAPES[name], classes=3, seed=seed) for seed in (1, 1, 2)
    )
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(5)
    later = make_model(name, image_shape=SHAPES[name], classes=3, seed=1)
    for a, b, c in zip(first.parameters(), again.parameters(), later.parameters(), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)
    assert not torch.equal(head_of(first).weight, head_of(other).weight)


@pytest.mark.parametrize("name", SHAPES)
def test_every_parameter_gets_a_gradient(name: str) -> None:
    model = make_model(name, image_shape=SHAPES[name], classes=4)
    model(inputs(name, 3)).square().sum().backward()
    for own, p in model.named_parameters():
        assert p.grad is not None
        assert p.grad.abs().sum() > 0 or own.endswith("key.bias")  # a softmax does not see it


@pytest.mark.parametrize("slim", [True, False])
def test_resnets_match_a_plain_reference(slim: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    model = SlimResNet18(32, classes=5) if slim else ResNet18(classes=5)
    for module in model.modules():  # or the running statistics would be 0 and 1
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
                assert tensor is not None
                tensor.data.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    model = model.double().eval()
    x = torch.randn(2, 3, 32 if slim else 64, 32 if slim else 64, generator=generator).double()
    torch.testing.assert_close(model(x), reference_resnet(model, x, slim=slim))


def test_sizes_are_the_published_ones() -> None:
    assert parameters(SlimResNet18(32, classes=100)) == 1_109_240
    assert parameters(ResNet18(classes=1000)) == 11_689_512
    assert parameters(MLP(784, hidden=(100, 100), classes=10)) == 89_610
    assert parameters(LinearModel(10)) == 11
    assert LinearModel(10).head.out_features == 1


def test_slim_resnet_is_as_the_protocol_says() -> None:
    model = SlimResNet18()
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 20
    assert all(conv.bias is None for conv in convolutions)
    assert sum(isinstance(m, nn.Linear) for m in model.modules()) == 1
    assert max(math.prod(c.weight.shape[1:]) for c in convolutions) == 1440
    assert not any(isinstance(m, nn.MaxPool2d) for m in model.modules())


@pytest.mark.parametrize(("size", "features"), [(25, 160), (28, 160), (32, 160), (64, 640)])
def test_features_follow_the_image_size(size: int, features: int) -> None:
    model = SlimResNet18(size, channels=1, classes=2).eval()
    assert model.head.in_features == features
    assert model.features(torch.zeros(1, 1, size, size)).shape == (1, features)


def test_default_device_does_not_matter() -> None:
    with torch.device("meta"):
        model = make_model("mlp", image_shape=(1, 2, 2))
    assert head_of(model).weight.device.type == "cpu"


def test_an_interrupt_leaves_no_module_in_eval_mode() -> None:
    class Interrupted(nn.Linear):
        def train(self, mode: bool = True) -> Self:
            raise KeyboardInterrupt

    model = nn.Sequential(nn.Linear(3, 4), Interrupted(4, 2))
    with pytest.raises(KeyboardInterrupt), evaluating(model):
        pass
    assert all(module.training for module in model.modules())


def test_errors_name_what_is_allowed() -> None:
    with pytest.raises(
        ConfigError, match=r"Unknown model 'vit'. There are mlp, mlp-256, slim-resnet18"
    ):
        make_model("vit", image_shape=(3, 32, 32))
    with pytest.raises(ConfigError, match="square"):
        make_model("slim-resnet18", image_shape=(3, 32, 40))
    with pytest.raises(ConfigError, match=r"Must be \(channels, height, width\)"):
        make_model("mlp", image_shape=(3, 0, 32))
    with pytest.raises(ConfigError, match=r"Invalid image_size=24. Must be at least 25"):
        SlimResNet18(24)
    with pytest.raises(ConfigError, match="Invalid classes=0"):
        ResNet18(classes=0)
    with pytest.raises(ConfigError, match="at least one hidden layer"):
        MLP(4, hidden=())
    with pytest.raises(ConfigError, match="outputs=0"):
        LinearModel(4, outputs=0)


@pytest.mark.parametrize("keep_metadata", [True, False])
@pytest.mark.parametrize("counts", [True, False])
def test_weights_load_with_or_without_the_counts_of_batchnorm(
    keep_metadata: bool, counts: bool
) -> None:
    ours, theirs = SlimResNet18(classes=4), SlimResNet18(classes=4)
    state = theirs.state_dict()
    if counts:
        state["stem.1.num_batches_tracked"] = torch.tensor(3)
    ours.load_state_dict(state if keep_metadata else dict(state))
    for name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, state[name])
    with pytest.raises(RuntimeError, match="stranger"):
        ours.load_state_dict({**state, "stranger": torch.zeros(1)})

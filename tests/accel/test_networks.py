"""Which networks have special forward passes: registered ones that nobody has changed."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from cases_convolution import question
from implementations import module, on_gpu
from tiny_resnet import Block, TinyResNet
from torch import Tensor, nn

from ocar.accel.networks import all_pairs, find_resnet, is_single_precision, is_small_kernel
from ocar.accel.networks import is_watched as watched
from ocar.models import MLP, ResNet18, SlimResNet18


def test_the_parts_of_a_network() -> None:
    model = TinyResNet()
    found = find_resnet(model)
    assert found is not None
    assert (found.stem, found.head, found.pool) == (model.stem, model.head, model.pool)
    assert found.blocks == list(model.blocks)
    pairs = list(found.pairs())
    assert len(pairs) == 1 + 2 + 3
    assert all(type(conv) is nn.Conv2d and type(norm) is nn.BatchNorm2d for conv, norm in pairs)


@pytest.mark.parametrize("model", [SlimResNet18(width=2), ResNet18()], ids=["slim", "standard"])
def test_our_networks_are_registered(model: nn.Module) -> None:
    assert find_resnet(model) is not None


class OtherForward(TinyResNet):
    """Somebody's own, which may compute anything."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(2 * x)


class OtherFeatures(TinyResNet):
    """The same with other features."""

    def features(self, x: Tensor) -> Tensor:
        return super().features(2 * x)


class SameForward(TinyResNet):
    """A subclass that changes nothing."""


class OtherBlock(Block):
    """A block of somebody's own."""


def changed(change: Callable[[TinyResNet], None]) -> TinyResNet:
    model = TinyResNet()
    change(model)
    return model


def put_block(model: TinyResNet) -> None:
    model.blocks[1] = OtherBlock(4, 8, stride=2)


def put_head(model: TinyResNet) -> None:
    model.head = nn.Sequential(nn.Linear(8, 6))


def put_stem(model: TinyResNet) -> None:
    model.stem = nn.Sequential(*model.stem)


def put_activation(model: TinyResNet) -> None:
    model.stem[2] = nn.Tanh()


def put_shortcut(model: TinyResNet) -> None:
    model.blocks[0].shortcut = nn.Tanh()


def put_longer_shortcut(model: TinyResNet) -> None:
    model.blocks[1].shortcut.append(nn.ReLU())


CHANGES = [put_block, put_head, put_stem, put_activation, put_shortcut, put_longer_shortcut]


@pytest.mark.parametrize("change", CHANGES)
def test_a_network_that_was_changed_is_not_known(change: Callable[[TinyResNet], None]) -> None:
    assert find_resnet(changed(change)) is None


def test_a_subclass_is_known_only_if_it_computes_the_same() -> None:
    assert find_resnet(SameForward()) is not None
    assert find_resnet(OtherForward()) is None
    assert find_resnet(OtherFeatures()) is None
    assert find_resnet(MLP(4)) is None


def test_hooks_and_replaced_forward_passes_are_noticed() -> None:
    model = TinyResNet()
    assert not watched(model)
    for register in ("register_forward_hook", "register_forward_pre_hook"):
        handle = getattr(model.blocks[1].conv1, register)(lambda *_: None)
        assert watched(model)
        handle.remove()
        assert not watched(model)
    model.blocks[0].forward = lambda x: x
    assert watched(model)


@pytest.mark.parametrize(
    ("conv", "small"),
    [
        (nn.Conv2d(2, 2, 3, padding=1), True),
        (nn.Conv2d(2, 2, 1, stride=2), True),
        (nn.Conv2d(2, 2, 3), False),
        (nn.Conv2d(2, 2, 5, padding=2), False),
        (nn.Conv2d(2, 2, (1, 3), padding=(0, 1)), False),
        (nn.Conv2d(2, 2, 3, (1, 2), padding=1), False),
        (nn.Conv2d(2, 2, 3, padding=1, groups=2), False),
        (nn.Conv2d(2, 2, 3, padding=1, dilation=2), False),
        (nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), False),
        (nn.Conv2d(2, 2, 3, padding="same"), False),
    ],
    ids=repr,
)
def test_small_kernels(conv: nn.Conv2d, small: bool) -> None:
    assert is_small_kernel(conv) == small


def test_single_precision_without_bias() -> None:
    conv, norm = nn.Conv2d(2, 2, 3, bias=False), nn.BatchNorm2d(2)
    assert is_single_precision(conv, norm)
    assert not is_single_precision(nn.Conv2d(2, 2, 3), norm)
    assert not is_single_precision(conv, nn.BatchNorm2d(2, affine=False))
    assert not is_single_precision(copy.deepcopy(conv).double(), norm)
    assert not is_single_precision(conv, copy.deepcopy(norm).double())


def test_every_pair_must_pass() -> None:
    found = find_resnet(TinyResNet())
    assert found is not None
    assert all_pairs(found, lambda conv, norm: True)
    assert not all_pairs(found, lambda conv, norm: conv.kernel_size == (3, 3))
    found.blocks[0].bn1 = nn.BatchNorm1d(4)
    assert not all_pairs(found, lambda conv, norm: True)


@on_gpu
def test_where_the_kernels_of_a_divergence_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    fits = module("divergence")._fits
    model, x, active, before = question()
    model, given = model.cuda().float(), (x.cuda().float(), active.cuda(), before.cuda().float())
    assert fits(model, *given)
    assert not fits(model, given[0].double(), *given[1:])
    assert not fits(model, given[0], None, given[2])
    assert not fits(model, given[0].repeat(20000, 1, 1, 1), *given[1:])
    assert not fits(model, given[0][:, :2], *given[1:])
    assert not fits(ResNet18().cuda(), torch.randn(2, 3, 32, 32).cuda(), *given[1:])
    model.blocks[1].bn1.eval()
    assert not fits(model, *given)
    model.train()
    handle = model.blocks[0].conv1.register_forward_hook(lambda *_: None)
    assert not fits(model, *given)
    handle.remove()
    with torch.autocast("cuda"):
        assert not fits(model, *given)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert not fits(model, *given)

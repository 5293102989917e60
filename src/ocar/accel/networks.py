"""Networks that have special forward passes.

A network of :mod:`ocar.models` registers itself with what its parts are called; this package knows
no model by import. A special forward pass is used only where it computes exactly what the network
would: no hooks, no subclasses that change the forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from ocar.accel.layout import has_square_kernel, is_dense

_resnets: dict[type[nn.Module], tuple[type[nn.Module], type[nn.Module]]] = {}


def register_resnet(
    network: type[nn.Module], *, block: type[nn.Module], stem: type[nn.Sequential]
) -> None:
    """Make a ResNet known.

    Args:
        network: Its forward pass is ``head(pool(blocks(stem(x))).flatten(1))``.
        block: The class of its blocks: ``relu(bn2(conv2(relu(bn1(conv1(x))))) + shortcut(x))``.
        stem: The class of its stem: convolution, BatchNorm, ReLU, perhaps a pooling.
    """
    _resnets[network] = (block, stem)


@dataclass(frozen=True)
class ResNet:
    """The parts of a registered ResNet."""

    stem: nn.Sequential  # convolution, BatchNorm, ReLU, perhaps a pooling
    blocks: list[Any]  # with conv1, bn1, conv2, bn2 and shortcut
    pool: nn.Module
    head: nn.Linear

    def pairs(self) -> Iterator[tuple[nn.Module, nn.Module]]:
        """Every convolution with the BatchNorm after it."""
        yield self.stem[0], self.stem[1]
        for block in self.blocks:
            yield block.conv1, block.bn1
            yield block.conv2, block.bn2
            if isinstance(block.shortcut, nn.Sequential):
                yield block.shortcut[0], block.shortcut[1]


def find_resnet(model: nn.Module) -> ResNet | None:
    """The parts of a model that is a registered ResNet and was not changed, else None."""
    known = next((kind for kind in _resnets if isinstance(model, kind)), None)
    if known is None:
        return None
    block_kind, stem_kind = _resnets[known]
    own = type(model)
    if any(getattr(own, name) is not getattr(known, name) for name in ("forward", "features")):
        return None
    parts = cast("Any", model)
    found = ResNet(parts.stem, list(parts.blocks), parts.pool, parts.head)
    if type(found.stem) is not stem_kind or type(found.stem[2]) is not nn.ReLU:
        return None
    if type(found.head) is not nn.Linear:
        return None
    for block in found.blocks:
        if type(block) is not block_kind:
            return None
        short = block.shortcut
        sequence = isinstance(short, nn.Sequential) and len(short) == 2
        if not sequence and type(short) is not nn.Identity:
            return None
    return found


def is_watched(model: nn.Module) -> bool:
    """Whether hooks or replaced forward passes look at, or change, what goes through a layer."""
    return any(
        bool(m._forward_hooks or m._forward_pre_hooks or "forward" in m.__dict__)
        for m in model.modules()
    )


def all_pairs(network: ResNet, check: Callable[[nn.Conv2d, nn.BatchNorm2d], bool]) -> bool:
    """Whether every convolution and its BatchNorm are PyTorch's own and pass a check."""
    return all(
        type(conv) is nn.Conv2d and type(norm) is nn.BatchNorm2d and check(conv, norm)
        for conv, norm in network.pairs()
    )


def is_small_kernel(conv: nn.Conv2d) -> bool:
    """Whether a convolution is 1 × 1 or 3 × 3, the same both ways, with padding to match."""
    side = conv.kernel_size[0]
    return side in (1, 3) and has_square_kernel(conv) and conv.padding[0] == side // 2


def is_single_precision(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> bool:
    """Whether a convolution without bias and its BatchNorm are float32 and densely stored."""
    weight = conv.weight
    return (
        conv.bias is None
        and weight.dtype == torch.float32
        and is_dense(weight)
        and norm.affine
        and norm.weight.dtype == torch.float32
    )

"""A ResNet for prediction alone: BatchNorm folded into the convolutions.

In eval mode BatchNorm is a scale and a shift of each channel, which the weights before it can
take over: ``bn(conv(x)) = (γ/σ · w) * x + (β − γ/σ · μ)``. On a GPU the shift, the addition of a
shortcut and the ReLU then ride along with the convolution in one kernel.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from ocar.models.resnet import BasicBlock, ResNet


class FoldedResNet:
    """Predicts as a ResNet does in eval mode.

    Args:
        model: The network. Its values are taken over whenever :meth:`refresh_` is called.
    """

    def __init__(self, model: ResNet) -> None:
        stem = cast("nn.Sequential", model.stem)  # convolution, BatchNorm, ReLU, perhaps a pooling
        self._stem, self._after_stem = _Folded(stem[0], stem[1]), stem[3:]
        self._blocks = [_FoldedBlock(cast("BasicBlock", block)) for block in model.blocks]
        self._pool, self._head = model.pool, model.head

    def refresh_(self) -> None:
        """Fold the values that the network has now."""
        self._stem.refresh_()
        for block in self._blocks:
            block.refresh_()

    def __call__(self, x: Tensor) -> Tensor:
        """Logits ``(n, classes)`` of images ``(n, channels, h, w)``."""
        x = self._after_stem(self._stem(x, relu=True))
        for block in self._blocks:
            x = block(x)
        logits: Tensor = self._head(self._pool(x).flatten(1))
        return logits


class _FoldedBlock:
    def __init__(self, block: BasicBlock) -> None:
        self.first = _Folded(block.conv1, block.bn1)
        self.second = _Folded(block.conv2, block.bn2)
        self.shortcut: _Folded | None = None
        if isinstance(block.shortcut, nn.Sequential):
            self.shortcut = _Folded(block.shortcut[0], block.shortcut[1])

    def refresh_(self) -> None:
        for part in (self.first, self.second, self.shortcut):
            if part is not None:
                part.refresh_()

    def __call__(self, x: Tensor) -> Tensor:
        short = x if self.shortcut is None else self.shortcut(x)
        return self.second(self.first(x, relu=True), add=short, relu=True)


class _Folded:
    """A convolution with the BatchNorm after it."""

    def __init__(self, conv: nn.Module, norm: nn.Module) -> None:
        self.conv, self.norm = cast("nn.Conv2d", conv), cast("nn.BatchNorm2d", norm)
        weight = self.conv.weight.detach()
        self.weight = torch.empty_like(weight, memory_format=torch.channels_last)
        self.bias = weight.new_empty(weight.shape[0])
        self._padding = cast("tuple[int, ...]", self.conv.padding)

    @torch.no_grad()
    def refresh_(self) -> None:
        norm = self.norm
        assert norm.running_mean is not None
        assert norm.running_var is not None
        scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
        torch.mul(self.conv.weight, scale.view(-1, 1, 1, 1), out=self.weight)
        torch.addcmul(norm.bias, norm.running_mean, scale, value=-1, out=self.bias)

    def __call__(self, x: Tensor, *, add: Tensor | None = None, relu: bool = False) -> Tensor:
        stride, dilation, groups = self.conv.stride, self.conv.dilation, self.conv.groups
        geometry = (stride, self._padding, dilation, groups)
        if x.is_cuda and relu and x.dtype != torch.float64:
            if add is None:
                return torch.cudnn_convolution_relu(x, self.weight, self.bias, *geometry)
            return torch.cudnn_convolution_add_relu(x, self.weight, add, 1.0, self.bias, *geometry)
        y = functional.conv2d(x, self.weight, self.bias, *geometry)
        y = y if add is None else y.add_(add)
        return y.relu_() if relu else y


def fold(model: nn.Module) -> FoldedResNet | None:
    """A folded version of a network that can be folded, else None."""
    foldable = isinstance(model, ResNet) and all(
        norm.track_running_stats and norm.affine
        for norm in model.modules()
        if isinstance(norm, nn.BatchNorm2d)
    )
    return FoldedResNet(cast("ResNet", model)) if foldable else None

"""A ResNet for prediction alone: BatchNorm folded into the convolutions.

In eval mode BatchNorm is a scale and a shift of each channel, which the weights before it can
take over: ``bn(conv(x)) = (γ/σ · w) * x + (β − γ/σ · μ)``. On a GPU the shift, the addition of a
shortcut and the ReLU then ride along with the convolution in one kernel. Half precision suits it
there: PyTorch rounds the inputs of convolutions to as many bits anyway (TF32). For few channels,
where cuDNN's are slow, the kernel is our own, see :mod:`ocar.accel.triton.convolution`.
"""

from __future__ import annotations

from types import ModuleType
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from ocar.accel.compiled import kernels
from ocar.models.resnet import BasicBlock, ResNet

_FEW = 32  # channels that come in for which our own kernel is faster than cuDNN's
_MOST = 2**31  # numbers of a tensor that it can count


class FoldedResNet:
    """Predicts as a ResNet does in eval mode.

    Args:
        model: The network. Its values are taken over whenever :meth:`refresh_` is called.
        dtype: Type to compute in; by default that of the network.
    """

    def __init__(self, model: ResNet, dtype: torch.dtype | None = None) -> None:
        self._dtype = dtype or model.head.weight.dtype
        stem = cast("nn.Sequential", model.stem)  # convolution, BatchNorm, ReLU, perhaps a pooling
        self._stem = _Folded(stem[0], stem[1], self._dtype)
        self._after_stem = nn.Sequential(*list(stem)[3:])
        blocks = (cast("BasicBlock", block) for block in model.blocks)
        self._blocks = [_FoldedBlock(block, self._dtype) for block in blocks]
        self._pool, self._head = model.pool, model.head
        parts = [self._stem, *(part for block in self._blocks for part in block.parts)]
        self._parts = parts
        self._eps = [part.norm.eps for part in parts]
        self._joint = [  # a shortcut's shift is added with that of the second convolution
            (parts.index(block.second), parts.index(block.shortcut))
            for block in self._blocks
            if block.shortcut is not None
        ]

    @torch.no_grad()
    def refresh_(self) -> None:
        """Fold the values that the network has now."""
        parts = self._parts
        scales = torch._foreach_add([part.variance for part in parts], self._eps)
        torch._foreach_rsqrt_(scales)
        torch._foreach_mul_(scales, [part.norm.weight.detach() for part in parts])
        shifts = torch._foreach_mul([part.mean for part in parts], scales)
        shifts = torch._foreach_sub([part.norm.bias.detach() for part in parts], shifts)
        seconds, shortcuts = zip(*((shifts[i], shifts[j]) for i, j in self._joint), strict=True)
        torch._foreach_add_(seconds, shortcuts)
        torch._foreach_copy_([part.own_bias for part in parts], shifts)
        for part, scale in zip(parts, scales, strict=True):
            torch.mul(part.conv.weight, scale.view(-1, 1, 1, 1), out=part.own_weight)

    def prepare(self, x: Tensor) -> Tensor:
        """Images in the type and layout that :meth:`__call__` wants.

        Args:
            x: Images ``(n, channels, h, w)``.
        """
        missing = self._stem.weight.shape[1] - x.shape[1]
        x = functional.pad(x, (0, 0, 0, 0, 0, missing)) if missing > 0 else x
        return x.to(self._dtype, memory_format=torch.channels_last)

    def __call__(self, x: Tensor) -> Tensor:
        """Logits ``(n, classes)`` of images that :meth:`prepare` gave."""
        x = self._after_stem(self._stem(x, relu=True))
        for block in self._blocks:
            x = block(x)
        width = self._head.in_features
        features = self._pool(x).flatten(1)[:, :width].to(self._head.weight.dtype)
        logits: Tensor = self._head(features)
        return logits


class _FoldedBlock:
    def __init__(self, block: BasicBlock, dtype: torch.dtype) -> None:
        self.first = _Folded(block.conv1, block.bn1, dtype)
        self.second = _Folded(block.conv2, block.bn2, dtype)
        self.shortcut: _Folded | None = None
        if isinstance(block.shortcut, nn.Sequential):
            self.shortcut = _Folded(block.shortcut[0], block.shortcut[1], dtype)

    @property
    def parts(self) -> list[_Folded]:
        parts = (self.first, self.second, self.shortcut)
        return [part for part in parts if part is not None]

    def __call__(self, x: Tensor) -> Tensor:
        short = x if self.shortcut is None else self.shortcut(x, shift=False)  # the second has it
        return self.second(self.first(x, relu=True), add=short, relu=True)


class _Folded:
    """A convolution with the BatchNorm after it, with channels of zeros up to the alignment."""

    def __init__(self, conv: nn.Module, norm: nn.Module, dtype: torch.dtype) -> None:
        self.conv, self.norm = cast("nn.Conv2d", conv), cast("nn.BatchNorm2d", norm)
        outputs, inputs, *kernel = self.conv.weight.shape
        like = self.conv.weight.detach().new_empty(0, dtype=dtype)
        ours = _kernels(like)
        shape = (_aligned(outputs, ours), _aligned(inputs, ours), *kernel)
        self.weight = like.new_zeros(shape).contiguous(memory_format=torch.channels_last)
        self.bias = like.new_zeros(shape[0])
        few = shape[1] <= _FEW or kernel == [1, 1]
        self._kernels = ours if few and _is_plain(self.conv) else None
        self.own_weight, self.own_bias = self.weight[:outputs, :inputs], self.bias[:outputs]
        self._padding = cast("tuple[int, ...]", self.conv.padding)

    @property
    def mean(self) -> Tensor:
        assert self.norm.running_mean is not None
        return self.norm.running_mean

    @property
    def variance(self) -> Tensor:
        assert self.norm.running_var is not None
        return self.norm.running_var

    def __call__(
        self, x: Tensor, *, add: Tensor | None = None, relu: bool = False, shift: bool = True
    ) -> Tensor:
        bias = self.bias if shift else None
        stride, dilation, groups = self.conv.stride, self.conv.dilation, self.conv.groups
        pixels, channels = x.numel() // x.shape[1], max(self.weight.shape[:2])
        if self._kernels is not None and pixels * channels < _MOST:
            how = {"stride": stride[0], "padding": self._padding[0], "relu": relu}
            y: Tensor = self._kernels.convolve(x, self.weight, bias, add, **how)
            return y
        geometry = (stride, self._padding, dilation, groups)
        if x.is_cuda and relu and x.dtype != torch.float64:
            if add is None:
                return torch.cudnn_convolution_relu(x, self.weight, bias, *geometry)
            return torch.cudnn_convolution_add_relu(x, self.weight, add, 1.0, bias, *geometry)
        y = functional.conv2d(x, self.weight, bias, *geometry)
        y = y if add is None else y.add_(add)
        return y.relu_() if relu else y


def _kernels(weight: Tensor) -> ModuleType | None:
    """Kernels of our own for such a weight, if they can be compiled."""
    half = weight.is_cuda and weight.dtype == torch.float16
    return kernels("ocar.accel.triton.convolution") if half else None


def _is_plain(conv: nn.Conv2d) -> bool:
    """Whether a convolution is 1×1 or 3×3, and the same both ways, with as much padding."""
    side = conv.kernel_size[0]
    return (
        side in (1, 3)
        and conv.kernel_size == (side, side)
        and conv.stride[0] == conv.stride[1]
        and conv.padding == (side // 2, side // 2)
        and conv.padding_mode == "zeros"
        and conv.dilation == (1, 1)
        and conv.groups == 1
    )


def _aligned(channels: int, ours: ModuleType | None) -> int:
    """As many channels, or more, as a GPU likes to take together."""
    if channels <= _FEW:
        alignment = 8 if ours is not None or channels <= _FEW // 2 else _FEW
    else:
        alignment = 64 if channels < 64 else 16
    return -(-channels // alignment) * alignment


def fold(model: nn.Module, dtype: torch.dtype | None = None) -> FoldedResNet | None:
    """A folded version of a network that can be folded, else None.

    Args:
        model: Any module.
        dtype: Type to compute in; by default that of the network.
    """
    foldable = isinstance(model, ResNet) and all(
        norm.track_running_stats and norm.affine
        for norm in model.modules()
        if isinstance(norm, nn.BatchNorm2d)
    )
    return FoldedResNet(cast("ResNet", model), dtype) if foldable else None

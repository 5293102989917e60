"""A ResNet for prediction alone: BatchNorm folded into the convolutions.

In eval mode BatchNorm is a scale and a shift of each channel, which the weights before it can
take over: ``bn(conv(x)) = (γ/σ · w) * x + (β − γ/σ · μ)``. On a GPU the shift, the addition of a
shortcut and the ReLU are then part of the convolution's kernel. Half precision is enough there:
PyTorch rounds the inputs of convolutions to as many bits anyway (TF32). cuDNN is slow for few
channels, so these have a kernel of their own.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from ocar.accel.networks import ResNet, all_pairs, find_resnet, is_small_kernel
from ocar.accel.operation import has_triton

_FEW = 32  # input channels up to which our kernel is faster than cuDNN's
_MOST = 2**31  # numbers of a tensor that it can count


class FoldedResNet:
    """Predicts as a ResNet does in eval mode, with the values of the last :meth:`refresh_`."""

    def __init__(self, network: ResNet, dtype: torch.dtype) -> None:
        self._dtype = dtype
        stem = network.stem
        self._stem = _Folded(stem[0], stem[1], dtype)
        self._after_stem = nn.Sequential(*list(stem)[3:])
        self._blocks: list[tuple[_Folded, _Folded, _Folded | None]] = []
        self._pool, self._head = network.pool, network.head
        self._parts = [self._stem]
        self._joint: list[tuple[int, int]] = []
        for block in network.blocks:
            first = _Folded(block.conv1, block.bn1, dtype)
            second = _Folded(block.conv2, block.bn2, dtype)
            self._parts += [first, second]
            short = None
            if isinstance(block.shortcut, nn.Sequential):
                short = _Folded(block.shortcut[0], block.shortcut[1], dtype)
                self._parts.append(short)
                # The shift of a shortcut is added to that of the second convolution.
                self._joint.append((len(self._parts) - 2, len(self._parts) - 1))
            self._blocks.append((first, second, short))

    @torch.no_grad()
    def refresh_(self) -> None:
        """Fold the present values of the network."""
        parts = self._parts
        norms = [part.norm for part in parts]
        variances = [cast("Tensor", norm.running_var) for norm in norms]
        scales = torch._foreach_add(variances, [norm.eps for norm in norms])
        torch._foreach_rsqrt_(scales)
        torch._foreach_mul_(scales, [n.weight.detach() for n in norms])
        shifts = torch._foreach_mul([cast("Tensor", n.running_mean) for n in norms], scales)
        shifts = torch._foreach_sub([n.bias.detach() for n in norms], shifts)
        if self._joint:
            seconds, shortcuts = zip(*((shifts[i], shifts[j]) for i, j in self._joint), strict=True)
            torch._foreach_add_(seconds, shortcuts)
        torch._foreach_copy_([part.own_bias for part in parts], shifts)
        for part, scale in zip(parts, scales, strict=True):
            torch.mul(part.conv.weight, scale.view(-1, 1, 1, 1), out=part.own_weight)

    def prepare(self, x: Tensor) -> Tensor:
        """Images ``(n, channels, h, w)`` in the type and layout for :meth:`__call__`."""
        missing = self._stem.weight.shape[1] - x.shape[1]
        x = functional.pad(x, (0, 0, 0, 0, 0, missing)) if missing > 0 else x
        return x.to(self._dtype, memory_format=torch.channels_last)

    def __call__(self, x: Tensor) -> Tensor:
        """Logits ``(n, classes)`` of prepared images."""
        x = self._after_stem(self._stem(x, relu=True))
        for first, second, shortcut in self._blocks:
            short = x if shortcut is None else shortcut(x, shift=False)
            x = second(first(x, relu=True), add=short, relu=True)
        width = self._head.in_features
        features = self._pool(x).flatten(1)[:, :width].to(self._head.weight.dtype)
        logits: Tensor = self._head(features)
        return logits


class _Folded:
    """A convolution with the BatchNorm after it, padded with channels of zeros."""

    def __init__(self, conv: nn.Module, norm: nn.Module, dtype: torch.dtype) -> None:
        self.conv, self.norm = cast("nn.Conv2d", conv), cast("nn.BatchNorm2d", norm)
        outputs, inputs, *kernel = self.conv.weight.shape
        like = self.conv.weight.detach().new_empty(0, dtype=dtype)
        ours = dtype == torch.float16 and has_triton(like)
        shape = (_aligned(outputs, ours), _aligned(inputs, ours), *kernel)
        self.weight = like.new_zeros(shape).contiguous(memory_format=torch.channels_last)
        self.bias = like.new_zeros(shape[0])
        few = shape[1] <= _FEW or kernel == [1, 1]
        self._ours = ours and few and is_small_kernel(self.conv)
        self.own_weight, self.own_bias = self.weight[:outputs, :inputs], self.bias[:outputs]

    def __call__(
        self, x: Tensor, *, add: Tensor | None = None, relu: bool = False, shift: bool = True
    ) -> Tensor:
        bias, conv = self.bias if shift else None, self.conv
        padding = cast("tuple[int, ...]", conv.padding)
        pixels, channels = x.numel() // x.shape[1], max(self.weight.shape[:2])
        if self._ours and pixels * channels < _MOST:
            from ocar.accel.triton.convolution import convolve

            stride, pad = conv.stride[0], padding[0]
            return convolve(x, self.weight, bias, add, stride=stride, padding=pad, relu=relu)
        geometry = (conv.stride, padding, conv.dilation, conv.groups)
        if x.is_cuda and relu and x.dtype != torch.float64:
            if add is None:
                return torch.cudnn_convolution_relu(x, self.weight, bias, *geometry)
            return torch.cudnn_convolution_add_relu(x, self.weight, add, 1.0, bias, *geometry)
        y = functional.conv2d(x, self.weight, bias, *geometry)
        y = y if add is None else y.add_(add)
        return y.relu_() if relu else y


def _aligned(channels: int, ours: bool) -> int:
    """Channels with padding, so that the kernels read them together."""
    if channels <= _FEW:
        alignment = 8 if ours or channels <= _FEW // 2 else _FEW
    else:
        alignment = 64 if channels < 64 else 16
    return -(-channels // alignment) * alignment


def fold(model: nn.Module, dtype: torch.dtype) -> FoldedResNet | None:
    """A folded version of a model that can be folded, else None; it computes in ``dtype``."""
    network = find_resnet(model)
    if network is None or not all_pairs(network, lambda c, n: n.track_running_stats and n.affine):
        return None
    return FoldedResNet(network, dtype)

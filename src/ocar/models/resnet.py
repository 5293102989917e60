"""ResNet-18 in two sizes: slim for small images, standard for 224 pixels.

Both are a stem, four stages of two basic blocks with strides 1, 2, 2, 2, a pooling and
``head``: 20 convolutions without bias, each followed by BatchNorm, and one linear layer.
They differ in width, stem and pooling only. Images are ``(n, channels, height, width)``,
float, already normalised. Initialisation is PyTorch's own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ocar import accel
from ocar.config import require, require_sizes

_STAGES = ((1, 1), (2, 2), (4, 2), (8, 2))  # (multiple of the width, stride) of each stage
_POOL = 4  # side of the average pooling of the slim network


class BasicBlock(nn.Module):
    """Two 3×3 convolutions, the first with the stride, and a shortcut, 1×1 if the shape changes."""

    def __init__(self, in_channels: int, out_channels: int, *, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False),
                nn.BatchNorm2d(out_channels),
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``(n, in_channels, h, w)`` to ``(n, out_channels, ⌈h/stride⌉, ⌈w/stride⌉)``."""
        if isinstance(self.shortcut, nn.Identity):
            return accel.norm_act(self.bn2, self._inner(x), x)
        out, short = accel.parallel(lambda: self._inner(x), lambda: self.shortcut(x))
        return accel.norm_act(self.bn2, out, short)

    def _inner(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.conv2(accel.norm_act(self.bn1, self.conv1(x)))
        return out


class Stem(nn.Sequential):
    """A convolution, BatchNorm, ReLU, and perhaps a pooling."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer after another."""
        out = accel.norm_act(self[1], self[0](x))
        for layer in list(self)[3:]:
            out = layer(out)
        return out


class ResNet(nn.Module):
    """Base of the two networks; a subclass gives stem, pooling and width.

    Args:
        stem: From images to ``(n, width, h, w)``.
        pool: From ``(n, 8·width, h, w)`` to the features, before they are flattened.
        width: Channels of the first stage.
        in_features: Length of the flattened features.
        classes: Outputs of ``head``; the learner masks units without a class.
    """

    def __init__(
        self, stem: nn.Module, pool: nn.Module, *, width: int, in_features: int, classes: int
    ) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        channels = width
        for multiple, stride in _STAGES:
            blocks.append(BasicBlock(channels, multiple * width, stride=stride))
            channels = multiple * width
            blocks.append(BasicBlock(channels, channels))
        self.stem = stem
        self.blocks = nn.Sequential(*blocks)
        self.pool = pool
        self.head = nn.Linear(in_features, classes)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):  # the count is unused and costs a kernel
                module.num_batches_tracked = None
        self.register_load_state_dict_post_hook(_leave_out_counts)  # type: ignore[no-untyped-call]

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Penultimate features ``(n, head.in_features)`` of images ``(n, channels, h, w)``."""
        pooled: torch.Tensor = self.pool(self.blocks(self.stem(x)))
        return pooled.flatten(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits ``(n, classes)`` of images ``(n, channels, h, w)``."""
        logits: torch.Tensor = self.head(self.features(x))
        return logits


accel.register_resnet(ResNet, block=BasicBlock, stem=Stem)


def _leave_out_counts(model: nn.Module, keys: Any) -> None:
    """Accept weights with the batch counts of BatchNorm, which these networks do not have."""
    counted = "num_batches_tracked"
    keys.unexpected_keys[:] = [key for key in keys.unexpected_keys if not key.endswith(counted)]


class SlimResNet18(ResNet):
    """The narrow ResNet-18 of online continual learning, about 1.1 M parameters.

    Its stem is 3×3 with stride 1 and has no max-pool; its average pooling has a fixed side of
    4, so the number of features follows the image size: 160 at 32 pixels, 640 at 64.

    Images are square, with a side of at least 25. ``width`` is the number of channels of the first
    stage (nf in the literature); the others have 2, 4 and 8 times as many.
    """

    def __init__(
        self, image_size: int = 32, *, channels: int = 3, width: int = 20, classes: int = 16
    ) -> None:
        last_side = (image_size + 7) // 8
        require("image_size", image_size, last_side >= _POOL, f"at least {8 * _POOL - 7}")
        require_sizes(channels=channels, width=width, classes=classes)
        super().__init__(
            Stem(
                nn.Conv2d(channels, width, 3, padding=1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
            ),
            nn.AvgPool2d(_POOL),
            width=width,
            in_features=8 * width * (last_side // _POOL) ** 2,
            classes=classes,
        )


class ResNet18(ResNet):
    """The standard ImageNet ResNet-18, for images of about 224 pixels."""

    def __init__(self, *, channels: int = 3, classes: int = 16) -> None:
        require_sizes(channels=channels, classes=classes)
        width = 64
        super().__init__(
            Stem(
                nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
                nn.MaxPool2d(3, stride=2, padding=1),
            ),
            nn.AdaptiveAvgPool2d(1),
            width=width,
            in_features=8 * width,
            classes=classes,
        )

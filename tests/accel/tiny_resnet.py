"""The smallest ResNet that the special forward passes know: a stem and two blocks."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from ocar import accel


class Block(nn.Module):
    """Two convolutions and a shortcut, which is a convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, *, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        inner = self.conv2(functional.relu(self.bn1(self.conv1(x))))
        return functional.relu(self.bn2(inner) + self.shortcut(x))


class Stem(nn.Sequential):
    """Convolution, BatchNorm, ReLU."""


class TinyResNet(nn.Module):
    """For square images.

    Args:
        channels: Channels of the images.
        widths: Channels of the two blocks. The second block has stride 2 if they differ.
        side: Height and width of the images.
        units: Outputs.
        pool: The pooling before the output layer; by default the mean over all pixels.
    """

    def __init__(
        self,
        channels: int = 3,
        widths: tuple[int, int] = (4, 8),
        side: int = 8,
        *,
        units: int = 6,
        pool: nn.Module | None = None,
    ) -> None:
        super().__init__()
        first, second = widths
        self.stem = Stem(
            nn.Conv2d(channels, first, 3, padding=1, bias=False),
            nn.BatchNorm2d(first),
            nn.ReLU(inplace=True),
        )
        stride = 1 if first == second else 2
        self.blocks = nn.Sequential(Block(first, first), Block(first, second, stride=stride))
        self.pool = nn.AdaptiveAvgPool2d(1) if pool is None else pool
        last = (side - 1) // stride + 1
        windows = 1 if pool is None else (last // pool.kernel_size) ** 2
        self.head = nn.Linear(second * windows, units)

    def features(self, x: Tensor) -> Tensor:
        return self.pool(self.blocks(self.stem(x))).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


accel.register_resnet(TinyResNet, block=Block, stem=Stem)

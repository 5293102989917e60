"""Networks for images."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from zoo.parts import UNITS, Group, Net, conv, head

zoo = Group("images")


class SqueezeExcite(nn.Module):
    """Channels weighted by a small network of their means."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(channels, 4), nn.ReLU(), nn.Linear(4, channels), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        """The weighted channels."""
        outputs: Tensor = x * self.net(x.mean((2, 3)))[..., None, None]
        return outputs


def convnext() -> nn.Module:
    """A block of a ConvNeXt: depthwise convolution, LayerNorm over channels, two linear layers."""
    inner = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    return Net(
        lambda m, x: x + m.scale * m.inner(m.depth(x).movedim(1, -1)).movedim(-1, 1),
        depth=nn.Conv2d(8, 8, 3, padding=1, groups=8),
        inner=inner,
        scale=nn.Parameter(torch.full((8, 1, 1), 0.5)),
    )


def mbconv() -> nn.Module:
    """An inverted residual block with squeeze and excitation."""
    inner = nn.Sequential(
        *(nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16), nn.SiLU()),
        *(nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False), nn.BatchNorm2d(16), nn.SiLU()),
        *(SqueezeExcite(16), nn.Conv2d(16, 8, 1, bias=False), nn.BatchNorm2d(8)),
    )
    return Net(lambda m, x: x + m.inner(x), inner=inner)


def mixer() -> nn.Module:
    """An MLP-Mixer over four patches."""
    return Net(
        lambda m, x: m.head(m.channels((h := m.patch(x).flatten(2)) + m.places(h)).mean(2)),
        patch=nn.Conv2d(3, 16, 4, stride=4),
        places=nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)),
        channels=nn.Conv1d(16, 16, 1),
        head=head(),
    )


def vit() -> nn.Module:
    """A small vision transformer with a class token and positions."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, norm_first=True)
    return Net(
        lambda m, x: m.head(
            m.layer(
                torch.cat([m.token.expand(len(x), 1, 16), m.patch(x).flatten(2).mT], 1) + m.place
            )[:, 0]
        ),
        patch=nn.Conv2d(3, 16, 4, stride=4),
        token=nn.Parameter(torch.zeros(1, 1, 16)),
        place=nn.Parameter(torch.randn(1, 5, 16) / 10),
        layer=layer,
        head=head(),
    )


def unet() -> nn.Module:
    """Down and up again, with a skip connection."""
    return Net(
        lambda m, x: m.head(
            torch.cat([h := m.a(x).relu(), m.up(m.down(h).relu())], 1).mean((2, 3))
        ),
        a=nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)),
        down=nn.Conv2d(8, 8, 2, stride=2),
        up=nn.ConvTranspose2d(8, 8, 2, stride=2),
        head=head(),
    )


def resnet() -> nn.Module:
    """This package's ResNet, narrow."""
    from ocar.models import make_model

    return make_model("slim-resnet18", image_shape=(3, 32, 32), classes=UNITS)


IMAGES: dict[str, Any] = {"fed": "images"}
zoo("convolution", conv, **IMAGES)
zoo(
    "convolution without bias, BatchNorm, in-place ReLU",
    lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        head(288),
    ),
    **IMAGES,
)
zoo(
    "channels last", lambda: conv(nn.BatchNorm2d(8)).to(memory_format=torch.channels_last), **IMAGES
)
zoo(
    "depthwise separable",
    lambda: conv(nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 8, 1), area=16),
    **IMAGES,
)
zoo(
    "dilated, strided, padded",
    lambda: conv(
        nn.Conv2d(8, 8, 3, stride=2, dilation=2, padding=2, padding_mode="reflect"), area=9
    ),
    **IMAGES,
)
zoo(
    "pooling of every kind",
    lambda: conv(
        nn.BatchNorm2d(8),
        nn.MaxPool2d(2),
        nn.AvgPool2d(2, padding=1),
        nn.AdaptiveAvgPool2d(1),
        area=1,
    ),
    **IMAGES,
)
zoo("transposed convolution, skip connection", unet, batches=80, **IMAGES)
zoo("PixelShuffle", lambda: conv(nn.PixelShuffle(2), channels=2, area=144), **IMAGES)
zoo("squeeze and excitation", lambda: conv(SqueezeExcite(8)), **IMAGES)
zoo("ConvNeXt block", lambda: conv(convnext()), **IMAGES)
zoo("inverted residual block", lambda: conv(mbconv()), **IMAGES)
zoo("MLP-Mixer", mixer, batches=120, **IMAGES)
zoo("vision transformer", vit, batches=80, **IMAGES)
zoo(
    "Conv3d",
    lambda: nn.Sequential(
        nn.Unflatten(1, (1, 3)), nn.Conv3d(1, 8, 3), nn.ReLU(), nn.Flatten(), head(288)
    ),
    **IMAGES,
)

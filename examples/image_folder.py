"""ER and OCAR on a folder of your own images.

    python examples/image_folder.py FOLDER [--size 32] [--tasks 5] [--methods er ocar] [--seed 0]

The folder holds ``domain/class/*.png``, and then comes one domain after another, or
``class/*.png``, and then come a few classes at a time. Any common format will do. Without a folder
a small one is drawn: discs, squares and crosses by day and by night.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import nn

import ocar
from ocar.datasets import load_domains
from ocar.datasets.pictures import decode, is_picture
from ocar.evaluate import Finished, Summary
from ocar.streams import ClassIncremental, DomainIncremental, TaskArrays, TaskStream

SETTINGS: dict[str, dict[str, Any]] = {
    "er": {"lr": 0.03},
    "ocar": {"lr": 0.003, "tau_step": 1e-8, "ema": 0.1},
}
"""To begin with; choose better ones for your images."""


def make_stream(folder: Path, *, size: int, tasks: int | None, seed: int) -> TaskStream:
    """The stream that a folder gives, by how deep its images lie."""
    depths = {len(p.relative_to(folder).parts) for p in folder.rglob("*") if is_picture(p.name)}
    if depths == {3}:
        arrays = load_domains(folder, size=size)
        print(f"{len(arrays.domains)} domains ({', '.join(arrays.domains)}), one after another")
        return DomainIncremental(arrays, seed=seed)
    if depths == {2}:
        return ClassIncremental(load_classes(folder, size=size), tasks=tasks or 1, seed=seed)
    raise SystemExit(f"{folder} must hold images in domain/class/ or in class/ folders.")


def load_classes(folder: Path, *, size: int) -> TaskArrays:
    """All images of ``class/*``, every fifth for test; labels are numbered by name."""
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    images, labels, held_out = [], [], []
    for label, name in enumerate(names):
        files = sorted(path for path in (folder / name).iterdir() if is_picture(path.name))
        images += [torch.from_numpy(decode(path.read_bytes(), size)) for path in files]
        labels += [label] * len(files)
        held_out += [place % 5 == 0 for place in range(len(files))]
    x, y, test = torch.stack(images), torch.tensor(labels), torch.tensor(held_out)
    print(f"{len(names)} classes ({', '.join(names)}), {len(y)} images")
    return TaskArrays(
        name=folder.name, x_train=x[~test], y_train=y[~test], x_test=x[test], y_test=y[test]
    )


def make_network(seed: int) -> nn.Module:
    """Three convolutions: enough for a first look; ``ocar.make_model`` has ResNets."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for before, after in ((3, 16), (16, 32), (32, 32)):
            convolution = nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False)
            layers += [convolution, nn.BatchNorm2d(after), nn.ReLU()]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 16))


def run(method: str, stream: TaskStream, seed: int) -> Summary:
    """One pass over the stream, evaluated after every tenth batch."""
    settings = dict(SETTINGS[method])
    if method == "ocar":
        by_domain = isinstance(stream, DomainIncremental)
        settings["increments"] = "domains" if by_domain else "classes"
    learner = ocar.make_learner(
        method,
        make_network(seed),
        memory=200,
        augment=ocar.CropFlip(padding=2, flip=True),
        seed=seed,
        **settings,
    )
    for event in ocar.evaluate(learner, stream, every=10):
        if isinstance(event, Finished):
            return event.summary
    raise AssertionError("a stream ends with Finished")


def draw_folder(folder: Path, *, images: int = 40, size: int = 32) -> Path:
    """Three shapes in two kinds of light, ``domain/class/*.png``."""
    random = np.random.default_rng(0)
    for domain, light in (("day", 190), ("night", 60)):
        for shape in ("cross", "disc", "square"):
            place = folder / domain / shape
            place.mkdir(parents=True)
            for number in range(images):
                noise = random.integers(0, 40, (size, size, 3)) + light - 40
                image = Image.fromarray(noise.astype(np.uint8))
                _draw(ImageDraw.Draw(image), shape, random, size, light)
                image.save(place / f"{number}.png")
    return folder


def _draw(
    draw: ImageDraw.ImageDraw, shape: str, random: np.random.Generator, size: int, light: int
) -> None:
    x, y = random.uniform(0.35 * size, 0.65 * size, 2)
    r = random.uniform(0.2, 0.3) * size
    ink = tuple(int(value) for value in random.integers(0, light // 2, 3))
    if shape == "cross":
        draw.line((x - r, y - r, x + r, y + r), fill=ink, width=4)
        draw.line((x - r, y + r, x + r, y - r), fill=ink, width=4)
    elif shape == "disc":
        draw.ellipse((x - r, y - r, x + r, y + r), fill=ink)
    else:
        r = r * math.sqrt(math.pi) / 2  # the area of the disc
        draw.rectangle((x - r, y - r, x + r, y + r), fill=ink)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", help="drawn if it is not given")
    parser.add_argument("--size", type=int, default=32, help="height and width of the images")
    parser.add_argument("--tasks", type=int, help="for class/*: must divide the classes")
    parser.add_argument("--methods", nargs="+", choices=sorted(SETTINGS), default=["er", "ocar"])
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as drawn:
        folder = given.folder or draw_folder(Path(drawn) / "shapes")
        stream = make_stream(folder, size=given.size, tasks=given.tasks, seed=given.seed)
        start = stream.state_dict()
        for method in given.methods:
            stream.load_state_dict(start)
            found = run(method, stream, given.seed)
            parts = {"Acc": found.acc, "AAA": found.aaa, "WC-Acc": found.wc_acc}
            shown = [f"{name} {value:.1%}" for name, value in parts.items() if value is not None]
            print(f"{method:5} {', '.join(shown)}")


if __name__ == "__main__":
    main()

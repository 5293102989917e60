"""ER and OCAR on a folder of your own images.

    python examples/image_folder.py FOLDER [--size 32] [--at-a-time 2] [--save TRAINED]
    python examples/image_folder.py --ask TRAINED IMAGE...

The folder holds ``class/*.jpg``, and then come two classes at a time, by name, or
``domain/class/*.jpg``, and then comes one domain after another. Any common format will do. A fifth
of the images is kept for test. ``--save`` writes what was learned, and ``--ask`` says what it sees
in other images. Without a folder a small one is drawn: discs, squares and crosses by day and by
night.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import nn

import ocar
from ocar.datasets import load_domains
from ocar.datasets.decoding import decode
from ocar.datasets.pictures import is_picture
from ocar.evaluate import Finished, Summary, TaskEnded
from ocar.files import read_file
from ocar.streams import ArrayStream, DomainIncremental, TaskArrays, TaskStream

SETTINGS: dict[str, dict[str, Any]] = {
    "er": {"lr": 0.03},
    "ocar": {},
    "ocar-slow": {},
}
"""OCAR needs none. The rate of ER is the best of a few on the cartoons of PACS: choose your own."""


def read_image(path: Path, size: int) -> torch.Tensor:
    """The pixels of a file, ``(3, size, size)``."""
    try:
        return torch.from_numpy(decode(read_file(path), size))
    except Exception as error:  # a damaged image can raise anything
        raise SystemExit(f"Cannot read {path} as an image: {error}") from error


def make_stream(
    folder: Path, *, size: int, at_a_time: int, seed: int
) -> tuple[TaskStream, list[str], list[str]]:
    """The stream that a folder gives, by how deep its images lie.

    Returns:
        The stream, what each of its tasks is called, and what each class is called.
    """
    depths = {len(p.relative_to(folder).parts) for p in folder.rglob("*") if is_picture(p.name)}
    if depths == {3}:
        arrays = load_domains(folder, size=size)
        domains = DomainIncremental(arrays, seed=seed)
        return domains, list(domains.domains), list(arrays.classes)
    if depths == {2}:
        classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
        starts = range(0, len(classes), at_a_time)
        tasks = [load_classes(folder, classes, at, at_a_time, size) for at in starts]
        return ArrayStream(tasks, seed=seed), [task.name for task in tasks], classes
    raise SystemExit(f"{folder} must hold images in domain/class/ or in class/ folders.")


def load_classes(
    folder: Path, classes: Sequence[str], start: int, count: int, size: int
) -> TaskArrays:
    """The images of a few classes, every fifth for test; a label is a class's place by name."""
    images, labels, held_out = [], [], []
    chosen = classes[start : start + count]
    for label, name in enumerate(chosen, start):
        files = sorted(path for path in (folder / name).iterdir() if is_picture(path.name))
        images += [read_image(path, size) for path in files]
        labels += [label] * len(files)
        held_out += [place % 5 == 0 for place in range(len(files))]
    x, y, test = torch.stack(images), torch.tensor(labels), torch.tensor(held_out)
    return TaskArrays(
        name=", ".join(chosen),
        x_train=x[~test],
        y_train=y[~test],
        x_test=x[test],
        y_test=y[test],
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


def make_learner(method: str, stream: TaskStream, seed: int) -> ocar.Learner:
    """A learner for the stream, with nothing learned yet."""
    settings = dict(SETTINGS[method])
    if method == "ocar":
        by_domain = isinstance(stream, DomainIncremental)
        settings["increments"] = "domains" if by_domain else "classes"
    augment = ocar.CropFlip(padding=2, flip=True)
    network = make_network(seed)
    return ocar.make_learner(method, network, memory=200, augment=augment, seed=seed, **settings)


def run(learner: ocar.Learner, stream: TaskStream, tasks: Sequence[str]) -> Summary:
    """One pass over the stream; prints after each task how much of all so far is recognised."""
    for event in ocar.evaluate(learner, stream, every=10):
        if isinstance(event, TaskEnded):
            right = [recognised(learner, *stream.test(t)) for t in range(event.task + 1)]
            print(f"  after {tasks[event.task]}: {torch.cat(right).mean():.1%}", flush=True)
        elif isinstance(event, Finished):
            return event.summary
    raise AssertionError("a stream ends with Finished")


def recognised(learner: ocar.Learner, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """1 for each image that the learner recognises now, 0 for others."""
    labels = torch.tensor(learner.classes)[learner.predict(x).argmax(1)]
    return (labels == y).double()


def save(folder: Path, learner: ocar.Learner, classes: Sequence[str], size: int) -> None:
    """Write all that ``--ask`` needs, and all that further learning would."""
    folder.mkdir(parents=True, exist_ok=True)
    learner.save(folder / "learner")
    about = {"classes": list(classes), "size": size}
    (folder / "about.json").write_text(json.dumps(about), encoding="utf-8")


def ask(folder: Path, images: Sequence[Path]) -> None:
    """Tell what a saved learner sees in some images."""
    if not (folder / "about.json").is_file():
        raise SystemExit(f"There is no saved learner in {folder}. --save T writes T/er and T/ocar.")
    if not images:
        raise SystemExit(f"Give images after --ask {folder}.")
    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    learner = ocar.load(folder / "learner", make_network(0))
    x = torch.stack([read_image(path, about["size"]) for path in images])
    best = learner.predict(x).softmax(1).max(1)
    for path, share, place in zip(images, best.values, best.indices.tolist(), strict=True):
        print(f"{path}: {about['classes'][learner.classes[place]]} ({share:.0%})")


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


def train(given: argparse.Namespace, folder: Path) -> None:
    """Take each method through the folder's stream."""
    stream, tasks, classes = make_stream(
        folder, size=given.size, at_a_time=given.at_a_time, seed=given.seed
    )
    print(f"{len(classes)} classes in {len(tasks)} tasks; recognised of all so far, test images:")
    start = stream.state_dict()
    for method in given.methods:
        stream.load_state_dict(start)
        learner = make_learner(method, stream, given.seed)
        print(method.upper())
        found = run(learner, stream, tasks)
        print(f"  at the end: {found.acc:.1%}, learned in {found.seconds:.0f} s")
        if given.save is not None:
            save(given.save / method, learner, classes, given.size)
            print(f"  saved: {given.save / method}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", help="drawn if it is not given")
    parser.add_argument("--size", type=int, default=32, help="height and width of the images")
    parser.add_argument("--at-a-time", type=int, default=2, help="for class/*: classes in a task")
    parser.add_argument("--methods", nargs="+", choices=sorted(SETTINGS), default=["er", "ocar"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, help="a folder for the learners")
    parser.add_argument("--ask", type=Path, nargs="+", help="a saved learner, then images")
    given = parser.parse_args()
    if given.ask is not None:
        ask(given.ask[0], given.ask[1:])
        return
    with tempfile.TemporaryDirectory() as drawn:
        train(given, given.folder or draw_folder(Path(drawn) / "shapes"))


if __name__ == "__main__":
    main()

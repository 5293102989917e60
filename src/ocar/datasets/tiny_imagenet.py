"""Tiny ImageNet, from the official folder or zip.

Training images are in ``train/<wnid>/images/*.JPEG``. Test images are the official ``val/images``
with the labels in ``val/val_annotations.txt``, since the labels of ``test`` were never published.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ocar.datasets.archives import Tree, check_inside, locate_tree, open_tree
from ocar.datasets.arrays import Arrays
from ocar.datasets.pictures import ImageFiles, ImageSet, Picture, is_picture
from ocar.errors import DataError

_FOLDER = "tiny-imagenet-200"
_ARCHIVE = "tiny-imagenet-200.zip"
_MD5 = "90528d7ca1a48142e341f4ef8d21d0de"  # avalanche/benchmarks/datasets/tiny_imagenet
_TRAIN, _TEST = 100_000, 10_000


class TinyImageNet(ImageFiles):
    """Tiny ImageNet, or a sample of it."""

    name = "tiny-imagenet"
    how_to_get = (
        f"Put http://cs231n.stanford.edu/{_ARCHIVE}, unpacked or not, in the data root. "
        "For non-commercial research."
    )
    size = 64

    def _locate(self, root: Path) -> tuple[Path, dict[Path, str | None]]:
        where = locate_tree(root, folder=_FOLDER, archive=_ARCHIVE)
        if where is None:
            return root / _ARCHIVE, {}
        return where, {where: _MD5 if where.name == _ARCHIVE else None}

    def _count(self, images: ImageSet) -> str:
        train, test = len(images.train), len(images.test)
        if (train, test) == (_TRAIN, _TEST):
            return ""
        return f"A sample: {train:,} of {_TRAIN:,} training and {test:,} of {_TEST:,} test images."

    @contextmanager
    def _open(self, root: Path) -> Iterator[ImageSet]:
        tree = open_tree(root, folder=_FOLDER, archive=_ARCHIVE)
        if tree is None:
            places = f"{root / _FOLDER} or {root / _ARCHIVE}"
            raise DataError(f"No Tiny ImageNet {places}. {self.how_to_get}")
        with tree:
            train = [
                (name.split("/")[1], name, stamp)
                for name, stamp in tree.files("train").items()
                if is_picture(name) and name.count("/") >= 2
            ]
            classes = tuple(sorted({wnid for wnid, _, _ in train}))
            numbers = {wnid: number for number, wnid in enumerate(classes)}
            yield ImageSet(
                name=self.name,
                train=[Picture(tree, name, stamp, numbers[wnid]) for wnid, name, stamp in train],
                test=_annotated(tree, numbers),
                classes=classes,
            )


def _annotated(tree: Tree, numbers: dict[str, int]) -> list[Picture]:
    """The test pictures whose files exist."""
    where = "val/val_annotations.txt"
    stamps = {n: s for n, s in tree.files("val/images").items() if is_picture(n)}
    pictures = []
    for number, line in enumerate(tree.read(where).decode("utf-8", "replace").splitlines(), 1):
        fields = line.split("\t")
        if len(fields) < 2:
            raise DataError(
                f"{tree.locate(where)}, line {number}: {line!r}. Must be a file and its class."
            )
        file, wnid = fields[:2]
        check_inside(file, tree.locate(where))
        name = f"val/images/{file}"
        stamp = stamps.pop(name, None)
        if stamp is None:
            continue
        if wnid not in numbers:
            raise DataError(f"{tree.locate(where)}, line {number}: no training images of {wnid!r}.")
        pictures.append(Picture(tree, name, stamp, numbers[wnid]))
    if stamps:
        raise DataError(f"{tree.locate(where)} has no class for {min(stamps)}: it is truncated.")
    return pictures


def load_tiny_imagenet(root: Path | str, *, size: int = 64) -> Arrays:
    """Tiny ImageNet, 100,000 training and 10,000 test images of 200 classes, or a sample of it.

    Args:
        root: The data root, with ``tiny-imagenet-200`` or ``tiny-imagenet-200.zip``.
        size: Height and width of the images; the published ones have 64.
    """
    return TinyImageNet().load(Path(root), size=size)

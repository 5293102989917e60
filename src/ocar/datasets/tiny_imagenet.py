"""Tiny ImageNet, from the official folder or zip.

Training images are in ``train/<wnid>/images/*.JPEG``. Test images are the official ``val/images``
with the labels in ``val/val_annotations.txt``, since the labels of ``test`` were never published.
"""

from __future__ import annotations

from pathlib import Path

from ocar.datasets.archives import Tree, check_inside
from ocar.datasets.arrays import Arrays
from ocar.datasets.pictures import ImageFiles, ImageSet, Picture, is_picture
from ocar.errors import DataError

_TRAIN, _TEST = 100_000, 10_000


def _list(tree: Tree) -> ImageSet:
    files = [
        (name.split("/")[1], name, stamp)
        for name, stamp in tree.files("train").items()
        if is_picture(name) and name.count("/") >= 2
    ]
    classes = tuple(sorted({wnid for wnid, _, _ in files}))
    numbers = {wnid: number for number, wnid in enumerate(classes)}
    train = [Picture(tree, name, stamp, numbers[wnid]) for wnid, name, stamp in files]
    test = _annotated(tree, numbers)
    missing = ""
    if (len(train), len(test)) != (_TRAIN, _TEST):
        missing = (
            f"A sample: {len(train):,} of {_TRAIN:,} training and {len(test):,} of {_TEST:,} test "
            "images."
        )
    return ImageSet(name="tiny-imagenet", train=train, test=test, classes=classes, missing=missing)


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


TINY_IMAGENET = ImageFiles(
    name="tiny-imagenet",
    how_to_get=(
        "Put http://cs231n.stanford.edu/tiny-imagenet-200.zip, unpacked or not, in the data root. "
        "For non-commercial research."
    ),
    size=64,
    places={"Tiny ImageNet": {"tiny-imagenet-200": "tiny-imagenet-200.zip"}},
    # avalanche/benchmarks/datasets/tiny_imagenet
    md5={"tiny-imagenet-200.zip": "90528d7ca1a48142e341f4ef8d21d0de"},
    list_files=_list,
)
"""Tiny ImageNet, or a sample of it."""


def load_tiny_imagenet(root: Path | str, *, size: int = 64) -> Arrays:
    """Tiny ImageNet, 100,000 training and 10,000 test images of 200 classes, or a sample of it.

    Args:
        root: The data root, with ``tiny-imagenet-200`` or ``tiny-imagenet-200.zip``.
        size: Height and width of the images; the published ones have 64.
    """
    return TINY_IMAGENET.load(Path(root), size=size)

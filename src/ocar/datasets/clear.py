"""CLEAR-10: photographs of 11 classes in 10 buckets of time, from its published folders or zips.

The training images are in ``clear10-train-image-only.zip`` (or ``clear10-train.zip``, with more
files) and the test images in ``clear10-test.zip``. Each has one top folder, ``train_image_only``,
``train`` or ``test``, and in it::

    class_names.txt                         a class a line; its place is its label
    labeled_metadata.json                   {bucket: {class: path of the next}}
    labeled_metadata/<bucket>/<class>.json  {id: {"IMG_PATH": path of the image, ...}}
    labeled_images/<bucket>/<class>/<id>.jpg

with paths relative to the top folder. Bucket 0, if there is one, is for pre-training and left out.
The layout is the one that avalanche/benchmarks/datasets/clear, by CLEAR's authors, and
src/renate/benchmark/datasets/vision_datasets.py of awslabs/Renate read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ocar.datasets.archives import Tree, check_inside
from ocar.datasets.arrays import Arrays
from ocar.datasets.pictures import ImageFiles, ImageSet, Picture
from ocar.errors import DataError

_BUCKETS, _CLASSES = 10, 11


def load_clear10(root: Path | str, *, size: int = 224) -> Arrays:
    """CLEAR-10, with its buckets as domains, in the order of time.

    Args:
        root: The data root, with the published zips or with ``clear10/train_image_only`` (or
            ``clear10/train``) and ``clear10/test``.
        size: Height and width of the images: the shorter side is scaled to it, the centre of
            the longer one kept.
    """
    return CLEAR10.load(Path(root), size=size)


def _list(train: Tree, test: Tree) -> ImageSet:
    classes, buckets, test_buckets = _class_names(train), _buckets(train), _buckets(test)
    if _class_names(test) != classes or test_buckets.keys() != buckets.keys():
        raise DataError(
            f"{train.where} and {test.where} have other classes or buckets. Must be the same."
        )
    missing = ""
    if (len(buckets), len(classes)) != (_BUCKETS, _CLASSES):
        missing = (
            f"It has {len(buckets)} buckets of {len(classes)} classes. "
            f"Must be {_BUCKETS} of {_CLASSES}."
        )
    return ImageSet(
        name="clear10",
        train=_pictures(train, classes, buckets),
        test=_pictures(test, classes, test_buckets),
        classes=classes,
        domains=tuple(f"bucket {bucket}" for bucket in buckets),
        missing=missing,
    )


def _class_names(tree: Tree) -> tuple[str, ...]:
    lines = tree.read("class_names.txt").decode("utf-8", "replace").splitlines()
    return tuple(line.strip() for line in lines if line.strip())


def _buckets(tree: Tree) -> dict[int, dict[str, Any]]:
    """The file of each class by bucket, in the order of time."""
    name = "labeled_metadata.json"
    buckets = {}
    for bucket, files in _json(tree, name).items():
        if not (bucket.isdecimal() and len(bucket) < 10) or not isinstance(files, dict):
            raise DataError(f"{tree.locate(name)}: {bucket!r} is no bucket with a file a class.")
        if int(bucket) > 0:
            buckets[int(bucket)] = files
    return dict(sorted(buckets.items()))


def _pictures(
    tree: Tree, classes: tuple[str, ...], buckets: dict[int, dict[str, Any]]
) -> list[Picture]:
    stamps = tree.files("labeled_images")
    index = tree.locate("labeled_metadata.json")
    pictures = []
    for domain, (bucket, files) in enumerate(buckets.items()):
        for label, kind in enumerate(classes):
            listed = files.get(kind)
            if not isinstance(listed, str):
                raise DataError(f"{index}: no file of {kind!r} in {bucket}.")
            check_inside(listed, index)
            for identifier, about in sorted(_json(tree, listed).items()):
                name = about.get("IMG_PATH") if isinstance(about, dict) else None
                if not isinstance(name, str):
                    raise DataError(f"{tree.locate(listed)}: no IMG_PATH of {identifier!r}.")
                check_inside(name, tree.locate(listed))
                if name not in stamps:
                    raise DataError(f"No {tree.locate(name)}, which {listed} lists.")
                pictures.append(Picture(tree, name, stamps[name], label, domain))
    return pictures


def _json(tree: Tree, name: str) -> dict[str, Any]:
    data = tree.read(name)
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"Cannot read {tree.locate(name)} as JSON: {error}.") from error
    if not isinstance(content, dict):
        raise DataError(f"{tree.locate(name)} holds a {type(content).__name__}. Must be an object.")
    return content


CLEAR10 = ImageFiles(
    name="clear10",
    how_to_get=(
        "Put clear10-train-image-only.zip and clear10-test.zip from https://huggingface.co/"
        "datasets/elvishelvis6/CLEAR-Continual_Learning_Benchmark in the data root, or their "
        "folders train_image_only and test in clear10 there."
    ),
    size=224,
    places={
        "training images of CLEAR-10": {
            "clear10/train_image_only": "clear10-train-image-only.zip",
            "clear10/train": "clear10-train.zip",
        },
        "test images of CLEAR-10": {"clear10/test": "clear10-test.zip"},
    },
    md5={  # awslabs/Renate, as above
        "clear10-train-image-only.zip": "5171f720810d60b471c308dee595d430",
        "clear10-test.zip": "bf9a85bfb78fe742c7ed32648c9a3275",
    },
    list_files=_list,
)
"""Photographs of 11 classes in 10 buckets of time."""

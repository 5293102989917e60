"""Folders of ``domain/class/*.image``, such as PACS, and of ``class/*.image``."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from pathlib import Path

import torch

from ocar.datasets.archives import Folder, Tree, is_folder
from ocar.datasets.arrays import Arrays
from ocar.datasets.cache import CACHE
from ocar.datasets.pictures import ImageFiles, ImageSet, Picture, is_picture
from ocar.errors import DataError
from ocar.files import printable
from ocar.rng import make_generator

# Li et al., Deeper, Broader and Artier Domain Generalization, ICCV 2017.
_PACS = {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}


def _list_pacs(tree: Tree) -> ImageSet:
    images = _list(tree, "pacs")
    counts = Counter(images.domains[p.domain] for p in (*images.train, *images.test))
    wrong = [
        f"{counts[domain]:,} of {expected:,} images in {domain}"
        for domain, expected in _PACS.items()
        if counts[domain] != expected
    ]
    others = sorted(set(counts) - set(_PACS))
    missing = [f"It has {', '.join(wrong)}."] if wrong else []
    if others:
        missing.append(f"It has other domains: {printable(', '.join(others))}.")
    return dataclasses.replace(images, missing=" ".join(missing))


PACS = ImageFiles(
    name="pacs",
    how_to_get=(
        "Get PACS (Li et al. 2017) from https://sketchx.eecs.qmul.ac.uk/downloads/ and put its "
        f"folders {', '.join(_PACS)} in PACS under the data root."
    ),
    size=64,
    places={"PACS": {"PACS": "PACS.zip"}},
    md5={},
    list_files=_list_pacs,
)
"""Photographs, art, cartoons and sketches."""


def load_pacs(root: Path | str, *, size: int = 64) -> Arrays:
    """PACS, 9,991 images of 7 classes in 4 domains.

    Args:
        root: The data root, with ``PACS/<domain>/<class>/*`` or ``PACS.zip``.
        size: Height and width of the images; the published ones have 227.
    """
    return PACS.load(Path(root), size=size)


def load_domains(folder: Path | str, *, size: int) -> Arrays:
    """Any folder of ``domain/class/*.image``.

    Domains and classes are numbered by name. A fifth of each class of each domain is for test,
    always the same.

    Args:
        folder: The folder; the cache of its decoded images is written next to it.
        size: Height and width of the images.
    """
    return _load(folder, size, domains=True)


def load_classes(folder: Path | str, *, size: int) -> Arrays:
    """Any folder of ``class/*.image``; otherwise as :func:`load_domains`."""
    return _load(folder, size, domains=False)


def _load(folder: Path | str, size: int, *, domains: bool) -> Arrays:
    where = Path(folder).absolute()
    if not is_folder(where):
        raise DataError(f"There is no folder {where}.")
    name = re.sub(r"[^\w.-]", "_", where.name)
    with Folder(where) as tree:
        return _list(tree, name, domains=domains).load(size, where.parent / CACHE)


def _list(tree: Tree, name: str, *, domains: bool = True) -> ImageSet:
    groups: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for file, stamp in tree.files().items():
        if not is_picture(file):
            continue
        parts = file.split("/") if domains else ["", *file.split("/")]
        if len(parts) < 3:
            within = " in one of a domain" if domains else ""
            raise DataError(f"{tree.locate(file)} is not in a folder of a class{within}.")
        groups.setdefault((parts[0], parts[1]), []).append((file, stamp))
    if not groups:
        folders = "domain/class" if domains else "class"
        raise DataError(f"{tree.where} has no images in {folders} folders.")
    places, classes = (tuple(sorted({group[i] for group in groups})) for i in (0, 1))
    train: list[Picture] = []
    test: list[Picture] = []
    for (domain, kind), files in sorted(groups.items()):
        generator = make_generator(0, f"domains-split/{domain}/{kind}")
        order = torch.randperm(len(files), generator=generator).tolist()
        chosen = set(order[: round(len(files) / 5)])
        for place, (file, stamp) in enumerate(files):
            picture = Picture(tree, file, stamp, classes.index(kind), places.index(domain))
            (test if place in chosen else train).append(picture)
    named = places if domains else ()
    return ImageSet(name=name, train=train, test=test, classes=classes, domains=named)

"""Folders of ``domain/class/*.image``, PACS the best known of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ocar.datasets.arrays import Arrays
from ocar.datasets.cache import CACHE
from ocar.datasets.finding import Finding
from ocar.datasets.imageset import ImageSet, find_images
from ocar.datasets.paths import is_folder
from ocar.datasets.pictures import Picture, is_picture
from ocar.datasets.tree import Folder, Tree, locate_tree, open_tree
from ocar.errors import DataError
from ocar.rng import make_generator

# Li et al., Deeper, Broader and Artier Domain Generalization, ICCV 2017.
_PACS = {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}

HOW_TO_GET = (
    "Get PACS (Li et al. 2017) from https://sketchx.eecs.qmul.ac.uk/downloads/ and put its "
    f"folders {', '.join(_PACS)} in PACS under the data root."
)


def load_pacs(root: Path | str, *, size: int = 64) -> Arrays:
    """PACS, 9,991 images of 7 classes in 4 domains.

    Args:
        root: The data root, with ``PACS/<domain>/<class>/*`` or ``PACS.zip``.
        size: Height and width of the images; they are published with 227.
    """
    with _open_pacs(Path(root)) as images:
        return images.load(size, Path(root) / CACHE)


def load_domains(folder: Path | str, *, size: int) -> Arrays:
    """Any folder of ``domain/class/*.image``.

    Domains and classes are numbered by name. There is no published split, so a fifth of each
    class of each domain is for test, always the same one.

    Args:
        folder: The folder; the cache of its decoded images is made beside it.
        size: Height and width of the images.
    """
    where = Path(folder).absolute()
    if not is_folder(where):
        raise DataError(f"There is no folder {where}.")
    name = re.sub(r"[^\w.-]", "_", where.name)
    with Folder(where) as tree:
        return _list(tree, name).load(size, where.parent / CACHE)


def find_pacs(root: Path, *, deep: bool = False) -> Finding:
    """What is there of PACS; with ``deep``, every image is decoded."""
    where = locate_tree(root, folder="PACS", archive="PACS.zip")
    if where is None:
        return Finding.missing(root / "PACS")
    return find_images(
        _open_pacs(root), where=where, archives={}, count=_count, cache=root / CACHE, deep=deep
    )


def _count(images: ImageSet) -> str:
    counts = Counter(images.domains[p.domain] for p in (*images.train, *images.test))
    wrong = [
        f"{counts[domain]:,} of {expected:,} images in {domain}"
        for domain, expected in _PACS.items()
        if counts[domain] != expected
    ]
    others = sorted(set(counts) - set(_PACS))
    return (f"It has {', '.join(wrong)}. " if wrong else "") + (
        f"It has other domains: {', '.join(others)}." if others else ""
    )


@contextmanager
def _open_pacs(root: Path) -> Iterator[ImageSet]:
    tree = open_tree(root, folder="PACS", archive="PACS.zip")
    if tree is None:
        raise DataError(f"No PACS folder {root / 'PACS'}. {HOW_TO_GET}")
    with tree:
        yield _list(tree, "pacs")


def _list(tree: Tree, name: str) -> ImageSet:
    groups: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for file, stamp in tree.files().items():
        if not is_picture(file):
            continue
        parts = file.split("/")
        if len(parts) < 3:
            raise DataError(
                f"{tree.locate(file)} is not in a folder of a class in one of a domain."
            )
        groups.setdefault((parts[0], parts[1]), []).append((file, stamp))
    if not groups:
        raise DataError(f"{tree.where} has no images in domain/class folders.")
    domains, classes = (tuple(sorted({group[i] for group in groups})) for i in (0, 1))
    train: list[Picture] = []
    test: list[Picture] = []
    for (domain, kind), files in sorted(groups.items()):
        generator = make_generator(0, f"domains-split/{domain}/{kind}")
        order = torch.randperm(len(files), generator=generator).tolist()
        chosen = set(order[: round(len(files) / 5)])
        for place, (file, stamp) in enumerate(files):
            picture = Picture(tree, file, stamp, classes.index(kind), domains.index(domain))
            (test if place in chosen else train).append(picture)
    return ImageSet(name=name, train=train, test=test, classes=classes, domains=domains)

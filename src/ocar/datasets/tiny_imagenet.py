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

_CLASSES = """
02124075 04067472 04540053 04099969 07749582 01641577 02802426 09246464 07920052 03970156
03891332 02106662 03201208 02279972 02132136 04146614 07873807 02364673 04507155 03854065
03838899 03733131 01443537 07875152 03544143 09428293 03085013 02437312 07614500 03804744
04265275 02963159 02486410 01944390 09256479 02058221 04275548 02321529 02769748 02099712
07695742 02056570 02281406 01774750 02509815 03983396 07753592 04254777 02233338 04008634
02823428 02236044 03393912 07583066 04074963 01629819 09332890 02481823 03902125 03404251
09193705 03637318 04456115 02666196 03796401 02795169 02123045 01855672 01882714 02917067
02988304 04398044 02843684 02423022 02669723 04465501 02165456 03770439 02099601 04486054
02950826 03814639 04259630 03424325 02948072 03179701 03400231 02206856 03160309 01984695
03977966 03584254 04023962 02814860 01910747 04596742 03992509 04133789 03937543 02927161
01945685 02395406 02125311 03126707 04532106 02268443 02977058 07734744 03599486 04562935
03014705 04251144 04356056 02190166 03670208 02002724 02074367 04285008 04560804 04366367
02403003 07615774 04501370 03026506 02906734 01770393 04597913 03930313 04118538 04179913
04311004 02123394 04070727 02793495 02730930 02094433 04371430 04328186 03649909 04417672
03388043 01774384 02837789 07579787 04399382 02791270 03089624 02814533 04149813 07747607
03355925 01983481 04487081 03250847 03255030 02892201 02883205 03100240 02415577 02480495
01698640 01784675 04376876 03444034 01917289 01950731 03042490 07711569 04532670 03763968
07768694 02999410 03617480 06596364 01768244 02410509 03976657 01742172 03980874 02808440
02226429 02231487 02085620 01644900 02129165 02699494 03837869 02815834 07720875 02788148
02909870 03706229 07871810 03447447 02113799 12267677 03662601 02841315 07715103 02504458
"""
"""The classes in the order of the official ``wnids.txt``, by which published runs number them.
Unpacked copies come with other files or none."""


def _list(tree: Tree) -> ImageSet:
    files = [
        (name.split("/")[1], name, stamp)
        for name, stamp in tree.files("train").items()
        if is_picture(name) and name.count("/") >= 2
    ]
    found, listed = {wnid for wnid, _, _ in files}, [f"n{number}" for number in _CLASSES.split()]
    classes = *filter(found.__contains__, listed), *sorted(found.difference(listed))
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

"""Tiny ImageNet, CLEAR-10, PACS and other folders of images, in the layouts of their publishers."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from dataset_files import (
    below,
    clear_files,
    domain_files,
    everything,
    picture,
    real_root,
    tiny_files,
    without_rights,
    write_folder,
    write_zip,
)
from PIL import Image

from ocar.datasets import Arrays, load_clear10, load_domains, load_pacs, load_tiny_imagenet
from ocar.errors import DataError

pytestmark = pytest.mark.filterwarnings("ignore:.* Compare results on it with each other only")
"""The data sets here are small."""

TINY = "tiny-imagenet-200"


def levels(x: torch.Tensor) -> list[int]:
    """The grey level of each image; the test images have one each."""
    assert (x == x[:, :1, :1, :1]).all()
    return x[:, 0, 0, 0].tolist()


def assert_same(a: Arrays, b: Arrays) -> None:
    for name in ("x_train", "y_train", "x_test", "y_test", "domain_train", "domain_test"):
        left, right = getattr(a, name), getattr(b, name)
        assert (left is None and right is None) or torch.equal(left, right)
    assert (a.name, a.classes, a.domains) == (b.name, b.classes, b.domains)


# --- Tiny ImageNet ---


def test_tiny_imagenet_folder_and_zip(tmp_path: Path) -> None:
    files = below(TINY, tiny_files())
    write_folder(tmp_path / "a", files)
    write_zip(tmp_path / "b" / f"{TINY}.zip", files)
    before = everything(tmp_path)
    folder = load_tiny_imagenet(tmp_path / "a", size=6)
    assert folder.classes == ("n01", "n02")
    # The grey levels were made as: n02 has 0.., n01 has 100.., and test images 50 more.
    assert levels(folder.x_train) == [100, 101, 102, 0, 1, 2]
    assert folder.y_train.tolist() == [0, 0, 0, 1, 1, 1]
    assert levels(folder.x_test) == [50, 51, 150, 151]
    assert folder.y_test.tolist() == [1, 1, 0, 0]
    assert folder.image_shape == (3, 6, 6)
    assert_same(folder, load_tiny_imagenet(tmp_path / "b", size=6))
    assert_same(folder, load_tiny_imagenet(tmp_path / "a", size=6))
    assert everything(tmp_path) == before
    assert load_tiny_imagenet(tmp_path / "a").image_shape == (3, 64, 64)


def test_a_sample_with_all_annotations_is_read_with_a_warning(tmp_path: Path) -> None:
    files = tiny_files()
    del files["val/images/val_01.JPEG"], files["train/n01/images/n01_0.JPEG"]
    write_folder(tmp_path / TINY, files)
    with pytest.warns(UserWarning, match=r"A sample: 5 of 100,000 training and 3 of 10,000 test"):
        arrays = load_tiny_imagenet(tmp_path, size=6)
    assert levels(arrays.x_train) == [101, 102, 0, 1, 2]
    assert levels(arrays.x_test) == [50, 150, 151]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"val/val_annotations.txt": b"val_00.JPEG\tn02\t0\n"}, r"no class for val/images/val_01"),
        ({"val/val_annotations.txt": b"val_00.JPEG\n"}, r"line 1: 'val_00.JPEG'. Must be a file"),
        ({"val/val_annotations.txt": b"val_00.JPEG\tn99\n"}, "line 1: no training images of 'n99'"),
        ({"val/val_annotations.txt": b"../../x.JPEG\tn02\n"}, "points outside"),
        ({"train/n01/images/n01_1.JPEG": b"broken"}, r"n01/images/n01_1\.JPEG as an image"),
        ({"val/images/val_11.JPEG": picture(5)[:30]}, r"val_11\.JPEG as an image"),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_damaged_tiny_imagenet(
    tmp_path: Path, changed: dict[str, bytes], message: str, zipped: bool
) -> None:
    files = below(TINY, tiny_files() | changed)
    if zipped:
        write_zip(tmp_path / f"{TINY}.zip", files)
    else:
        write_folder(tmp_path, files)
    with pytest.raises(DataError, match=message) as caught:
        load_tiny_imagenet(tmp_path, size=6)
    place = f"{tmp_path}/{TINY}.zip: {TINY}/" if zipped else f"{tmp_path}/{TINY}/"
    assert place in str(caught.value)


def test_tiny_imagenet_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"No Tiny ImageNet: neither .* Put http://cs231n.stanford.edu/"
    ):
        load_tiny_imagenet(tmp_path)
    (tmp_path / TINY).mkdir()
    with pytest.raises(DataError, match=f"Cannot read {tmp_path}/{TINY}/train: No such file"):
        load_tiny_imagenet(tmp_path)
    files = {n: c for n, c in tiny_files().items() if not n.startswith("train") or "boxes" in n}
    write_folder(tmp_path / TINY, files | {"val/val_annotations.txt": b""})
    for path in (tmp_path / TINY / "val" / "images").iterdir():
        path.unlink()
    with pytest.raises(DataError, match="tiny-imagenet has no training images"):
        load_tiny_imagenet(tmp_path)


def test_a_zip_that_points_outside_writes_nothing(tmp_path: Path) -> None:
    files = below(TINY, tiny_files()) | {f"{TINY}/../../evil.JPEG": picture(1)}
    write_zip(tmp_path / "root" / f"{TINY}.zip", files)
    before = everything(tmp_path)
    with pytest.raises(DataError, match=r"200\.zip: its entry .*evil\.JPEG' points outside"):
        load_tiny_imagenet(tmp_path / "root", size=6)
    assert everything(tmp_path) == before
    assert not (tmp_path / "root" / ".ocar-cache").exists()


def test_a_truncated_zip(tmp_path: Path) -> None:
    path = tmp_path / f"{TINY}.zip"
    write_zip(path, below(TINY, tiny_files()))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=f"Cannot read {path}"):
        load_tiny_imagenet(tmp_path)


# --- CLEAR-10 ---


def write_clear(root: Path, train: dict[str, bytes], test: dict[str, bytes], top: str) -> None:
    write_folder(root / "clear10" / top, train)
    write_folder(root / "clear10" / "test", test)


@pytest.mark.parametrize("top", ["train_image_only", "train"])
def test_clear_buckets_are_domains_in_the_order_of_time(tmp_path: Path, top: str) -> None:
    train, test = clear_files(each=2), clear_files(each=1)
    write_clear(tmp_path / "a", train, test, top)
    arrays = load_clear10(tmp_path / "a", size=6)
    assert arrays.classes[:2] == ("BACKGROUND", "class_01")
    assert arrays.domains == tuple(f"bucket {i}" for i in range(1, 11))  # without bucket 0
    assert arrays.domain_train is not None
    # The grey level was made as 20 × bucket + class.
    expected = [20 * (d + 1) + y for d, y in zip(arrays.domain_train, arrays.y_train, strict=True)]
    assert levels(arrays.x_train) == expected
    assert len(expected) == 10 * 11 * 2
    parts = arrays.by_domain()
    assert [part.name for part in parts][::9] == ["clear10/bucket 1", "clear10/bucket 10"]
    for part in parts:
        assert part.y_train.bincount().tolist() == [2] * 11
        assert part.y_test.tolist() == list(range(11))
        assert part.x_train.untyped_storage().data_ptr() == arrays.x_train.data_ptr()
    name = {"train": "clear10-train.zip", "train_image_only": "clear10-train-image-only.zip"}[top]
    write_zip(tmp_path / "b" / name, below(top, train))
    write_zip(tmp_path / "b" / "clear10-test.zip", below("test", test))
    assert_same(arrays, load_clear10(tmp_path / "b", size=6))


def changed_json(files: dict[str, bytes], name: str, **changed: object) -> dict[str, bytes]:
    return {name: json.dumps(json.loads(files[name]) | changed).encode()}


def test_damaged_clear(tmp_path: Path) -> None:
    good = clear_files(each=1)
    listed = "labeled_metadata/3/class_01.json"
    image = "labeled_images/3/class_01/000.jpg"
    outside = {"000": {"IMG_PATH": "../../../etc/passwd.jpg"}}
    cases: list[tuple[dict[str, bytes], str]] = [
        ({image: b""}, rf"{image} as an image"),
        ({image: None}, rf"No .*{image}, which {listed} lists"),  # type: ignore[dict-item]
        ({listed: json.dumps(outside).encode()}, rf"{listed}: its entry .* points outside"),
        ({listed: b'{"000": {}}'}, rf"{listed}: no IMG_PATH of '000'"),
        ({listed: b'{"000": 1}'}, "no IMG_PATH"),
        ({listed: b"[]"}, rf"{listed} holds a list"),
        ({listed: b'{"000'}, rf"Cannot read .*{listed} as JSON"),
        ({listed: b"[" * 100_000}, rf"Cannot read .*{listed} as JSON"),
        ({listed: None}, rf"Cannot read .*{listed}"),  # type: ignore[dict-item]
        ({"labeled_metadata.json": b"{}"}, "other classes or buckets"),
        ({"class_names.txt": b"BACKGROUND\n"}, "other classes or buckets"),
        ({"class_names.txt": None}, r"Cannot read .*class_names\.txt"),  # type: ignore[dict-item]
        (changed_json(good, "labeled_metadata.json", now={}), "'now' is no bucket"),
        (
            changed_json(good, "labeled_metadata.json", **{"3": {}}),
            r"no file of 'BACKGROUND' in 3",
        ),
        (
            changed_json(good, "labeled_metadata.json", **{"1": {"BACKGROUND": "/etc/x.json"}}),
            "points outside",
        ),
    ]
    for number, (changed, message) in enumerate(cases):
        root = tmp_path / str(number)
        kept = {name: data for name, data in (good | changed).items() if data is not None}
        write_clear(root, kept, good, "train_image_only")
        with pytest.raises(DataError, match=message) as caught:
            load_clear10(root, size=4)
        assert str(root) in str(caught.value)


def test_clear_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"No training images of CLEAR-10.*huggingface"):
        load_clear10(tmp_path)
    write_folder(tmp_path / "clear10" / "train", clear_files(each=1))
    with pytest.raises(DataError, match=r"No test images of CLEAR-10: neither .*clear10/test nor"):
        load_clear10(tmp_path)


# --- folders of domain/class/*.image ---


def test_any_folder_of_domains(tmp_path: Path) -> None:
    write_folder(tmp_path / "my set", domain_files(each=10))
    arrays = load_domains(tmp_path / "my set", size=6)
    assert arrays.name == "my_set"
    assert arrays.classes == ("cat", "dog")
    assert arrays.domains == ("art", "photo")
    # The grey level was made as 100 for art, 40 for cats, and the place.
    for part, each in (("train", 8), ("test", 2)):
        domain, label = getattr(arrays, f"domain_{part}"), getattr(arrays, f"y_{part}")
        base = 100 * (domain == 0) + 40 * (label == 0)
        places = torch.tensor(levels(getattr(arrays, f"x_{part}"))) - base
        assert ((places >= 0) & (places < 10)).all()
        assert torch.stack([domain, label]).unique(dim=1, return_counts=True)[1].tolist() == (
            [each] * 4
        )
        if part == "test":
            assert len({tuple(group.tolist()) for group in places.view(4, 2)}) > 1
    both = levels(torch.cat([arrays.x_train, arrays.x_test]))
    assert len(set(both)) == len(both) == 40
    assert (tmp_path / ".ocar-cache").is_dir()
    assert [part.name for part in arrays.by_domain()] == ["my_set/art", "my_set/photo"]


def test_the_split_of_a_class_does_not_depend_on_the_others(tmp_path: Path) -> None:
    write_folder(tmp_path / "a", domain_files(each=10))
    write_folder(tmp_path / "b", domain_files(each=10) | {"zoo/cat/1.png": picture(250)})
    few, more = (load_domains(tmp_path / name, size=6) for name in "ab")
    assert set(levels(more.x_test)) == set(levels(few.x_test))
    assert set(levels(more.x_train)) == {*levels(few.x_train), 250}


def test_images_of_any_size_and_format(tmp_path: Path) -> None:
    kinds = {"jpg": "JPEG", "png": "PNG", "webp": "WEBP", "bmp": "BMP", "gif": "GIF", "tif": "TIFF"}
    files = {
        f"d/c/{i}{'x' * i}.{end}": picture(8 * i, size=(10 + i, 20 - i), kind=kind)
        for i, (end, kind) in enumerate(kinds.items())
    }
    write_folder(tmp_path / "set", files)
    arrays = load_domains(tmp_path / "set", size=7)
    assert arrays.image_shape == (3, 7, 7)
    x = torch.cat([arrays.x_train, arrays.x_test]).float().mean((1, 2, 3)).sort().values
    assert x.tolist() == pytest.approx([8 * i for i in range(6)], abs=2)


def test_folders_that_are_not_of_domains(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"There is no folder {tmp_path}/none"):
        load_domains(tmp_path / "none", size=4)
    write_folder(tmp_path / "set", {"README": b""})
    with pytest.raises(DataError, match=f"{tmp_path}/set has no images in domain/class folders"):
        load_domains(tmp_path / "set", size=4)
    write_folder(tmp_path / "set", {"dog/1.png": picture(1)})
    with pytest.raises(DataError, match=r"set/dog/1\.png is not in a folder of a class"):
        load_domains(tmp_path / "set", size=4)
    with pytest.raises(DataError, match=r"No PACS: neither .*sketchx"):
        load_pacs(tmp_path)


def test_pacs_folder_and_zip(tmp_path: Path) -> None:
    write_folder(tmp_path / "a" / "PACS", domain_files())
    write_zip(tmp_path / "b" / "PACS.zip", below("PACS", domain_files()))
    arrays = load_pacs(tmp_path / "a", size=6)
    assert arrays.name == "pacs"
    assert_same(arrays, load_pacs(tmp_path / "b", size=6))


def test_a_folder_without_rights(tmp_path: Path) -> None:
    write_folder(tmp_path / "set", domain_files())
    tmp_path.chmod(0)
    try:
        with without_rights(), pytest.raises(DataError, match=r"set: Permission denied"):
            load_domains(tmp_path / "set", size=4)
    finally:
        tmp_path.chmod(0o700)


# --- the real files ---


def plain(path: Path, size: int) -> np.ndarray:
    """An image of the right size, read without this package."""
    with Image.open(io.BytesIO(path.read_bytes())) as image:
        assert image.size == (size, size)
        return np.asarray(image.convert("RGB")).transpose(2, 0, 1)


@pytest.mark.data
def test_real_tiny_imagenet() -> None:
    root = real_root(f"{TINY}/val/val_annotations.txt")
    arrays = load_tiny_imagenet(root)
    files = list((root / TINY / "train").glob("*/images/*.JPEG"))
    assert len(arrays.x_train) == len(files)
    assert len(arrays.classes) == 200
    assert sorted(arrays.classes) == sorted((root / TINY / "wnids.txt").read_text().split())
    # Egyptian cat, reel, and African elephant last: so begins and ends the official file.
    assert (*arrays.classes[:2], arrays.classes[-1]) == ("n02124075", "n04067472", "n02504458")
    assert len(set(arrays.y_train.bincount().tolist())) == 1
    for path in files[::997]:
        pixels = torch.from_numpy(plain(path, 64).copy())
        found = (arrays.x_train == pixels).flatten(1).all(1).nonzero().flatten()
        assert [arrays.classes[y] for y in arrays.y_train[found]] == [path.parts[-3]]
    lines = (root / TINY / "val" / "val_annotations.txt").read_text().splitlines()
    for line in lines[::251]:
        file, wnid, *_ = line.split("\t")
        pixels = torch.from_numpy(plain(root / TINY / "val" / "images" / file, 64).copy())
        found = (arrays.x_test == pixels).flatten(1).all(1).nonzero().flatten()
        assert wnid in [arrays.classes[y] for y in arrays.y_test[found]]


@pytest.mark.long
@pytest.mark.data
def test_real_pacs() -> None:
    root = real_root("PACS/sketch")
    arrays = load_pacs(root)
    assert arrays.classes == ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    assert arrays.domains == ("art_painting", "cartoon", "photo", "sketch")
    counts = [len(part.x_train) + len(part.x_test) for part in arrays.by_domain()]
    assert counts == [2048, 2344, 1670, 3929]
    sketches = arrays.by_domain()[3]
    colours = sketches.x_train.float().std(1).mean()  # sketches are grey
    assert colours < 1
    for part in arrays.by_domain():
        assert len(part.y_train.unique()) == len(part.y_test.unique()) == 7
        assert len(part.x_test) == pytest.approx(len(part.x_train) / 4, abs=4)

"""What is said of data sets: there, whole, genuine, and how to get the others."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dataset_files import (
    below,
    cifar10_files,
    clear_files,
    domain_files,
    everything,
    idx_bytes,
    picture,
    real_root,
    tiny_files,
    without_rights,
    write_folder,
    write_mnist,
    write_tar,
    write_zip,
)

from ocar.datasets import DATA_SETS, DataStatus, load_pacs, status, verify
from ocar.datasets.base import compare_md5
from ocar.datasets.cache import CACHE
from ocar.datasets.clear import CLEAR10
from ocar.datasets.mnist import FASHION_MNIST
from ocar.datasets.tiny_imagenet import TINY_IMAGENET
from ocar.errors import ConfigError, DataError


def of(name: str, found: list[DataStatus]) -> DataStatus:
    return next(entry for entry in found if entry.name == name)


def look(root: Path, name: str, *, deep: bool = False) -> DataStatus:
    (found,) = (verify if deep else status)(root, names=(name,))
    return found


def test_an_empty_root_says_how_to_get_everything(tmp_path: Path) -> None:
    for look_at in (status, verify):
        found = look_at(tmp_path / "none")
        assert [entry.name for entry in found] == list(DATA_SETS)
        for entry in found[1:]:
            assert not entry.present
            assert not entry.whole
            assert entry.genuine is None
            assert entry.problem == ""
            assert "http" in entry.how_to_get
            assert entry.where.is_relative_to(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    assert "scikit-learn" in of("digits", found).how_to_get
    with pytest.raises(ConfigError, match=r"Unknown data set 'imagenet'\. .*There are digits"):
        status(tmp_path, names=("imagenet",))


def test_digits() -> None:
    pytest.importorskip("sklearn")
    found = look(Path(), "digits", deep=True)
    assert found.present
    assert found.whole
    assert found.genuine is None
    assert found.where.name == "sklearn"


# --- MNIST ---


def whole_mnist(folder: Path, *, zipped: bool) -> dict[str, bytes]:
    """As many images as there should be, all black."""
    files = {}
    for part, n in (("train", 60_000), ("t10k", 10_000)):
        files[f"{part}-images-idx3-ubyte"] = idx_bytes(np.zeros((n, 1, 1), dtype=np.uint8))
        files[f"{part}-labels-idx1-ubyte"] = idx_bytes(np.zeros(n, dtype=np.uint8))
    if zipped:
        files = {f"{name}.gz": gzip.compress(content) for name, content in files.items()}
    write_folder(folder, files)
    return files


def test_mnist_whole_genuine_and_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "FashionMNIST" / "raw"
    files = whole_mnist(folder, zipped=True)
    found = look(tmp_path, "fashion-mnist")
    assert (found.present, found.whole, found.genuine) == (True, True, False)
    assert found.where == folder
    assert "the published file 8d4fb7e6c68d591d4c3dfef9ec88bf0d" in found.problem
    md5 = {name: hashlib.md5(content).hexdigest() for name, content in files.items()}
    monkeypatch.setitem(DATA_SETS, "fashion-mnist", replace(FASHION_MNIST, md5=md5))
    for deep in (False, True):
        found = look(tmp_path, "fashion-mnist", deep=deep)
        assert (found.whole, found.genuine, found.problem) == (True, True, "")
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(files[path.name][:-20])
    found = look(tmp_path, "fashion-mnist")
    assert (found.present, found.whole, found.genuine) == (True, False, False)
    assert f"Cannot read {path}" in found.problem
    path.unlink()
    found = look(tmp_path, "fashion-mnist")
    assert (found.present, found.whole) == (True, False)
    message = "No Fashion-MNIST file train-images-idx3-ubyte or train-images-idx3-ubyte.gz in"
    assert found.problem.startswith(f"{message} {folder}. Put ")


def test_unpacked_files_without_a_published_sum(tmp_path: Path) -> None:
    whole_mnist(tmp_path / "FashionMNIST" / "raw", zipped=False)
    found = look(tmp_path, "fashion-mnist")
    assert (found.whole, found.genuine, found.problem) == (True, None, "")
    write_mnist(tmp_path / "FashionMNIST" / "raw", zipped=False)
    found = look(tmp_path, "fashion-mnist")
    assert (found.whole, found.genuine) == (False, None)
    assert found.problem == "It has (12, 5) images. Must be (60000, 10000)."


def test_large_files_are_hashed_in_a_deep_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ocar.datasets.base._LARGE", 10)
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    right = hashlib.md5(b"0123456789").hexdigest()
    assert compare_md5({path: right}, deep=False) == (True, "")
    path.write_bytes(b"0123456789a")
    assert compare_md5({path: right}, deep=False) == (None, "")
    genuine, problem = compare_md5({path: right}, deep=True)
    assert genuine is False
    assert str(path) in problem
    assert compare_md5({}, deep=True) == (None, "")
    with pytest.raises(DataError, match=r"Cannot read .*gone"):
        compare_md5({tmp_path / "gone": right}, deep=True)


# --- CIFAR ---


def test_cifar_parts(tmp_path: Path) -> None:
    archive = tmp_path / "cifar-10-python.tar.gz"
    write_tar(archive, cifar10_files())
    found = look(tmp_path, "cifar10")
    assert (found.present, found.whole, found.genuine) == (True, False, False)
    assert found.where == archive
    assert "has (10, 2) images. Must be (50000, 10000)" in found.problem
    archive.write_bytes(archive.read_bytes()[:-30])
    assert f"Cannot read {archive}" in look(tmp_path, "cifar10").problem
    archive.unlink()
    write_folder(tmp_path, {"cifar-10-batches-py/data_batch_1": b""})
    found = look(tmp_path, "cifar10")
    assert (found.present, found.whole, found.genuine) == (True, False, False)
    assert "No CIFAR-10 file data_batch_2" in found.problem


# --- images ---


def test_a_sample_of_tiny_imagenet_is_not_whole(tmp_path: Path) -> None:
    write_folder(tmp_path / "tiny-imagenet-200", tiny_files())
    for deep in (False, True):
        found = look(tmp_path, "tiny-imagenet", deep=deep)
        assert (found.present, found.whole, found.genuine) == (True, False, None)
        assert found.problem == "A sample: 6 of 100,000 training and 4 of 10,000 test images."
    assert not (tmp_path / CACHE).exists()


def test_a_whole_tiny_imagenet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ocar.datasets.tiny_imagenet._TRAIN", 6)
    monkeypatch.setattr("ocar.datasets.tiny_imagenet._TEST", 4)
    path = tmp_path / "tiny-imagenet-200.zip"
    write_zip(path, below("tiny-imagenet-200", tiny_files()))
    found = look(tmp_path, "tiny-imagenet")
    assert (found.present, found.whole, found.genuine) == (True, True, False)
    assert "90528d7ca1a48142e341f4ef8d21d0de" in found.problem
    digest = hashlib.md5(path.read_bytes()).hexdigest()
    monkeypatch.setitem(TINY_IMAGENET.md5, path.name, digest)  # type: ignore[arg-type]
    found = look(tmp_path, "tiny-imagenet", deep=True)
    assert (found.present, found.whole, found.genuine, found.problem) == (True, True, True, "")
    path.write_bytes(path.read_bytes()[:-9])
    found = look(tmp_path, "tiny-imagenet")
    assert (found.present, found.whole, found.genuine) == (True, False, False)
    assert f"Cannot read {path}" in found.problem


def test_pacs_is_counted(tmp_path: Path) -> None:
    write_folder(tmp_path / "PACS", domain_files())
    counted = look(tmp_path, "pacs")
    assert (counted.present, counted.whole) == (True, False)
    assert "10 of 1,670 images in photo" in counted.problem
    assert "It has other domains: art." in counted.problem


def test_verify_names_what_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ocar.datasets.domains._PACS", {"photo": 10, "art": 10})
    write_folder(tmp_path / "PACS", domain_files())
    load_pacs(tmp_path, size=6)
    for deep in (False, True):
        found = look(tmp_path, "pacs", deep=deep)
        assert (found.whole, found.genuine, found.problem) == (True, None, "")
    (array,) = (tmp_path / CACHE).glob("*.npy")
    content = bytearray(array.read_bytes())
    content[-1] ^= 1
    array.write_bytes(content)
    assert look(tmp_path, "pacs").problem == ""
    found = look(tmp_path, "pacs", deep=True)
    assert found.whole  # the files of the publisher are
    assert found.problem == f"The cache file {array} is damaged: its checksum is wrong."
    write_folder(tmp_path / "PACS", {"photo/dog/4.png": picture(1)[:40]})
    assert look(tmp_path, "pacs").whole
    found = look(tmp_path, "pacs", deep=True)
    assert (found.present, found.whole) == (True, False)
    assert f"Cannot read {tmp_path}/PACS/photo/dog/4.png as an image" in found.problem


def test_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_zip(tmp_path / "clear10-test.zip", below("test", clear_files(each=1)))
    found = look(tmp_path, "clear10")
    assert (found.present, found.whole) == (True, False)
    assert "No training images of CLEAR-10" in found.problem
    write_folder(tmp_path / "clear10" / "train", clear_files(each=1))
    found = look(tmp_path, "clear10", deep=True)
    assert (found.present, found.whole, found.genuine) == (True, True, False)
    assert "clear10-test.zip has md5" in found.problem
    digest = hashlib.md5((tmp_path / "clear10-test.zip").read_bytes()).hexdigest()
    monkeypatch.setitem(CLEAR10.md5, "clear10-test.zip", digest)  # type: ignore[arg-type]
    found = look(tmp_path, "clear10")
    assert (found.whole, found.genuine, found.problem) == (True, None, "")  # half is a folder
    (tmp_path / "clear10-test.zip").unlink()
    write_folder(tmp_path / "clear10" / "test", clear_files(each=1, buckets=9))
    assert "other classes or buckets" in look(tmp_path, "clear10").problem
    write_folder(tmp_path / "less" / "clear10" / "test", clear_files(each=1, buckets=9))
    write_folder(tmp_path / "less" / "clear10" / "train", clear_files(each=1, buckets=9))
    found = look(tmp_path / "less", "clear10")
    assert found.problem == "It has 9 buckets of 11 classes. Must be 10 of 11."
    write_folder(tmp_path / "cut", {"clear10-train.zip": b"PK"})
    found = look(tmp_path / "cut", "clear10")
    assert (found.present, found.whole) == (True, False)
    assert "Cannot read" in found.problem


def test_looking_at_a_root_without_rights_says_so(tmp_path: Path) -> None:
    write_folder(tmp_path / "PACS", domain_files())
    before = everything(tmp_path)
    tmp_path.chmod(0)
    try:
        with without_rights():
            found = status(tmp_path)
    finally:
        tmp_path.chmod(0o700)
    for entry in found[1:]:
        assert not entry.present
        assert "Permission denied" in entry.problem
        assert str(tmp_path) in entry.problem
    assert everything(tmp_path) == before


# --- the real files ---


@pytest.mark.long
@pytest.mark.data
def test_the_real_files_are_genuine() -> None:
    root = real_root("MNIST/raw/train-images-idx3-ubyte.gz")
    found = {entry.name: entry for entry in verify(root)}
    assert (found["mnist"].whole, found["mnist"].genuine, found["mnist"].problem) == (
        True,
        True,
        "",
    )
    if not found["cifar100"].present:
        pytest.skip(f"no CIFAR-100 in {root}")
    assert (found["cifar100"].whole, found["cifar100"].genuine) == (True, True)
    if not (root / "tiny-imagenet-200").is_dir() or not (root / "PACS").is_dir():
        pytest.skip(f"no Tiny ImageNet or no PACS in {root}")
    assert found["pacs"].whole
    assert found["pacs"].genuine is None
    tiny = found["tiny-imagenet"]
    assert tiny.whole != tiny.problem.startswith("A sample: ")


@pytest.mark.data
def test_unpacked_real_mnist_is_genuine_too(tmp_path: Path) -> None:
    root = real_root("MNIST/raw/train-images-idx3-ubyte.gz")
    files = (root / "MNIST" / "raw").glob("*.gz")
    write_folder(tmp_path, {path.stem: gzip.decompress(path.read_bytes()) for path in files})
    found = look(tmp_path, "mnist")
    assert (found.whole, found.genuine, found.problem) == (True, True, "")

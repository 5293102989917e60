"""CIFAR's pickles and archives, whole, damaged and hostile."""

from __future__ import annotations

import builtins
import gzip
import hashlib
import io
import os
import pickle
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from dataset_files import (
    RNG,
    below,
    cifar10_files,
    cifar100_file,
    cifar_bytes,
    everything,
    names_bytes,
    real_root,
    write_folder,
    write_tar,
)
from hypothesis import given
from hypothesis import strategies as st

from ocar.datasets import load_cifar10, load_cifar100, load_cifar100_superclasses
from ocar.datasets.archives import read_tar
from ocar.datasets.cifar import read_cifar
from ocar.errors import DataError

FOLDER = "cifar-100-python"


def write_cifar100(root: Path, train: bytes, test: bytes | None = None) -> Path:
    write_folder(root / FOLDER, {"train": train, "test": train if test is None else test})
    return root / FOLDER / "train"


# --- what is read ---


def test_small_cifar100_is_read(tmp_path: Path) -> None:
    data, content = cifar100_file(4, [5, 99, 0, 7])
    write_cifar100(tmp_path, content)
    arrays = load_cifar100(tmp_path)
    np.testing.assert_array_equal(arrays.x_train.flatten(1), data)
    np.testing.assert_array_equal(arrays.x_train[1, 2], data[1, 2048:].reshape(32, 32))
    assert arrays.y_train.tolist() == [5, 99, 0, 7]
    assert arrays.image_shape == (3, 32, 32)
    assert arrays.classes == ()
    meta = names_bytes(
        fine_label_names=[f"fine {i}" for i in range(100)],
        coarse_label_names=[f"coarse {i}" for i in range(20)],
    )
    write_folder(tmp_path / FOLDER, {"meta": meta})
    assert load_cifar100(tmp_path).classes[99] == "fine 99"
    assert load_cifar100_superclasses(tmp_path).classes[19] == "coarse 19"


def test_archive_and_folder_are_the_same(tmp_path: Path) -> None:
    files = cifar10_files()
    write_folder(tmp_path / "a", files)
    (tmp_path / "b").mkdir()
    write_tar(tmp_path / "b" / "cifar-10-python.tar.gz", files)
    before = everything(tmp_path)
    folder, archive = (load_cifar10(tmp_path / name) for name in "ab")
    assert folder.x_train[:, 0, 0, 0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert folder.y_train.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]
    assert folder.y_test.tolist() == [5, 9]
    assert folder.classes[3] == archive.classes[3] == "kind 3"
    for name in ("x_train", "y_train", "x_test", "y_test"):
        assert torch.equal(getattr(folder, name), getattr(archive, name))
    assert everything(tmp_path) == before
    (tmp_path / "b" / "cifar-10-batches-py").mkdir()  # left by an unpacking that was stopped
    assert torch.equal(load_cifar10(tmp_path / "b").x_train, archive.x_train)


def test_superclasses_make_domains(tmp_path: Path) -> None:
    fine = RNG.permutation(np.repeat(np.arange(100), 2)).tolist()
    data, content = cifar100_file(200, fine)
    write_cifar100(tmp_path, content)
    arrays = load_cifar100_superclasses(tmp_path)
    # In these files class c belongs to superclass c // 5, so that it is number c % 5 of it.
    assert arrays.y_train.tolist() == [y // 5 for y in fine]
    assert arrays.domain_train is not None
    assert arrays.domain_train.tolist() == [y % 5 for y in fine]
    assert len(arrays.domains) == 5
    np.testing.assert_array_equal(arrays.x_test.flatten(1), data)
    for part in arrays.by_domain():
        assert part.y_train.bincount().tolist() == [2] * 20
    _, other = cifar100_file(1, [1])
    write_cifar100(tmp_path, cifar_bytes(data[:1], fine_labels=[0], coarse_labels=[0]), other)
    with pytest.raises(DataError, match="test images of classes without training images"):
        load_cifar100_superclasses(tmp_path)
    write_cifar100(tmp_path, cifar_bytes(data[:2], fine_labels=[3, 3], coarse_labels=[0, 1]))
    with pytest.raises(DataError, match="a class in two superclasses"):
        load_cifar100_superclasses(tmp_path)


# --- pickles that want more ---


class Attack:
    def __init__(self, function: Callable[..., object], *args: object) -> None:
        self.call = (function, args)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


def attacks(witness: Path) -> dict[str, tuple[bytes, str]]:
    """Pickles that would make ``witness`` or misuse what they may name; why each is refused."""
    target = f"open({str(witness)!r}, 'w')"
    good = cifar_bytes(np.zeros((1, 3072), dtype=np.uint8), fine_labels=[0], coarse_labels=[0])
    bad_array = "not one of unsigned bytes"
    return {
        "system": (
            pickle.dumps({b"data": Attack(os.system, f"touch {witness}")}, 3),
            r"asks for \w+\.system, which is not allowed",
        ),
        "eval": (
            pickle.dumps({b"data": Attack(builtins.eval, target)}, 4),
            r"asks for builtins\.eval, which is not allowed",
        ),
        "open": (
            pickle.dumps(Attack(builtins.open, str(witness), "w"), 0),
            r"asks for \w+\.open, which is not allowed",
        ),
        "load": (b"\x80\x02cnumpy\nload\n(X\x01\0\0\0atR.", r"asks for numpy\.load"),
        "dotted": (
            b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.",
            r"asks for numpy\.ndarray\.tofile",
        ),
        "ndarray": (b"\x80\x02cnumpy\nndarray\n(K\x05tR.", "calls what it may only name"),
        "state": (
            b"\x80\x02cnumpy\ndtype\n}X\x08\0\0\0__call__K\x01sb.",
            "tries to change a function",
        ),
        "object": (good.replace(b"U\x02u1", b"U\x02O8"), bad_array),
        "wide": (good.replace(b"U\x02u1", b"U\x02u2"), bad_array),
        "shape": (good.replace(struct.pack("<i", 3072), struct.pack("<i", 2**30), 1), bad_array),
    }


@pytest.mark.parametrize("name", attacks(Path("witness")))
@pytest.mark.parametrize("archived", [False, True])
def test_pickles_that_want_more_are_refused(tmp_path: Path, name: str, archived: bool) -> None:
    witness = tmp_path / "witness"
    content, reason = attacks(witness)[name]
    root = tmp_path / "root"
    if archived:
        root.mkdir()
        write_tar(root / f"{FOLDER}.tar.gz", below(FOLDER, {"train": content, "test": content}))
        where = f"{root / FOLDER}.tar.gz: {FOLDER}/train"
    else:
        where = str(write_cifar100(root, content))
    with pytest.raises(DataError, match=reason) as caught:
        load_cifar100(root)
    assert where in str(caught.value)
    assert not witness.exists()


@given(place=st.integers(0, 400), byte=st.integers(0, 255), cut=st.integers(0, 400))
def test_a_changed_pickle_gives_data_or_a_data_error(place: int, byte: int, cut: int) -> None:
    data = np.arange(3072, dtype=np.uint8)[None]
    good = bytearray(cifar_bytes(data, fine_labels=[3], coarse_labels=[0]))
    head = len(good) - 3072
    # Only what is not pixels: that is where the program is.
    at = place % head
    good[at if at < 150 else at + 3072] = byte
    if cut > 300:
        del good[-cut % 40 :]
    match outcome(bytes(good)):
        case str(message):
            assert "some file" in message
        case x, y:
            assert x.shape[1:] == (3, 32, 32)
            assert len(y["fine_labels"]) == len(x)


def outcome(content: bytes) -> object:
    try:
        return read_cifar(io.BytesIO(content), "some file", classes={"fine_labels": 100})
    except DataError as error:
        return str(error)


def test_damaged_cifar_files_are_named(tmp_path: Path) -> None:
    data = np.zeros((2, 3072), dtype=np.uint8)

    def both(array: np.ndarray, labels: list[int]) -> bytes:
        return cifar_bytes(array, fine_labels=labels, coarse_labels=[0] * len(labels))

    good = both(data, [1, 2])
    cases = {
        b"": "Cannot read",
        good[: len(good) // 2]: "Cannot read",
        good[:-1]: "Cannot read",
        good + b"more": "more after its end",
        pickle.dumps([1, 2], 2): "holds a list",
        pickle.dumps({b"fine_labels": [1]}, 3): "'data' is not an array",
        both(data[:, :100], [1, 2]): r"not an array of \(n, 3072\)",
        both(data, [1]): "no 'fine_labels' for its 2 images",
        both(data, [1, 100]): r"'fine_labels' must be whole numbers in 0\.\.99",
        both(data, [1, -1]): r"whole numbers in 0\.\.99",
        cifar_bytes(data, fine_labels=[1, 2]): "no 'coarse_labels' for its 2 images",
    }
    for i, (content, message) in enumerate(cases.items()):
        path = write_cifar100(tmp_path / str(i), good, content).with_name("test")
        with pytest.raises(DataError, match=message) as caught:
            load_cifar100(tmp_path / str(i))
        assert str(path) in str(caught.value)
    with pytest.raises(DataError, match=r"No CIFAR-100: neither .*cifar-100-python.tar.gz"):
        load_cifar100(tmp_path)
    (tmp_path / "0" / FOLDER / "test").unlink()
    with pytest.raises(DataError, match=rf"No CIFAR-100 file test in .*{FOLDER}"):
        load_cifar100(tmp_path / "0")
    write_folder(tmp_path / "1" / FOLDER, {"test": good, "meta": names_bytes(other=["a"])})
    with pytest.raises(DataError, match="meta has no 100 names under 'fine_label_names'"):
        load_cifar100(tmp_path / "1")


# --- archives ---


def test_a_truncated_archive_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "cifar-10-python.tar.gz"
    write_tar(path, {"a": bytes(RNG.integers(0, 256, 300, dtype=np.uint8)), "b": b"x"})
    whole = path.read_bytes()
    assert read_tar(path, ["a", "b", "c"])["b"] == b"x"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=str(path)):
            read_tar(path, ["a", "b"])
    for place in (30, len(whole) // 2, len(whole) - 6):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        with pytest.raises(DataError, match=str(path)):
            read_tar(path, ["a", "b"])


def link(name: str, target: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    ("files", "links", "message"),
    [
        ({"../outside": b""}, [], r"its entry '\.\./outside' points outside"),
        ({"/etc/passwd": b""}, [], "points outside"),
        ({"a/../../b": b""}, [], "points outside"),
        ({}, [link("t/train", "/etc/passwd", tarfile.SYMTYPE)], "'t/train' is a link or a device"),
        ({}, [link("t/train", "t/x", tarfile.LNKTYPE)], "is a link or a device"),
        ({}, [link("t/pipe", "", tarfile.FIFOTYPE)], "is a link or a device"),
    ],
)
def test_tar_entries_that_point_outside(
    tmp_path: Path, files: dict[str, bytes], links: list[tarfile.TarInfo], message: str
) -> None:
    path = tmp_path / "root" / "set.tar.gz"
    path.parent.mkdir()
    write_tar(path, {"t/good": b"x"} | files, *links)
    before = everything(tmp_path)
    with pytest.raises(DataError, match=message) as caught:
        read_tar(path, ["t/good", "t/train"])
    assert str(path) in str(caught.value)
    assert everything(tmp_path) == before


def test_tar_twice_the_same_and_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "set.tar.gz"
    twice = tarfile.TarInfo("a")
    write_tar(path, {"a": b"1"}, twice)
    with pytest.raises(DataError, match="its entry 'a' occurs twice"):
        read_tar(path, ["a"])
    write_tar(path, {"a": b"\0" * 5_000_000, "b": b""})
    assert path.stat().st_size < 50_000
    monkeypatch.setattr("ocar.datasets.archives.MOST_TAR_BYTES", 1_000_000)
    for wanted in (["a"], ["b"]):
        with pytest.raises(DataError, match=f"Cannot read {path}: it unpacks to more"):
            read_tar(path, wanted)
    path.write_bytes(gzip.compress(b"no tar" * 1000))
    with pytest.raises(DataError, match=f"Cannot read {path}"):
        read_tar(path, ["a"])


def test_a_tar_entry_that_claims_what_is_not_there(tmp_path: Path) -> None:
    """tarfile itself would go on asking for it, block by block, for years."""
    path = tmp_path / "set.tar.gz"
    huge = tarfile.TarInfo("a")
    huge.size = 1 << 62
    path.write_bytes(gzip.compress(huge.tobuf(tarfile.GNU_FORMAT) + b"\0" * 1024))
    with pytest.raises(DataError, match="an entry claims more bytes than the archive has"):
        read_tar(path, ["b"])


# --- the real files ---


@pytest.mark.long
@pytest.mark.data
def test_real_cifar100_is_what_pickle_reads() -> None:
    root = real_root("cifar-100-python/train")
    path = root / FOLDER / "test"
    if hashlib.md5(path.read_bytes()).hexdigest() != "f0ef6b0ae62326f3e7ffdfab6717acfc":
        pytest.skip(f"{path} is not the official file")
    arrays = load_cifar100(root)
    assert arrays.x_train.shape == (50000, 3, 32, 32)
    assert arrays.y_train.bincount().tolist() == [500] * 100
    assert arrays.y_test.bincount().tolist() == [100] * 100
    # Genuine by its checksum, so that the plain unpickler may serve as the oracle.
    with path.open("rb") as file:
        plain = pickle.load(file, encoding="latin1")
    np.testing.assert_array_equal(arrays.x_test.flatten(1), plain["data"])
    assert arrays.y_test.tolist() == plain["fine_labels"]
    mean = arrays.x_train.double().mean((0, 2, 3)) / 255
    assert mean.tolist() == pytest.approx([0.5071, 0.4865, 0.4409], abs=1e-4)
    assert arrays.classes[:3] == ("apple", "aquarium_fish", "baby")
    coarse = load_cifar100_superclasses(root)
    assert coarse.y_test.tolist() == plain["coarse_labels"]
    # The published table of superclasses: trees.
    trees = arrays.y_test[coarse.y_test == coarse.classes.index("trees")].unique().tolist()
    assert [arrays.classes[i] for i in trees] == [
        "maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree",
    ]  # fmt: skip
    for part in coarse.by_domain():
        assert part.y_train.bincount().tolist() == [500] * 20


@pytest.mark.long
@pytest.mark.data
def test_real_cifar100_from_an_archive(tmp_path: Path) -> None:
    root = real_root("cifar-100-python/train")
    files = {name: (root / FOLDER / name).read_bytes() for name in ("train", "test", "meta")}
    write_tar(tmp_path / f"{FOLDER}.tar.gz", below(FOLDER, files))
    folder, archive = load_cifar100(root), load_cifar100(tmp_path)
    assert torch.equal(folder.x_train, archive.x_train)
    assert torch.equal(folder.y_test, archive.y_test)

"""IDX files, whole and damaged; MNIST and Fashion-MNIST."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from dataset_files import idx_bytes, real_root, without_rights, write_folder, write_mnist
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ocar.datasets import load_fashion_mnist, load_mnist
from ocar.datasets.mnist import read_idx
from ocar.errors import DataError

GOOD = idx_bytes(np.arange(12, dtype=np.uint8).reshape(3, 4))


@given(
    values=hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=4, min_side=0)),
    zipped=st.booleans(),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, values: np.ndarray, zipped: bool
) -> None:
    path = tmp_path_factory.mktemp("idx") / "file"
    path.write_bytes(gzip.compress(idx_bytes(values)) if zipped else idx_bytes(values))
    read = read_idx(path)
    assert read.shape == values.shape
    np.testing.assert_array_equal(read, values)


@pytest.mark.parametrize("whole", [GOOD, gzip.compress(GOOD, mtime=0)], ids=["plain", "gzip"])
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "cut"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=str(path)):
            read_idx(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no IDX file"),
        (b"\0\0\x0d\x02" + GOOD[4:], "no IDX file of unsigned bytes: it begins with '00 00 0d 02'"),
        (GOOD[:9], "ends within its header"),
        (GOOD[:-1], r"12 values by its header \(3, 4\), has 11"),
        (GOOD + b"x", r"12 values by its header \(3, 4\), has more"),
        (b"\0\0\x08\x03" + b"\xff" * 12 + b"abc", "which a file of its size cannot: at most 19"),
        (gzip.compress(GOOD)[:12] + b"\0" * 20, "Cannot read"),
    ],
    ids=["empty", "floats", "header", "short", "long", "wild header", "gzip"],
)
def test_damaged_idx_files_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "some-idx-file"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_idx(path)
    assert str(path) in str(caught.value)


def test_a_bomb_costs_no_more_than_a_real_file_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb"
    zeros = b"\0" * (64 << 20)
    path.write_bytes(gzip.compress(b"\0\0\x08\x01" + b"\x04\0\0\0" + zeros))  # claims 64 Mi
    monkeypatch.setattr("ocar.datasets.mnist.MOST_VALUES", 1 << 20)
    tracemalloc.start()
    with pytest.raises(DataError, match=f"{path} should hold .* at most 1048576"):
        read_idx(path)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("inside", ["MNIST/raw", "MNIST", "."])
def test_mnist_layouts(tmp_path: Path, zipped: bool, inside: str) -> None:
    made = write_mnist(tmp_path / inside, zipped=zipped)
    arrays = load_mnist(tmp_path)
    np.testing.assert_array_equal(arrays.x_train[:, 0], made["train-images-idx3-ubyte"])
    np.testing.assert_array_equal(arrays.y_train, made["train-labels-idx1-ubyte"])
    np.testing.assert_array_equal(arrays.x_test[:, 0], made["t10k-images-idx3-ubyte"])
    np.testing.assert_array_equal(arrays.y_test, made["t10k-labels-idx1-ubyte"])


def test_fashion_mnist_is_not_mnist(tmp_path: Path) -> None:
    digits = write_mnist(tmp_path / "MNIST" / "raw", zipped=True)
    with pytest.raises(DataError, match="No Fashion-MNIST file train-images-idx3-ubyte"):
        load_fashion_mnist(tmp_path)
    clothes = write_mnist(tmp_path / "FashionMNIST" / "raw", zipped=True)
    for load, made in ((load_mnist, digits), (load_fashion_mnist, clothes)):
        x = load(tmp_path).x_train[:, 0]
        np.testing.assert_array_equal(x, made["train-images-idx3-ubyte"])
    assert load_fashion_mnist(tmp_path).classes[9] == "Ankle boot"
    assert load_fashion_mnist(tmp_path).name == "fashion-mnist"


def test_mnist_missing_or_inconsistent(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"No MNIST file train-images-.* Put .* in MNIST/raw"):
        load_mnist(tmp_path)
    write_mnist(tmp_path, zipped=False)
    labels = tmp_path / "t10k-labels-idx1-ubyte"
    labels.write_bytes(idx_bytes(np.full(5, 10, dtype=np.uint8)))
    with pytest.raises(DataError, match=r"idx1-ubyte has label 10. Must be 0\.\.9"):
        load_mnist(tmp_path)
    labels.write_bytes(idx_bytes(np.zeros(4, dtype=np.uint8)))
    with pytest.raises(DataError, match=r"has shape \(4,\). Must be \(5,\)"):
        load_mnist(tmp_path)
    write_folder(tmp_path, {"t10k-images-idx3-ubyte": labels.read_bytes()})
    with pytest.raises(DataError, match=r"Must be \(n, h, w\)"):
        load_mnist(tmp_path)


def test_a_root_without_rights_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    root = tmp_path / "closed"
    write_mnist(root / "MNIST" / "raw", zipped=True)
    root.chmod(0)
    try:
        with without_rights(), pytest.raises(DataError, match="Permission denied") as caught:
            load_mnist(root)
    finally:
        root.chmod(0o700)
    assert str(root / "MNIST") in str(caught.value)


@pytest.mark.data
def test_real_mnist() -> None:
    arrays = load_mnist(real_root("MNIST/raw"))
    assert arrays.x_train.shape == (60000, 1, 28, 28)
    assert arrays.x_test.shape == (10000, 1, 28, 28)
    # Published label counts, and the mean grey level everybody normalises with.
    assert arrays.y_test.bincount().tolist() == [
        980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009,
    ]  # fmt: skip
    assert arrays.y_train[:5].tolist() == [5, 0, 4, 1, 9]
    assert arrays.x_train.double().mean().item() / 255 == pytest.approx(0.1307, abs=5e-5)

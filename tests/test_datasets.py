"""Data sets: real files where there are some, small generated and damaged ones always."""

from __future__ import annotations

import builtins
import gzip
import hashlib
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from ocar.errors import DataError, MissingPackageError
from ocar.streams import datasets
from ocar.streams.cifar import read_cifar
from ocar.streams.datasets import Arrays, load_cifar100, load_digits, load_mnist
from ocar.streams.idx import read_idx

RNG = np.random.default_rng(0)


def real_root(inside: str) -> Path:
    root = os.environ.get("OCAR_DATA")
    if not root or not (Path(root) / inside).exists():
        pytest.skip(f"OCAR_DATA is {root!r}: no {inside} under it")
    return Path(root)


def idx_bytes(values: np.ndarray) -> bytes:
    return struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()


def write_mnist(folder: Path, *, zipped: bool) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    made = {}
    for part, n in (("train", 12), ("t10k", 5)):
        made[f"{part}-images-idx3-ubyte"] = RNG.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        made[f"{part}-labels-idx1-ubyte"] = RNG.integers(0, 10, n, dtype=np.uint8)
    for name, values in made.items():
        content = idx_bytes(values)
        if zipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)
    return made


def cifar_bytes(data: np.ndarray, labels: list[int]) -> bytes:
    """A pickle as Python 2 wrote the official ones: protocol 2, byte strings, old numpy names."""

    def short(text: bytes) -> bytes:
        return b"U" + bytes([len(text)]) + text

    def number(n: int) -> bytes:
        return b"J" + struct.pack("<i", n)

    raw = data.tobytes()
    array = b"cnumpy.core.multiarray\n_reconstruct\n("
    array += b"cnumpy\nndarray\n(" + number(0) + b"t" + short(b"b") + b"tR"
    array += b"(" + number(1) + b"(" + b"".join(number(n) for n in data.shape) + b"t"
    array += b"cnumpy\ndtype\n(" + short(b"u1") + number(0) + number(1) + b"tR"
    array += b"(" + number(3) + short(b"|") + b"NNN" + number(-1) * 2 + number(0) + b"tb"
    array += b"\x89" + b"T" + struct.pack("<I", len(raw)) + raw + b"tb"
    listed = b"](" + b"".join(number(n) for n in labels) + b"e"
    return b"\x80\x02}(" + short(b"data") + array + short(b"fine_labels") + listed + b"u."


def write_cifar(root: Path, train: bytes, test: bytes | None = None) -> Path:
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    (folder / "train").write_bytes(train)
    (folder / "test").write_bytes(train if test is None else test)
    return folder / "train"


# --- digits ---


def test_digits_are_the_bundled_ones_split_by_class() -> None:
    sklearn_datasets = pytest.importorskip("sklearn.datasets")
    bunch = sklearn_datasets.load_digits()
    arrays = load_digits()
    assert arrays.image_shape == (1, 8, 8)
    assert len(arrays.x_train) + len(arrays.x_test) == 1797
    for label in range(10):
        test, train = (int((y == label).sum()) for y in (arrays.y_test, arrays.y_train))
        assert test == round((test + train) / 5)
    scaled = {
        (bytes(np.rint(image * 255 / 16).astype(np.uint8)), int(y))
        for image, y in zip(bunch.images, bunch.target, strict=True)
    }
    x = torch.cat([arrays.x_train, arrays.x_test])
    y = torch.cat([arrays.y_train, arrays.y_test])
    assert {(bytes(i.numpy()), int(j)) for i, j in zip(x, y, strict=True)} == scaled
    assert x.max() == 255
    again = load_digits()
    assert torch.equal(arrays.x_test, again.x_test)


def test_digits_without_scikit_learn_give_the_install_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("ocar.streams.datasets.importlib.import_module", refuse)
    with pytest.raises(MissingPackageError, match=r'pip install "ocar\[paper\]"'):
        load_digits()


# --- MNIST ---


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("inside", ["MNIST/raw", "."])
def test_mnist_layouts(tmp_path: Path, zipped: bool, inside: str) -> None:
    made = write_mnist(tmp_path / inside, zipped=zipped)
    arrays = load_mnist(tmp_path)
    np.testing.assert_array_equal(arrays.x_train[:, 0], made["train-images-idx3-ubyte"])
    np.testing.assert_array_equal(arrays.y_train, made["train-labels-idx1-ubyte"])
    np.testing.assert_array_equal(arrays.x_test[:, 0], made["t10k-images-idx3-ubyte"])
    np.testing.assert_array_equal(arrays.y_test, made["t10k-labels-idx1-ubyte"])


GOOD = idx_bytes(np.arange(12, dtype=np.uint8).reshape(3, 4))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no IDX file"),
        (GOOD[:2], "no IDX file"),
        (b"\0\0\x0d\x02" + GOOD[4:], "no IDX file of unsigned bytes: it begins with '00 00 0d 02'"),
        (GOOD[:9], "ends within its header"),
        (GOOD[:-1], r"12 values by its header \(3, 4\), has 11"),
        (GOOD + b"x", r"12 values by its header \(3, 4\), has more"),
        (b"\0\0\x08\x03" + b"\xff" * 12 + b"abc", "has 3"),
        (gzip.compress(GOOD)[:-9], "Cannot read"),
        (gzip.compress(GOOD)[:12] + b"\0" * 20, "Cannot read"),
    ],
)
def test_damaged_idx_files_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "some-idx-file"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_idx(path)
    assert str(path) in str(caught.value)


def test_mnist_missing_or_inconsistent(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No MNIST file train-images-idx3-ubyte"):
        load_mnist(tmp_path)
    write_mnist(tmp_path, zipped=False)
    labels = tmp_path / "t10k-labels-idx1-ubyte"
    labels.write_bytes(idx_bytes(np.zeros(4, dtype=np.uint8)))
    with pytest.raises(DataError, match=r"has shape \(4,\). Must be \(5,\)"):
        load_mnist(tmp_path)
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(labels.read_bytes())
    with pytest.raises(DataError, match=r"Must be \(n, h, w\)"):
        load_mnist(tmp_path)


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


# --- CIFAR-100 ---


def test_small_cifar_is_read_and_is_what_pickle_reads(tmp_path: Path) -> None:
    data = RNG.integers(0, 256, (4, 3072), dtype=np.uint8)
    path = write_cifar(tmp_path, cifar_bytes(data, [5, 99, 0, 7]))
    arrays = load_cifar100(tmp_path)
    np.testing.assert_array_equal(arrays.x_train.flatten(1), data)
    assert arrays.y_train.tolist() == [5, 99, 0, 7]
    assert arrays.image_shape == (3, 32, 32)
    x, _ = read_cifar(path, label_key="fine_labels", classes=100)
    np.testing.assert_array_equal(x[1, 2], data[1, 2048:].reshape(32, 32))


class Attack:
    def __init__(self, function: Callable[..., object], *args: object) -> None:
        self.call = (function, args)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


def attacks(witness: Path) -> dict[str, tuple[bytes, str]]:
    """Pickles that would make ``witness`` or misuse what they may name; why each is refused."""
    target = f"open({str(witness)!r}, 'w')"
    good = cifar_bytes(np.zeros((1, 3072), dtype=np.uint8), [0])
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
def test_pickles_that_want_more_are_refused(tmp_path: Path, name: str) -> None:
    witness = tmp_path / "witness"
    content, reason = attacks(witness)[name]
    path = write_cifar(tmp_path / "root", content)
    with pytest.raises(DataError, match=reason) as caught:
        load_cifar100(tmp_path / "root")
    assert str(path) in str(caught.value)
    assert not witness.exists()


def test_damaged_cifar_files_are_named(tmp_path: Path) -> None:
    data = np.zeros((2, 3072), dtype=np.uint8)
    good = cifar_bytes(data, [1, 2])
    cases = {
        b"": "Cannot read",
        good[: len(good) // 2]: "Cannot read",
        good[:-1]: "Cannot read",
        good + b"more": "more after its end",
        pickle.dumps([1, 2], 2): "holds a list",
        pickle.dumps({b"fine_labels": [1]}, 3): "'data' is not an array",
        cifar_bytes(data[:, :100], [1, 2]): r"not an array of \(n, 3072\)",
        cifar_bytes(data, [1]): "no 'fine_labels' for its 2 images",
        cifar_bytes(data, [1, 100]): r"whole numbers in 0\.\.99",
        cifar_bytes(data, [1, -1]): r"whole numbers in 0\.\.99",
    }
    for i, (content, message) in enumerate(cases.items()):
        path = write_cifar(tmp_path / str(i), good, content).with_name("test")
        with pytest.raises(DataError, match=message) as caught:
            load_cifar100(tmp_path / str(i))
        assert str(path) in str(caught.value)
    with pytest.raises(DataError, match=r"No CIFAR-100 file .*cifar-100-python.tar.gz"):
        load_cifar100(tmp_path)


@pytest.mark.data
def test_real_cifar100_is_what_pickle_reads() -> None:
    root = real_root("cifar-100-python/train")
    path = root / "cifar-100-python" / "test"
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


# --- the container and the root ---


def test_arrays_are_checked() -> None:
    x, y = torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64)
    good = Arrays(name="tiny", x_train=x, y_train=y, x_test=x, y_test=y)
    assert good.to("cpu").x_train is x
    with pytest.raises(DataError, match=r"tiny: x_train is torch.float32"):
        Arrays(name="tiny", x_train=x.float(), y_train=y, x_test=x, y_test=y)
    with pytest.raises(DataError, match=r"tiny: y_test .* Must be int64 \(3,\)"):
        Arrays(name="tiny", x_train=x, y_train=y, x_test=x, y_test=y[:2])
    with pytest.raises(DataError, match=r"n > 0"):
        Arrays(name="tiny", x_train=x[:0], y_train=y[:0], x_test=x, y_test=y)
    with pytest.raises(DataError, match=r"images of \(1, 2, 2\) for training and of \(1, 2, 1\)"):
        Arrays(name="tiny", x_train=x, y_train=y, x_test=x[..., :1], y_test=y)


def test_data_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OCAR_DATA", str(tmp_path))
    assert datasets.data_root() == tmp_path
    monkeypatch.setenv("OCAR_DATA", "")
    monkeypatch.setattr("ocar.streams.datasets.sys.platform", "linux")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    assert datasets.data_root() == tmp_path / "share" / "ocar"
    monkeypatch.delenv("XDG_DATA_HOME")
    assert datasets.data_root() == Path.home() / ".local" / "share" / "ocar"

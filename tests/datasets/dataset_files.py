"""Small data sets in the layouts of their publishers, made for the tests, and what spoils them."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

RNG = np.random.default_rng(0)


def real_root(inside: str) -> Path:
    root = os.environ.get("OCAR_DATA")
    if not root or not (Path(root) / inside).exists():
        pytest.skip(f"needs {inside} under the folder that OCAR_DATA names, now {root!r}")
    return Path(root)


# --- files, folders and archives ---


def write_folder(root: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def write_zip(path: Path, files: Mapping[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)


def write_tar(path: Path, files: Mapping[str, bytes], *links: tarfile.TarInfo) -> None:
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for link in links:
            archive.addfile(link)


def everything(root: Path) -> dict[str, bytes]:
    """All files under a folder with their content, the cache left out."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".ocar-cache" not in path.parts
    }


@contextmanager
def without_rights() -> Iterator[None]:
    """Be a user who owns nothing; who is root already cannot be refused otherwise."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


# --- MNIST ---


def idx_bytes(values: np.ndarray) -> bytes:
    return struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()


def write_mnist(folder: Path, *, zipped: bool) -> dict[str, np.ndarray]:
    made = {}
    for part, n in (("train", 12), ("t10k", 5)):
        made[f"{part}-images-idx3-ubyte"] = RNG.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        made[f"{part}-labels-idx1-ubyte"] = RNG.integers(0, 10, n, dtype=np.uint8)
    for name, values in made.items():
        content = idx_bytes(values)
        file = {f"{name}.gz": gzip.compress(content)} if zipped else {name: content}
        write_folder(folder, file)
    return made


# --- CIFAR ---


def short(text: bytes) -> bytes:
    return b"U" + bytes([len(text)]) + text


def number(n: int) -> bytes:
    return b"J" + struct.pack("<i", n)


def cifar_bytes(data: np.ndarray, **labels: list[int]) -> bytes:
    """A pickle as Python 2 wrote the official ones: protocol 2, byte strings, old numpy names."""
    raw = data.tobytes()
    array = b"cnumpy.core.multiarray\n_reconstruct\n("
    array += b"cnumpy\nndarray\n(" + number(0) + b"t" + short(b"b") + b"tR"
    array += b"(" + number(1) + b"(" + b"".join(number(n) for n in data.shape) + b"t"
    array += b"cnumpy\ndtype\n(" + short(b"u1") + number(0) + number(1) + b"tR"
    array += b"(" + number(3) + short(b"|") + b"NNN" + number(-1) * 2 + number(0) + b"tb"
    array += b"\x89" + b"T" + struct.pack("<I", len(raw)) + raw + b"tb"
    listed = b"".join(
        short(key.encode()) + b"](" + b"".join(number(n) for n in given) + b"e"
        for key, given in labels.items()
    )
    return b"\x80\x02}(" + short(b"data") + array + listed + b"u."


def names_bytes(**names: list[str]) -> bytes:
    """The pickle with the names of the classes."""
    listed = b"".join(
        short(key.encode()) + b"](" + b"".join(short(name.encode()) for name in given) + b"e"
        for key, given in names.items()
    )
    return b"\x80\x02}(" + listed + b"u."


def cifar100_file(n: int, fine: list[int] | None = None) -> tuple[np.ndarray, bytes]:
    """Random images and the pickle of them; superclass of a class: its number by five."""
    data = RNG.integers(0, 256, (n, 3072), dtype=np.uint8)
    fine = RNG.integers(0, 100, n).tolist() if fine is None else fine
    return data, cifar_bytes(data, fine_labels=fine, coarse_labels=[y // 5 for y in fine])


def cifar10_files() -> dict[str, bytes]:
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    files = {
        f"cifar-10-batches-py/{name}": cifar_bytes(
            np.full((2, 3072), place, dtype=np.uint8), labels=[place, 9]
        )
        for place, name in enumerate(names)
    }
    meta = names_bytes(label_names=[f"kind {i}" for i in range(10)])
    return files | {"cifar-10-batches-py/batches.meta": meta}


# --- images ---


def picture(level: int, *, size: tuple[int, int] = (6, 6), kind: str = "PNG") -> bytes:
    """An image of one grey level."""
    file = io.BytesIO()
    Image.new("RGB", size, (level, level, level)).save(file, kind)
    return file.getvalue()


def tiny_files(train: int = 3, val: int = 2) -> dict[str, bytes]:
    """Tiny ImageNet with two classes; the grey level says class and place."""
    files = {}
    lines = []
    for place, wnid in enumerate(("n02", "n01")):
        for i in range(train):
            files[f"train/{wnid}/images/{wnid}_{i}.JPEG"] = picture(100 * place + i)
        for i in range(val):
            files[f"val/images/val_{place}{i}.JPEG"] = picture(100 * place + 50 + i)
            lines.append(f"val_{place}{i}.JPEG\t{wnid}\t0\t0\t63\t63\n")
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b"n02_0.JPEG\t0\t0\t1\t1\n"
    files["val/val_annotations.txt"] = "".join(lines).encode()
    files["wnids.txt"] = b"n02\nn01\n"
    files["test/images/test_0.JPEG"] = picture(7)
    return files


def domain_files(each: int = 5) -> dict[str, bytes]:
    """Two domains of two classes; the grey level says which and the place."""
    return {
        f"{domain}/{kind}/{i}.png": picture(100 * d + 40 * k + i)
        for d, domain in enumerate(("photo", "art"))
        for k, kind in enumerate(("dog", "cat"))
        for i in range(each)
    } | {"README.txt": b"not an image", "photo/dog/.hidden.png": b"neither"}


def clear_files(*, each: int, buckets: int = 10, classes: int = 11) -> dict[str, bytes]:
    """One part of CLEAR-10; the grey level says bucket and class."""
    names = ["BACKGROUND", *(f"class_{i:02}" for i in range(1, classes))]
    files = {"class_names.txt": "\n".join(names).encode()}
    index: dict[str, dict[str, str]] = {}
    for bucket in (0, *range(buckets, 0, -1)):
        for label, name in enumerate(names):
            listed = {}
            for i in range(each):
                path = f"labeled_images/{bucket}/{name}/{i}00.jpg"
                files[path] = picture(20 * bucket + label, size=(8, 6))
                listed[f"{i}00"] = {"ID": f"{i}00", "IMG_PATH": path, "TITLE": "a photograph"}
            metadata = f"labeled_metadata/{bucket}/{name}.json"
            files[metadata] = json.dumps(listed).encode()
            index.setdefault(str(bucket), {})[name] = metadata
    return files | {"labeled_metadata.json": json.dumps(index).encode()}


def below(folder: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {f"{folder}/{name}": content for name, content in files.items()}

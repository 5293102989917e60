"""The readers, each with valid files and the ways to corrupt them."""

from __future__ import annotations

import copy
import gzip
import hashlib
import io
import json
import tarfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from datasets.dataset_files import (
    cifar10_files,
    cifar_bytes,
    clear_files,
    idx_bytes,
    names_bytes,
    tiny_files,
)
from made_runs import write_study
from PIL import Image
from stored_runs import small
from torch import nn

import ocar
import ocar_lab
from fuzz import mutate
from ocar.datasets import load_clear10, load_clinc150, load_mnist, load_tiny_imagenet
from ocar.datasets.archives import Folder, Zip
from ocar.datasets.cache import Entry, load_or_make, verify_cache
from ocar.datasets.cifar import CIFAR10, read_cifar
from ocar.datasets.mnist import read_idx
from ocar.datasets.pictures import Picture, decode_all
from ocar.errors import DataError
from ocar.streams import CSVReader, TarReader
from ocar_lab.report.live import Watcher
from ocar_lab.report.studies import read_part
from ocar_lab.runs import read_run
from ocar_lab.runs.folder import CONFIG, METRICS, STATUS
from ocar_lab.runs.results import keep, read_result
from ocar_lab.runs.studies import JOURNAL, STUDY
from ocar_lab.tune.preset import Preset, read_preset, write_preset

MB = 1 << 20


@dataclass(frozen=True)
class Target:
    """One reader."""

    read: Callable[[bytes], object]
    """Reads an input; may raise only the package's own errors."""

    seeds: Sequence[bytes]
    """Valid files."""

    mutators: Sequence[mutate.Mutator]
    """How to corrupt them, in addition to changes of single bytes."""

    base: int = 16 * MB
    """Memory that any input may take, in bytes."""

    factor: int = 64
    """Further memory for each byte of the input."""

    def make(self, rng: Random) -> bytes:
        """An input."""
        data = rng.choice(self.seeds)
        ways = (*self.mutators, mutate.by_bytes) if self.mutators else (mutate.by_bytes,)
        for _ in range(rng.choice((1, 1, 1, 2))):
            with suppress(Exception):  # a corrupted file may not parse
                data = rng.choice(ways)(data, rng)
        return data


def make_target(name: str, folder: Path) -> Target:
    """A target that works in a folder."""
    return TARGETS[name](folder)


# --- checkpoints ---


def _net() -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=generator))
    return net


def _learners() -> list[ocar.Learner]:
    common: dict[str, Any] = {"lr": 0.01, "memory": 6, "replay_batch": 2, "passes": 1}
    curvature = {"tau_step": 1e-6, "ema": 0.2}
    return [
        ocar.make_learner("er", _net(), **common, prediction="average"),
        ocar.make_learner("er", _net(), **common, normalize=ocar.Normalize((0.5,), (0.2,))),
        ocar.make_learner("ocar", _net(), **common, **curvature),
        ocar.make_learner("der++", _net(), **common, memory_kind="reservoir", alpha=0.1, beta=0.1),
        ocar.make_learner("ewc", _net(), **common, strength=0.1),
        ocar.make_learner("gdumb", _net(), lr=0.1, memory=6, epochs=1, train_batch=4),
        ocar.make_learner("er-lwf", _net(), **common),
        ocar.make_learner("lpr", _net(), **common),
        ocar.make_learner("scr", _net(), **common, projection=4),
    ]


def _checkpoint(folder: Path) -> Target:
    seeds = []
    for number, learner in enumerate(_learners()):
        learner.save(folder / "file")
        if number < 2:
            seeds.append((folder / "file").read_bytes())  # of a learner without samples
        if not isinstance(learner.settings.normalize, ocar.Normalize):
            learner.learn(torch.eye(4), torch.tensor([0, 3, 1, 0]))
        learner.save(folder / "file")
        seeds.append((folder / "file").read_bytes())
    net = _net()

    def read(data: bytes) -> None:
        (folder / "file").write_bytes(data)
        ocar.load(folder / "file", copy.deepcopy(net))

    (folder / "file.previous").unlink()  # it would be used if the other is refused
    ways = [mutate.by_safetensors] * 3 + [mutate.by_sealed_bytes]
    return Target(read, seeds, ways, base=96 * MB)


# --- configurations and metrics ---


def _preset(folder: Path) -> Target:
    presets = [
        Preset(benchmark="split-digits", method="ocar", settings={"lr": 0.06, "tau_step": 4e-8}),
        Preset(benchmark="split-digits", method="er", transform="ngd", settings={"lr": 0.1}),
        Preset(benchmark="split-mnist", method="scr", settings={"lr": 0.1, "classes": [0, 1]}),
    ]
    seeds = []
    for preset in presets:
        write_preset(folder / "file", preset)
        seeds.append((folder / "file").read_bytes())

    def read(data: bytes) -> None:
        (folder / "file").write_bytes(data)
        read_preset(folder / "file")

    return Target(read, seeds, [mutate.by_json] * 3)


def _run_files(folder: Path) -> tuple[Path, dict[str, bytes]]:
    path = ocar_lab.run(small(max_batches=4, probe=False), out=folder).path
    return path, {name: (path / name).read_bytes() for name in (CONFIG, METRICS, STATUS)}


def _look(path: Path) -> None:
    run = read_run(path)
    _ = (run.summary, run.history, run.state, run.seed, run.label, run.hash, run.device)
    _ = (run.benchmark, dict(run.changed), run.sessions)


def _run_file(name: str, mutator: mutate.Mutator) -> Callable[[Path], Target]:
    def make(folder: Path) -> Target:
        path, files = _run_files(folder)

        def read(data: bytes) -> None:
            (path / name).write_bytes(data)
            _look(path)

        return Target(read, [files[name]], [mutator] * 3)

    return make


def _study_file(name: str, mutator: mutate.Mutator) -> Callable[[Path], Target]:
    def make(folder: Path) -> Target:
        space = {"lr": {"low": 0.1, "high": 1.0, "log": True}, "passes": {"values": [1, 2]}}
        drawn = [{"lr": 0.1 + 0.04 * place, "passes": 1 + place % 2} for place in range(22)]
        write_study(folder, space, [(settings, settings["lr"]) for settings in drawn])
        read_part(folder)  # imports Optuna's parts, which takes time

        def read(data: bytes) -> None:
            (folder / name).write_bytes(data)
            read_part(folder)

        return Target(read, [(folder / name).read_bytes()], [mutator] * 3)

    return make


def _watched(name: str, mutator: mutate.Mutator) -> Callable[[Path], Target]:
    """The live page: no file of a run may break it."""

    def make(folder: Path) -> Target:
        path, files = _run_files(folder)
        Watcher([folder]).look()  # compiles the templates, which takes time

        def read(data: bytes) -> None:
            (path / name).write_bytes(data)
            Watcher([folder]).look()

        return Target(read, [files[name]], [mutator] * 3)

    return make


def _result(folder: Path) -> Target:
    path, _ = _run_files(folder)
    file = keep([read_run(path)], folder / "kept").path  # its name depends on its content

    def read(data: bytes) -> None:
        file.write_bytes(data)
        _ = [run.state for run in read_result(file).runs]

    return Target(read, [file.read_bytes()], [mutate.by_json] * 3)


# --- data sets ---


def _idx(folder: Path) -> Target:
    shapes = ((5,), (3, 4, 4), (1, 2, 3, 2))
    plain = [idx_bytes(np.arange(np.prod(s), dtype=np.uint8).reshape(s)) for s in shapes]
    seeds = [*plain, *(gzip.compress(data, mtime=0) for data in plain)]
    names = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
    others = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    for name in (*names, *others):
        (folder / name).write_bytes(plain["images" in name])

    def read(data: bytes) -> None:
        (folder / names[0]).write_bytes(data)
        with suppress(DataError):  # read_idx is tried in any case
            load_mnist(folder)
        read_idx(folder / names[0])

    # Deflate expands a byte to a thousand, and two copies of the array exist for a moment.
    return Target(read, seeds, [mutate.by_gzip(mutate.by_bytes)], factor=3 * 1032)


def _cifar(folder: Path) -> Target:
    pixels = np.arange(2 * 3072, dtype=np.uint8).reshape(2, 3072)
    names = names_bytes(label_names=[f"kind {i}" for i in range(10)])
    files = cifar10_files()
    for name, data in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)

    def read(data: bytes) -> None:
        part = "test_batch" if len(data) > 3000 else "batches.meta"
        (folder / CIFAR10.folder / part).write_bytes(data)
        try:
            CIFAR10.read(folder)
        finally:
            (folder / CIFAR10.folder / part).write_bytes(files[f"{CIFAR10.folder}/{part}"])
        if part == "test_batch":
            read_cifar(io.BytesIO(data), "file", classes={"labels": 10})

    return Target(read, [cifar_bytes(pixels, labels=[1, 9]), names], [mutate.by_opcodes] * 2)


def _tar(folder: Path) -> Target:
    seeds = []
    for kind in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w:gz", format=kind, compresslevel=1) as archive:
            for name, data in cifar10_files().items():
                info = tarfile.TarInfo(name if kind == tarfile.USTAR_FORMAT else f"{name}")
                info.size = len(data)
                info.pax_headers = {"comment": "é"} if kind == tarfile.PAX_FORMAT else {}
                archive.addfile(info, io.BytesIO(data))
        seeds.append(file.getvalue())

    def read(data: bytes) -> None:
        (folder / CIFAR10.archive).write_bytes(data)
        CIFAR10.read(folder)

    ways = [mutate.by_gzip(mutate.by_tar)] * 2 + [mutate.by_gzip(mutate.by_bytes)]
    return Target(read, seeds, ways, factor=4 * 1032)


def _zip(folder: Path) -> Target:
    tiny = [(f"tiny-imagenet-200/{n}", c) for n, c in tiny_files(train=1, val=1).items()]
    parts = clear_files(each=1, buckets=2, classes=2)
    both = [[(f"{top}/{n}", c) for n, c in parts.items()] for top in ("train_image_only", "test")]
    seeds = [mutate.write_zip(entries) for entries in (tiny, both[0])]
    (folder / "clear10-test.zip").write_bytes(mutate.write_zip(both[1]))

    def read(data: bytes) -> None:
        name = "clear10-train-image-only.zip" if b"train_image_only" in data else ""
        path = folder / (name or "tiny-imagenet-200.zip")
        path.write_bytes(data)
        load = load_clear10 if name else load_tiny_imagenet
        with suppress(DataError):  # all entries are read in any case
            load(folder, size=4)
        with Zip(path, top="train_image_only" if name else "tiny-imagenet-200") as tree:
            for entry in tree.files():
                with suppress(DataError):
                    tree.read(entry)

    # An entry may claim 64 MiB, and an image fifty million pixels of four bytes, twice.
    return Target(read, seeds, [mutate.by_zip] * 3, base=512 * MB, factor=1032)


def _picture(folder: Path) -> Target:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (12, 10, 4), dtype=np.uint8)
    colours, grey = Image.fromarray(pixels[..., :3]), Image.fromarray(pixels[..., 0])
    deep = Image.fromarray(rng.integers(0, 65536, (12, 10), dtype=np.uint16))
    frames = {"save_all": True, "append_images": [grey]}
    kinds: list[tuple[Image.Image, str, dict[str, Any]]] = [
        *((colours, kind, {}) for kind in ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")),
        *((Image.fromarray(pixels), kind, {}) for kind in ("PNG", "TIFF", "WEBP")),
        *((deep, kind, {}) for kind in ("PNG", "TIFF", "PPM")),
        *((grey, kind, frames) for kind in ("GIF", "PNG", "WEBP")),
        *((colours, "TIFF", {"compression": c}) for c in ("tiff_lzw", "tiff_deflate", "jpeg")),
        (colours, "JPEG", {"progressive": True}),
        (colours.convert("CMYK"), "JPEG", {}),
        (colours.quantize(16), "PNG", {"transparency": 3}),
    ]
    seeds = []
    for image, kind, options in kinds:
        for orientation in (1, 6):
            exif = Image.Exif()
            exif[0x0112] = orientation
            file = io.BytesIO()
            image.save(file, kind, **options, **({"exif": exif} if orientation > 1 else {}))
            seeds.append(file.getvalue())

    def read(data: bytes) -> None:
        (folder / "file.png").write_bytes(data)
        with Folder(folder) as tree:
            (made,) = decode_all([Picture(tree, "file.png", "", 0)], 8)
        if made.shape != (3, 8, 8) or made.dtype != np.uint8:
            raise AssertionError(f"{made.dtype} of {made.shape}")

    # Fifty million pixels of four bytes, their alpha, and three bytes each after that.
    return Target(read, seeds, [mutate.by_png], base=512 * MB, factor=1032)


def _cache(folder: Path) -> Target:
    shape = (2, 3, 4, 4)
    entry = Entry(folder=folder, name="set-4", fingerprint="ab" * 32, shape=shape)
    rows = np.arange(2 * 48, dtype=np.uint8).reshape(shape)
    entry.write(iter(rows))
    array = entry.array_path.read_bytes()
    note = json.loads(entry.note_path.read_bytes()) | {"sha256": "RIGHT"}
    seeds = [json.dumps(note).encode() + b"\n" + array]

    def read(data: bytes) -> None:
        """The first line is the note, the rest the array; RIGHT stands for its checksum."""
        first, _, rest = data.partition(b"\n")
        digest = hashlib.sha256(rest).hexdigest().encode()
        first = first.replace(b'"RIGHT"', b'"%b"' % digest)
        entry.note_path.write_bytes(first.replace(b'"bytes": 224', b'"bytes": %d' % len(rest)))
        entry.array_path.write_bytes(rest)
        verify_cache(folder, "set")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a damaged file is made again
            made = load_or_make(entry, lambda: iter(rows))
        if made.shape != shape or made.dtype != np.uint8:
            raise AssertionError(f"{made.dtype} of {made.shape}")

    def by_note(data: bytes, rng: Random) -> bytes:
        first, _, rest = data.partition(b"\n")
        return mutate.by_json(first, rng) + b"\n" + rest

    def by_array(data: bytes, rng: Random) -> bytes:
        first, _, rest = data.partition(b"\n")
        return first + b"\n" + mutate.by_bytes(rest, rng)

    return Target(read, seeds, [by_note, by_array, by_array])


# --- readers of streams ---


def _csv(folder: Path) -> Target:
    seeds = [b"a,b,y\n1.5,2,0\n-3,4e2,1\n", b'\xef\xbb\xbfa,b,y\r\n"1",2,0\r\n']

    def read(data: bytes) -> None:
        (folder / "file").write_bytes(data)
        for x, y in CSVReader(folder / "file", x=["a", "b"], y="y"):
            if x.shape[1:] != (2,) or len(x) != len(y):
                raise AssertionError(f"{x.shape} and {y.shape}")

    return Target(read, seeds, [mutate.by_lines], base=96 * MB)  # torch imports more at first use


def _shard(folder: Path) -> Target:
    array, picture = io.BytesIO(), io.BytesIO()
    np.save(array, np.arange(6, dtype=np.int16).reshape(2, 3))
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(picture, "PNG")
    seeds = []
    for kind in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=kind) as archive:
            for i in range(2):
                fields = {"png": picture.getvalue(), "npy": array.getvalue(), "json": b'{"y": 1}'}
                for field, data in fields.items():
                    info = tarfile.TarInfo(f"s/{i}.{field}")
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))
        seeds.append(file.getvalue())

    def read(data: bytes) -> None:
        (folder / "file.tar").write_bytes(data)
        fields = {"image": "png", "array": "npy"}
        reader = TarReader(
            folder / "file.tar", x=fields, y=lambda sample: sample["json"]["y"], image_size=8
        )
        for x, y in reader:
            if len(x["image"]) != len(y):
                raise AssertionError(f"{x['image'].shape} and {y.shape}")

    return Target(read, seeds, [mutate.by_tar, mutate.by_bytes], base=512 * MB, factor=1032)


def _clinc(folder: Path) -> Target:
    (folder / "CLINC150").mkdir()
    rows = [["lights on", "lights"], ["visa for peru", "visa"]]
    parts = dict.fromkeys(("train", "val", "test"), rows)
    outside = {f"oos_{name}": [["how tall is it", "oos"]] for name in ("val", "test")}
    both = [parts | outside, {"home": ["lights"], "travel": ["visa"]}]

    def read(data: bytes) -> None:
        first, _, rest = data.partition(b"\n")
        (folder / "CLINC150/data_full.json").write_bytes(first)
        (folder / "CLINC150/domains.json").write_bytes(rest)
        load_clinc150(folder)

    def by_line(data: bytes, rng: Random) -> bytes:
        lines = data.split(b"\n", 1)
        place = rng.randrange(len(lines))
        lines[place] = mutate.by_json(lines[place], rng)
        return b"\n".join(lines)

    seeds = ["\n".join(json.dumps(part) for part in both).encode()]
    return Target(read, seeds, [by_line, mutate.by_bytes], base=96 * MB)


TARGETS: dict[str, Callable[[Path], Target]] = {
    "checkpoint": _checkpoint,
    "preset": _preset,
    "run-config": _run_file(CONFIG, mutate.by_json),
    "run-status": _run_file(STATUS, mutate.by_json),
    "metrics": _run_file(METRICS, mutate.by_lines),
    "result": _result,
    "study": _study_file(STUDY, mutate.by_json),
    "journal": _study_file(JOURNAL, mutate.by_lines),
    "watch-config": _watched(CONFIG, mutate.by_json),
    "watch-status": _watched(STATUS, mutate.by_json),
    "watch-metrics": _watched(METRICS, mutate.by_lines),
    "idx": _idx,
    "cifar": _cifar,
    "tar": _tar,
    "zip": _zip,
    "picture": _picture,
    "cache": _cache,
    "csv": _csv,
    "shard": _shard,
    "clinc": _clinc,
}
"""The readers by name; each works in a given folder."""

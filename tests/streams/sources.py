"""What the tests of readers read: the same rows in every kind of source."""

from __future__ import annotations

import csv
import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from ocar.streams import CSVReader, LoaderReader, ParquetReader, TableReader, TarReader
from ocar.streams.readers import Reader

ROWS, BATCH = 47, 5
"""Rows that are read; the last batch is short."""


def rows() -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(ROWS, 3, generator=generator)
    return [
        {
            "a": a,
            "b": b,
            "c": c,
            "list": [i, i + 1, i % 7],
            "kind": "cat" if a > 0 else "dog",
            "y": i % 4,
        }
        for i, (a, b, c) in enumerate(values.tolist())
    ]


def write_csv(path: Path, some: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [name for name in some[0] if name != "list"])
        writer.writeheader()
        writer.writerows({k: v for k, v in row.items() if k != "list"} for row in some)
    return path


def write_parquet(path: Path, some: list[dict[str, Any]]) -> Path:
    polars = pytest.importorskip("polars")
    polars.DataFrame(some).write_parquet(path, row_group_size=10)
    return path


def picture(i: int) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(i).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def write_tar(path: Path, samples: dict[str, bytes]) -> Path:
    if path.exists():
        return path
    with tarfile.open(path, "w") as tar:
        for name, data in samples.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def write_shards(folder: Path) -> list[Path]:
    paths = []
    for shard, first in enumerate((0, 20, 33)):
        names: dict[str, bytes] = {}
        for i in range(first, (20, 33, ROWS)[shard]):
            names |= {f"d/{i:03}.png": picture(i), f"d/{i:03}.cls": f"{i % 4}\n".encode()}
        paths.append(write_tar(folder / f"{shard}.tar", names))
    return paths


class Huge(IterableDataset[Any]):
    """A data set without an index."""

    def __iter__(self) -> Iterator[Any]:
        return ((torch.tensor([row["a"], row["b"]]), row["y"]) for row in rows())


class Batches(Dataset[Any]):
    """A data set whose items are batches."""

    def __len__(self) -> int:
        return -(-ROWS // BATCH)

    def __getitem__(self, index: int) -> Any:
        some = rows()[BATCH * index : BATCH * (index + 1)]
        return torch.tensor([[row["a"]] for row in some]), torch.tensor([row["y"] for row in some])


class Columns(list[Any]):
    """As ``datasets.Dataset``: a slice is a dictionary of columns."""

    def __getitem__(self, index: Any) -> Any:
        part = super().__getitem__(index)
        return {name: [row[name] for row in part] for name in part[0]} if part else {}


class Skipped:
    """As ``datasets.IterableDataset``."""

    def __init__(self, start: int = 0) -> None:
        self.start = start

    def __iter__(self) -> Iterator[Any]:
        return iter(rows()[self.start :])

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError

    def skip(self, n: int) -> Skipped:
        return Skipped(self.start + n)


def loader(**options: Any) -> LoaderReader:
    values = torch.tensor([[row["a"], row["b"], row["c"]] for row in rows()])
    data = TensorDataset(values, torch.tensor([row["y"] for row in rows()]))
    return LoaderReader(DataLoader(data, batch_size=BATCH, **options), seed=3)


NUMBERS: dict[str, Any] = {"x": ["a", "b", "c"], "y": "y", "batch_size": BATCH}
LISTS: dict[str, Any] = {"x": {"ids": "list", "numbers": ["a", "b"]}, "y": "y", "batch_size": BATCH}

READERS: dict[str, Callable[[Path], Reader]] = {
    "loader": lambda folder: loader(),
    "shuffled loader": lambda folder: loader(shuffle=True),
    "loader with a generator": lambda folder: loader(shuffle=True, generator=torch.Generator()),
    "loader of whole batches": lambda folder: LoaderReader(
        DataLoader(Batches(), batch_size=None, shuffle=True)
    ),
    "iterable loader": lambda folder: LoaderReader(DataLoader(Huge(), batch_size=BATCH)),
    "rows": lambda folder: TableReader(rows(), **LISTS),
    "columns": lambda folder: TableReader(Columns(rows()), **LISTS),
    "skipped rows": lambda folder: TableReader(Skipped(), **LISTS),
    "csv": lambda folder: CSVReader(write_csv(folder / "one.csv", rows()), **NUMBERS),
    "two csv": lambda folder: CSVReader(
        [write_csv(folder / "1.csv", rows()[:13]), write_csv(folder / "2.csv", rows()[13:])],
        **NUMBERS,
    ),
    "parquet": lambda folder: ParquetReader(write_parquet(folder / "one.parquet", rows()), **LISTS),
    "two parquet": lambda folder: ParquetReader(
        [write_parquet(folder / "1", rows()[:13]), write_parquet(folder / "2", rows()[13:])],
        **LISTS,
    ),
    "tar": lambda folder: TarReader(
        write_shards(folder), x="png", y="cls", image_size=8, batch_size=BATCH
    ),
}

EVERY_READER = pytest.mark.parametrize("name", READERS)

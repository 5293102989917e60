"""What readers refuse, and how they name it: files, lines, fields, places."""

from __future__ import annotations

import io
import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sources import NUMBERS, picture, rows, write_csv, write_tar
from torch.utils.data import DataLoader

from ocar.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    InputError,
    MissingPackageError,
    OcarError,
)
from ocar.streams import (
    CSVReader,
    IterableStream,
    LoaderReader,
    ParquetReader,
    TableReader,
    TarReader,
)
from ocar.streams.readers import Reader
from ocar.structure import as_samples


def test_wrong_fields_are_named(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", rows())
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"x": ["a", "z"], "y": "y"}, "line 2 has no field 'z'. It has a, b, c, kind, y."),
        ({"x": ["a"], "y": "kind"}, "line 2: field 'kind' is '(cat|dog)'. Must be an integer"),
        ({"x": ["a"], "y": "kind", "classes": ("cow",)}, "Must be one of cow."),
        ({"x": ["kind"], "y": "y"}, "line 2: field 'kind' is '(cat|dog)'. Must be a number"),
        ({"x": ["a"], "y": "a"}, "line 2: field 'a' is .*. Must be an integer"),
    ]
    for fields, message in wrong:
        with pytest.raises(DataError, match=message):
            list(CSVReader(path, **fields))
    with pytest.raises(DataError, match=r"Row 0: field 'y' is 0\.5\. Must be an integer"):
        list(TableReader([{"x": [1.0], "y": 0.5}], x="x", y="y"))
    with pytest.raises(
        DataError, match=r"Row 1: field 'y' is '9+\.\.\.9+'\. Must be an integer from 0"
    ):
        list(TableReader([{"x": [1], "y": 1}, {"x": [1], "y": "9" * 30}], x="x", y="y"))
    ragged = [{"x": [1, 2], "y": 0}, {"x": [1], "y": 0}]
    with pytest.raises(InputError, match="Sequences must all have one length"):
        list(TableReader(ragged, x="x", y="y"))
    with pytest.raises(DataError, match="Must be numbers, without empty ones"):
        list(TableReader([{"x": [[1, 2], [1]], "y": 0}], x="x", y="y"))
    with pytest.raises(ConfigError, match="Invalid batch_size=0"):
        TableReader([], x="x", y="y", batch_size=0)
    with pytest.raises(ConfigError, match="Invalid table int"):
        TableReader(3, x="x", y="y")
    with pytest.raises(ConfigError, match=r"Invalid table dict\. Must have a length and slices"):
        TableReader({"a": [1]}, x="a", y="a")
    with pytest.raises(ConfigError, match=r"Invalid classes=\('a', 'a'\)\. Must be different"):
        TableReader([], x="x", y="y", classes=["a", "a"])
    with pytest.raises(ConfigError, match="Must be at least one file"):
        CSVReader([], x="x", y="y")


BROKEN: dict[str, tuple[type[Reader], bytes, str]] = {
    "no csv": (CSVReader, b"a,y\n1,\xff\n", "Cannot read"),
    "short row": (CSVReader, b"a,y\n1\n", "line 2: it must have a value for each of 2 columns"),
    "long row": (CSVReader, b"a,y\n1,2,3\n", "line 2: it must have a value for each of 2 columns"),
    "quotes": (CSVReader, b'a,y\n"1', "Cannot read"),
    "no parquet": (ParquetReader, b"PAR1nonsense", "Cannot read"),
    "no tar": (TarReader, b"nonsense" * 200, "Cannot read"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_named(name: str, tmp_path: Path) -> None:
    kind, data, message = BROKEN[name]
    if kind is ParquetReader:
        pytest.importorskip("polars")
    path = tmp_path / "broken file"
    path.write_bytes(data)
    reader: Any = kind
    with pytest.raises(DataError, match=message) as found:
        list(reader(path, x=["a"], y="y"))
    assert "broken file" in str(found.value)
    with pytest.raises(DataError, match="missing"):
        list(reader(tmp_path / "missing", x=["a"], y="y"))


def test_a_broken_shard_is_named(tmp_path: Path) -> None:
    whole = write_tar(tmp_path / "a.tar", {"0.png": picture(0), "0.cls": b"1"})
    cut = tmp_path / "cut.tar"
    cut.write_bytes(whole.read_bytes()[:600])
    fields: dict[str, Any] = {"x": "png", "y": "cls", "image_size": 8}
    with pytest.raises(OcarError, match=r"cut\.tar"):
        list(TarReader(cut, **fields))
    with pytest.raises(DataError, match=r"no field 'jpg'\. It has png, cls"):
        list(TarReader(whole, x="jpg", y="cls"))


@pytest.mark.parametrize("place", [{"row": -1}, {"other": 3}, {"row": 1.5}, {}])
def test_a_wrong_place_is_refused(place: Any) -> None:
    with pytest.raises(CheckpointError, match="Must be row, 0 or more"):
        list(TableReader(rows(), **NUMBERS).read(place))


@pytest.mark.parametrize(
    "state",
    [
        {"position": 3, "task": 9},
        {"position": 3, "place.row": 3},
        {"position": 3, "task": 1, "place.row": 3},
        {"task": 0, "place.row": 3},
    ],
)
def test_a_state_of_other_tasks_is_refused(state: Any) -> None:
    stream = IterableStream(TableReader(rows(), **NUMBERS), list(TableReader(rows(), **NUMBERS)))
    with pytest.raises(CheckpointError, match="Invalid stream"):
        stream.load_state_dict(state)


def test_parquet_needs_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("polars", "pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError, match="pip install polars"):
        ParquetReader("a", x="x", y="y")


# --- what is no pair, and what waits -------------------------------------------------------------

TENSOR, LABELS = torch.zeros(2, 3), torch.tensor([0, 1])
NO_PAIR: dict[str, tuple[Any, str]] = {
    "one tensor of two rows": (TENSOR, "is a Tensor. Must be a pair (x, y)"),
    "triple": ((TENSOR, LABELS, LABELS), "is a tuple of 3 parts. Must be a pair (x, y)"),
    "one in a list": ([TENSOR], "is a list of 1 parts. Must be a pair (x, y)"),
    "string": ("ab", "is a str. Must be a pair (x, y)"),
    "dictionary": ({"x": TENSOR, "y": LABELS}, "is a dict. Must be a pair (x, y)"),
    "labels of text": ((TENSOR, ["a", "b"]), ", its y: too many dimensions 'str'. Must be a pair"),
    "samples of text": ((("a", "b"), LABELS), ", its x: too many dimensions 'str'. Must be a pair"),
    "complex labels": ((TENSOR, LABELS.cfloat()), ", its y: it has torch.complex64. Must be"),
}


@pytest.mark.parametrize("name", NO_PAIR)
@pytest.mark.parametrize("by_reader", [False, True])
def test_what_is_no_pair_is_refused(name: str, by_reader: bool) -> None:
    given, message = NO_PAIR[name]
    batches: Any = [(TENSOR, LABELS), given]
    if by_reader:
        batches = LoaderReader(DataLoader(batches, batch_size=None, collate_fn=lambda batch: batch))
    stream = iter(IterableStream(batches))
    with pytest.raises(InputError) as caught:
        list(stream)
    where, _, rest = str(caught.value).partition(message)
    assert where.strip() in ("Batch 1", "Batch 1 of the loader")
    assert rest.endswith("y of integer labels or floating-point targets.")


def test_labels_are_arrays_of_any_layout_without_a_mask() -> None:
    x, y = np.arange(6.0).reshape(2, 3), np.array([0, 1])
    (batch,) = IterableStream([(x[::-1], y[::-1])])
    assert torch.equal(batch.y, torch.tensor([1, 0]))
    assert torch.equal(as_samples(batch.x), torch.tensor(x[::-1].copy()))
    with pytest.raises(InputError, match="Batch 0: y must have no mask, which would be lost"):
        list(IterableStream([(x, np.ma.masked_array(y, y > 0))]))


def test_other_wrong_arguments_are_refused() -> None:
    with pytest.raises(InputError, match="The validation data of task 1 is a Tensor"):
        IterableStream([], [], validation=[(TENSOR, LABELS), TENSOR])
    with pytest.raises(ConfigError, match=r"Invalid task 1: int\. Must be iterable"):
        IterableStream([], 3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"Invalid loader list. Must be a torch.*DataLoader"):
        LoaderReader([(TENSOR, LABELS)])  # type: ignore[arg-type]


def inverse(row: Any) -> float:
    return 1 / float(row["b"])


def text_or_number(row: Any) -> Any:
    return 1.0 if row["b"] == "2" else row["b"]


WRONG_VALUES: dict[str, tuple[str, dict[str, Any], str]] = {
    "empty": ("", {}, "field 'b' is empty. Must be a number."),
    "text": ("x", {}, "field 'b' is 'x'. Must be a number."),
    "label": ("1.5", {"x": ["a"], "y": "b"}, "field 'b' is '1.5'. Must be an integer from 0 to 2"),
    "no label": ("", {"x": ["a"], "y": "b"}, "field 'b' is empty. Must be an integer from 0 to 2"),
    "no class": ("3", {"x": ["a"], "y": "b", "classes": "12"}, "field 'b' is '3'. Must be one of "),
    "a function": ("0", {"x": inverse}, "a function of the record raised ZeroDivisionError: "),
    "no number": ("q", {"x": text_or_number}, "a function of the record returned 'q'. Must be a "),
}


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_a_wrong_value_is_named_with_its_file_and_line(name: str, tmp_path: Path) -> None:
    value, fields, message = WRONG_VALUES[name]
    paths = [tmp_path / "good.csv", tmp_path / "bad.csv"]
    for path, text in zip(paths, ("a,b\n1,2\n", f"a,b\n1,2\n1,{value}\n"), strict=True):
        path.write_text(text)
    reader = CSVReader(paths, **{"x": ["a", "b"], "y": "a", "batch_size": 1, **fields})
    with pytest.raises(DataError) as caught:
        list(reader)
    assert str(caught.value).startswith(f"{paths[1]}, line 3: {message}")


@pytest.mark.parametrize("name", ["x", "part of x", "y", "class"])
def test_a_null_of_parquet_is_named_with_its_file_and_row(name: str, tmp_path: Path) -> None:
    good = {"a": [1.0, 2.0], "l": [[1, 2], [3, 4]], "y": [0, 1], "c": ["a", "b"]}
    null = {"a": [1.0, None], "l": [[1, 2], [3, None]], "y": [0, None], "c": ["None", None]}
    polars = pytest.importorskip("polars")
    paths = [tmp_path / "good.parquet", tmp_path / "null.parquet"]
    for path, table in zip(paths, (good, null), strict=True):
        polars.DataFrame(table).write_parquet(path)
    field, options = {
        "x": ("a", {"x": ["a"], "y": lambda row: 0}),
        "part of x": ("l", {"x": "l", "y": lambda row: 0}),
        "y": ("y", {"x": lambda row: 0.0, "y": "y"}),
        "class": ("c", {"x": lambda row: 0.0, "y": "c", "classes": ("a", "b", "None")}),
    }[name]
    shown = "is [3, None]" if name == "part of x" else "is empty"
    with pytest.raises(DataError) as caught:
        list(ParquetReader(paths, **options))
    assert str(caught.value).startswith(f"{paths[1]}, row 1: field {field!r} {shown}. Must be ")


def test_a_damaged_shard_does_not_end_early(tmp_path: Path) -> None:
    """tarfile takes a damaged header after the first for the end of the file."""
    samples = {f"{i}.{kind}": data for i in range(4) for kind, data in TWO.items()}
    path = write_tar(tmp_path / "a.tar", samples)
    data = bytearray(path.read_bytes())
    start = data.index(b"2.cls\0")
    data[start + 148 : start + 156] = b"\xff" * 8  # the checksum
    path.write_bytes(data)
    with pytest.raises(DataError, match=rf"a\.tar: at byte {start} is neither a file nor the end"):
        list(TarReader(path, x="txt", y="cls"))


def pickled() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([{}]), allow_pickle=True)
    return file.getvalue()


TWO = {"txt": b"1", "cls": b"0"}
MEMBERS: dict[str, tuple[dict[str, bytes], str]] = {
    "picture": ({"png": b"nonsense"}, "cannot read d/1.png: its 8 bytes are no image"),
    "array": ({"npy": b"\x93NUMPY\x09\x00"}, "cannot read d/1.npy: version (9, 0) of the npy"),
    "pickle": ({"npy": pickled()}, "cannot read d/1.npy: cannot create an OBJECT"),
    "unknown": ({"bin": b"1"}, "cannot read d/1.bin: field 'bin' is not read. Give decoders="),
    "json": ({"json": b"{"}, "cannot read d/1.json: Expecting property name"),
    "label": ({"cls": b"cat"}, "field 'cls' is 'cat'. Must be an integer"),
    "no label": ({"cls": b""}, "field 'cls' is empty. Must be an integer"),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_a_wrong_member_is_named_with_its_shard(name: str, tmp_path: Path) -> None:
    members, message = MEMBERS[name]
    field = next(iter(members))
    whole = write_tar(tmp_path / "0.tar", {"d/0.cls": b"1", "d/0.txt": b"2"})
    wrong = {f"d/1.{key}": value for key, value in {"cls": b"1", **members}.items()}
    bad = write_tar(tmp_path / "1.tar", wrong)

    def sample(record: Any) -> Any:
        return float(record["txt"]) if "txt" in record else record[field]

    with pytest.raises(DataError) as caught:
        list(TarReader([whole, bad], x=sample if field != "cls" else lambda record: 0.0, y="cls"))
    assert str(caught.value).startswith(f"{bad}, sample 'd/1': {message}")


def test_a_shorter_file_than_before_is_refused(tmp_path: Path) -> None:
    stream = IterableStream(CSVReader(write_csv(tmp_path / "a.csv", rows()), **NUMBERS))
    for _ in itertools.islice(stream, 5):
        pass
    again = IterableStream(CSVReader(write_csv(tmp_path / "a.csv", rows()[:20]), **NUMBERS))
    again.load_state_dict(stream.state_dict())
    with pytest.raises(CheckpointError, match=r"Task 0 ends before the place \{'row': 25\}"):
        next(iter(again))


@pytest.mark.parametrize("label", [np.inf, 10**400, np.array([1, 2]), np.nan], ids=range(4))
def test_what_is_no_label_is_named_with_its_row(label: Any) -> None:
    with pytest.raises(DataError, match=r"Row 1: field 'y' is .*\. Must be an integer from 0"):
        list(TableReader([{"x": 1, "y": 0}, {"x": 1, "y": label}], x="x", y="y"))
    with pytest.raises(DataError, match=r"Row 0: field 'x' is .*\. Must be a number"):
        list(TableReader([{"x": 10**400, "y": 0}], x=["x"], y="y"))

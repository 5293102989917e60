"""Spoiled files are refused with the package's own errors, whatever they say; see ``fuzz``."""

from __future__ import annotations

import ast
import gzip
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzz.targets import TARGETS
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import nn

import ocar
from ocar.augment import CropFlip, Normalize
from ocar.config import from_plain
from ocar.datasets.archives import Zip, read_tar
from ocar.datasets.mnist import read_idx
from ocar.datasets.pickles import check_pickle, load_plain
from ocar.errors import CheckpointError, ConfigError, DataError
from ocar.methods.registry import METHODS
from ocar.state import FORMAT, VERSION, load_state, save_state, seal
from ocar_lab.tune.preset import read_preset

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "ocar"
ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join([str(TESTS), str(SOURCE.parent)]),
    "OMP_NUM_THREADS": "1",
}


def fuzz(*args: str, out: Path) -> list[dict[str, Any]]:
    ended = subprocess.run(
        [sys.executable, "-m", "fuzz", *args, "--json", "--out", str(out)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What became of a few inputs for each reader."""
    out = tmp_path_factory.mktemp("failures")
    return {report["target"]: report for report in fuzz("--count", "120", "--seed", "1", out=out)}


@pytest.mark.long
@pytest.mark.parametrize("name", TARGETS)
def test_spoiled_files(reports: dict[str, dict[str, Any]], name: str) -> None:
    report = reports[name]
    assert report["failures"] == []
    assert report["tried"] == report["refused"] + report["accepted"] == 120
    if name.startswith("watch-"):  # the live page lists what is damaged, and goes on
        assert report["refused"] == 0
    else:  # a damaged cache is made again, and a damaged status counts as none
        assert name in ("cache", "run-status") or report["refused"] > 10
    assert report["accepted"] > 0


BAD = """
import os, signal, time
from pathlib import Path
import torch
import fuzz.targets
from ocar.errors import OcarError

count = 0

def read(data):
    global count
    count += 1
    match count:
        case 3: raise OcarError("fine")
        case 4: raise ZeroDivisionError
        case 5: bytearray(1 << 26)
        case 6: Path("/tmp/outside-of-it").open("r+b")
        case 7: os.system("true")
        case 8: time.sleep(60)
        case 9: bytearray(1 << 40)
        case 10: os.rename("/tmp/outside-of-it", "/tmp/elsewhere")
        case 11: torch.ones(1 << 25)
        case 12:
            try:
                raise MemoryError
            except MemoryError as error:
                raise OcarError("damaged") from error
        case 13: os.kill(os.getpid(), signal.SIGSEGV)

fuzz.targets.TARGETS.clear()
fuzz.targets.TARGETS["bad"] = lambda folder: fuzz.targets.Target(read, [b"some bytes"], [])
fuzz.guard.SECONDS = 4.0
import runpy
runpy.run_module("fuzz", run_name="__main__")
"""


@pytest.mark.long
def test_the_harness_sees_what_must_not_be(tmp_path: Path) -> None:
    """Each of these would be a failure of a reader; and a refusal is none."""
    code = "import fuzz.guard\n" + BAD
    ended = subprocess.run(
        [sys.executable, "-c", code, "--count", "13", "--json", "--out", str(tmp_path)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    report = json.loads(ended.stdout)
    said = {failure["number"]: failure["why"] for failure in report["failures"]}
    # The seed was the first call; after the crash a new process begins to count again.
    assert said[2].startswith("ZeroDivisionError")
    assert said[3].startswith("it took 67,")
    assert "open outside of its folder" in said[4]
    assert said[5].startswith("os.system")
    assert said[6] == "it took more than 4.0 s"
    assert said[7].startswith("MemoryError")
    assert "os.rename outside of its folder" in said[8]
    assert "bytes for" in said[9]  # which Python's own count knows nothing of
    assert said[10] == "no memory: damaged"
    assert said[11] == "signal SIGSEGV"
    assert sorted(said) == list(range(2, 12))
    assert (report["tried"], report["refused"], report["accepted"]) == (13, 1, 2)
    assert all(Path(failure["path"]).stat().st_size for failure in report["failures"])


# --- documents ---

documents = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["Normalize", "CropFlip", "er", "ocar", "split-digits", "plain"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)


@st.composite
def filled(draw: st.DrawFn, names: tuple[str, ...]) -> dict[str, Any]:
    """Documents with the right names and any values."""
    chosen = draw(st.lists(st.sampled_from(names), unique=True, max_size=len(names)))
    return {name: draw(documents) for name in chosen}


@settings(deadline=None, derandomize=True, max_examples=150)
@given(data=st.data(), method=st.sampled_from(sorted(METHODS)))
def test_any_document_gives_settings_or_a_config_error(data: st.DataObject, method: str) -> None:
    cls = METHODS[method].settings
    names = tuple(cls.__dataclass_fields__)
    document = data.draw(filled(names) | documents)
    try:
        made = from_plain(cls, document, kinds=(Normalize, CropFlip))
    except ConfigError:
        return
    assert isinstance(made, cls)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(settings_=filled(("lr", "memory", "classes", "normalize", "tau_step")), other=documents)
def test_any_preset_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, settings_: dict[str, Any], other: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / "preset.json"
    document = {"format": "ocar-preset", "version": 1, "benchmark": "split-digits"}
    for rest in ({"settings": settings_}, {"settings": {"lr": 0.1}, "transform": other}):
        path.write_text(json.dumps(document | {"method": "ocar", "found": other} | rest))
        with suppress(ConfigError):
            assert read_preset(path).method == "ocar"


def write_checkpoint(path: Path, values: str) -> None:
    """A checkpoint that is whole, with any text for its values."""
    header = {"format": FORMAT, "version": str(VERSION), "values": values, "checksum": "0" * 64}
    path.write_bytes(seal(save({"a": torch.zeros(2)}, metadata=header)))


@settings(deadline=None, derandomize=True, max_examples=100)
@given(values=documents)
def test_any_values_in_a_checkpoint_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, values: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / "checkpoint"
    write_checkpoint(path, json.dumps(values))
    if isinstance(values, dict):
        assert load_state(path)[1].keys() == values.keys()
    else:
        with pytest.raises(CheckpointError, match="its values are a"):
            load_state(path)
    with pytest.raises(CheckpointError):
        ocar.load(path, nn.Linear(2, 2))


DEEP = "[" * 100_000


def test_depth_and_digits_are_no_crash(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for text in (DEEP, "9" * 5000):
        path.write_text(text)
        with pytest.raises(ConfigError, match="cannot be read"):
            read_preset(path)
        write_checkpoint(path, text)
        with pytest.raises(CheckpointError, match="has a damaged header"):
            load_state(path)


# --- sizes that a file only claims ---


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 2))


def saved(tmp_path: Path, **changed: Any) -> Path:
    """The checkpoint of a learner, with other settings or tensors."""
    learner = ocar.ER(net(), lr=0.1, memory=5)
    learner.learn(torch.eye(4), torch.tensor([0, 1, 0, 1]))
    tensors, values = learner.state()
    tensors |= {name: value for name, value in changed.items() if isinstance(value, torch.Tensor)}
    values["settings"] |= {k: v for k, v in changed.items() if k in values["settings"]}
    values |= {k: v for k, v in changed.items() if k in values}
    path = tmp_path / f"file-{len(list(tmp_path.iterdir()))}"  # none that could be used instead
    save_state(path, tensors, values)
    return path


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"memory": 10**9}, r"says memory=1000000000 and has at most 5 slots"),
        ({"memory": 10**12, "memory.columns.y": torch.zeros(5, 0)}, r"has at most 0 slots"),
        (
            {"model.0.weight": torch.zeros(2000, 0)},
            r"another model: '0.weight' has shape \(2000, 0\)",
        ),
        (
            {"model.0.weight": torch.zeros(2**40, 0)},
            r"is not a whole checkpoint: 'model.0.weight' has",
        ),
        ({"item": [[4], "torch.save"]}, r"samples of unknown type 'torch.save'"),
        ({"item": [[4], "torch.nothing"]}, r"samples of unknown type 'torch.nothing'"),
        ({"item": 3}, "does not describe a learner"),
        ({"generator.augment": torch.zeros(3)}, "does not describe a learner"),
        ({"batches": "many"}, "does not describe a learner"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_checkpoint_cannot_ask_for_more_than_it_holds(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    ocar.load(saved(tmp_path), net())
    with pytest.raises(CheckpointError, match=message):
        ocar.load(saved(tmp_path, **changed), net())


def test_a_wide_projection_must_be_in_the_file(tmp_path: Path) -> None:
    learner = ocar.make_learner("scr", net(), lr=0.1, memory=5, projection=8)
    tensors, values = learner.state()
    save_state(tmp_path / "file", tensors, values)
    ocar.load(tmp_path / "file", net())
    values["settings"]["projection"] = 10**9
    save_state(tmp_path / "wide", tensors, values)
    with pytest.raises(CheckpointError, match="says projection=1000000000 and has at most 8"):
        ocar.load(tmp_path / "wide", net())


def test_impossible_shapes_of_idx_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for shape in ([1] * 100, [0, *[2**32 - 1] * 4]):
        header = bytes((0, 0, 8, len(shape))) + struct.pack(f">{len(shape)}I", *shape)
        path.write_bytes(header + b"\0" * (0 not in shape))
        with pytest.raises(DataError, match="has the impossible shape"):
            read_idx(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x80\x02}r\xff\xff\xff\x7f.", "in place 2147483647 of its memo"),
        (b"\x80\x02}p999999999999\n.", "in place 999999999999 of its memo"),
        (b"\x80\x03B\xff\xff\xff\x7fa.", "a text in it is longer than the file"),
        (b"\x80\x02T\xff\xff\xff\xff.", "a text in it is longer than the file"),
        (b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b".", "a text in it is longer"),
        (b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b"N.", "a part of it is longer"),
        (b"\x80\x02}" + b")" + b"\x85" * 2000 + b"Ns.", "more than 1000 tuples"),
        (b"\x80\x02}" + b")" + b"2\x86" * 60 + b"Ns.", "uses a value twice"),
        (b"\x80\x02})" + b"q\1h\1\x86" * 60 + b"Ns.", "uses a value twice that is no text"),
        (b"\x80\x02}U\1aq\1)q\1h\1\x86Ns.", "uses a value twice that is no text"),
        (b"\x80\x04}\x8c\1aq\1)\x94h\1\x86Ns.", "uses a value twice that is no text"),
    ],
    ids=["memo", "memo-text", "bytes", "negative", "bytes8", "frame", "stack", "dup", "get",
         "put-again", "memoize"],
)  # fmt: skip
def test_pickles_that_would_take_all_memory_or_time(content: bytes, message: str) -> None:
    with pytest.raises(pickle.UnpicklingError, match=message):
        load_plain(io.BytesIO(content))


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_the_check_of_pickles_passes_over_what_is_fine(protocol: int) -> None:
    one = "a text"
    value = {one: [one, 1, -5, 10**30, 1.5, None, True, b"x" * 300, (), (1, 2), "é" * 300, 70_000]}
    content = pickle.dumps(value, protocol)
    if protocol < 4:  # later ones do not say where in the memo a text is
        check_pickle(content)
    else:
        with pytest.raises(pickle.UnpicklingError, match="no text"):
            check_pickle(content)
    del value[one][0]
    check_pickle(pickle.dumps(value, protocol))


def test_a_sparse_file_in_a_tar_is_refused(tmp_path: Path) -> None:
    """It may stand for any number of zeros without a byte of its own."""
    info = tarfile.TarInfo("folder/train")
    info.type = tarfile.GNUTYPE_SPARSE
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[386:410] = b"%011o\0" % 0 + b"%011o\0" % 0
    block[483:495] = b"%011o\0" % 2**32
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    (tmp_path / "file").write_bytes(gzip.compress(bytes(block) + bytes(1024)))
    with pytest.raises(DataError, match="'folder/train' has holes"):
        read_tar(tmp_path / "file", {"folder/train"})


def test_an_entry_of_a_zip_cannot_claim_more_than_the_archive_has(tmp_path: Path) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("top/a", b"content")
    good = file.getvalue()
    path = tmp_path / "file"
    for offset, number, message in ((20, 2**31, "claims more bytes"), (24, 3, "CRC|bytes|size")):
        data = bytearray(good)
        struct.pack_into("<I", data, data.find(b"PK\1\2") + offset, number)
        path.write_bytes(data)
        with Zip(path, top="top") as tree, pytest.raises(DataError, match=message):
            tree.read("a")


# --- nothing that runs code ---

_CODE = {
    "pickle.load", "pickle.loads", "pickle.Unpickler", "torch.load", "eval", "exec", "compile",
    "yaml.load", "yaml.unsafe_load", "marshal.load", "marshal.loads", "shelve.open", "dill.load",
    "cloudpickle.load", "cloudpickle.loads", "joblib.load", "os.system", "__import__",
}  # fmt: skip


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """What is named in a module that could run what a file says, by its full name."""
    names = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        if isinstance(node, ast.ImportFrom)
        else alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            first, _, rest = ast.unparse(node).partition(".")
            full = names.get(first, first) + (f".{rest}" if rest else "")
            if full in _CODE:
                yield full, node
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in (
            "load",
            "memmap",
            "read_array",
        ):
            for keyword in node.keywords:
                constant = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                if keyword.arg == "allow_pickle" and not constant:
                    yield "allow_pickle", node


def test_only_the_restricted_reader_loads_pickles() -> None:
    found = {
        (str(path.relative_to(SOURCE)), name)
        for path in SOURCE.rglob("*.py")
        for name, _ in calls(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == {("datasets/pickles.py", "pickle.Unpickler")}


@pytest.mark.parametrize(
    "code",
    [
        "import pickle\npickle.load(f)",
        "from pickle import loads as l\nl(b)",
        "import torch as t\nt.load(p)",
        "import numpy as np\nnp.load(p, allow_pickle=True)",
        "import numpy as np\nnp.load(p, allow_pickle=x)",
        "eval(s)",
        "f = exec",
        "import yaml\nyaml.load(s)",
    ],
)
def test_that_look_finds_what_it_is_for(code: str) -> None:
    assert list(calls(ast.parse(code)))
    assert not list(calls(ast.parse("model.eval()\nnp.load(p, allow_pickle=False)")))

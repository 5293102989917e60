"""Checkpoints are whole or refused; configurations survive the way to plain values and back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import save, save_file

from ocar.augment import CropFlip, Normalize
from ocar.config import from_plain, to_plain
from ocar.errors import CheckpointError, ConfigError
from ocar.methods.er import ERSettings
from ocar.methods.ocar import OCARSettings
from ocar.state import FORMAT, VERSION, check_names, load_state, save_state, seal

TENSORS = {"a": torch.arange(6).view(2, 3), "b.c": torch.tensor(1.5, dtype=torch.float64)}
VALUES = {"text": "ü", "list": [1, None, 2.5], "nested": {"x": True}}


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    save_state(tmp_path / "folder" / "state", TENSORS, VALUES)
    tensors, values = load_state(tmp_path / "folder" / "state")
    assert values == VALUES
    assert tensors.keys() == TENSORS.keys()
    assert all(
        torch.equal(tensors[k], v) and tensors[k].dtype == v.dtype for k, v in TENSORS.items()
    )
    assert [p.name for p in (tmp_path / "folder").iterdir()] == ["state"]  # nothing left over


def test_shared_and_transposed_tensors_are_saved_whole(tmp_path: Path) -> None:
    base = torch.arange(6).view(2, 3)
    save_state(tmp_path / "s", {"one": base, "two": base, "turned": base.T}, {})
    tensors, _ = load_state(tmp_path / "s")
    assert torch.equal(tensors["turned"], base.T)
    assert torch.equal(tensors["two"], base)


def test_a_failed_save_keeps_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "state"
    save_state(path, TENSORS, VALUES)
    with pytest.raises(TypeError):
        save_state(path, TENSORS, {"function": print})
    assert load_state(path)[1] == VALUES
    assert [p.name for p in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize("keep", [0, 4, 60, -1])
def test_a_file_that_is_cut_short_is_refused(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "state"
    save_state(path, TENSORS, VALUES)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match="is not a whole checkpoint"):
        load_state(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="There is no checkpoint"):
        load_state(tmp_path / "nothing")
    save_file(TENSORS, tmp_path / "foreign")
    with pytest.raises(CheckpointError, match="not one of ocar's"):
        load_state(tmp_path / "foreign")
    newer = {"format": "ocar-checkpoint", "version": "99", "values": json.dumps({})}
    save_file(TENSORS, tmp_path / "newer", metadata=newer)
    with pytest.raises(CheckpointError, match=r"version '99'; this ocar reads 3"):
        load_state(tmp_path / "newer")


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.complex64])
def test_numbers_of_a_strange_type_are_refused(tmp_path: Path, kind: torch.dtype) -> None:
    strange = {"weight": torch.zeros(2, dtype=kind)}
    with pytest.raises(CheckpointError, match=r"'weight'.*Must be one of bfloat16, bool"):
        save_state(tmp_path / "mine", strange, {})
    assert not (tmp_path / "mine").exists()
    header = {"format": FORMAT, "version": str(VERSION), "values": "{}", "checksum": "0" * 64}
    (tmp_path / "theirs").write_bytes(seal(save(strange, metadata=header)))
    with pytest.raises(CheckpointError, match=rf"'weight'.*of type {kind}"):
        load_state(tmp_path / "theirs")


def test_names_and_shapes_are_checked() -> None:
    with pytest.raises(CheckpointError, match=r"another model: missing \['b.c'\], unknown \['d'\]"):
        check_names("model", {"a": TENSORS["a"], "d": TENSORS["a"]}, TENSORS)
    with pytest.raises(CheckpointError, match=r"'a' has shape \(6,\), here \(2, 3\)"):
        check_names("model", {**TENSORS, "a": torch.arange(6)}, TENSORS)


@pytest.mark.parametrize(
    "settings",
    [
        ERSettings(lr=0.1, classes=(3, 1)),
        ERSettings(lr=0.1, normalize=Normalize((0.5,), (0.2,)), augment=CropFlip(padding=2)),
        OCARSettings(tau_step=1e-8, ema=0.1, n_new=5, fisher="top(3)"),
    ],
)
def test_settings_survive_json(settings: object) -> None:
    plain = json.loads(json.dumps(to_plain(settings)))
    assert from_plain(type(settings), plain, kinds=(Normalize, CropFlip)) == settings


def test_a_plain_form_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"has no setting rate\. Did you mean 'lr'\? It has lr"):
        from_plain(ERSettings, {"rate": 1.0})
    with pytest.raises(ConfigError, match=r"Invalid augment: kind 'os.system'"):
        from_plain(ERSettings, {"lr": 0.1, "augment": {"kind": "os.system"}}, kinds=(CropFlip,))
    with pytest.raises(ConfigError, match=r"Invalid lr=-1\. Must be larger than 0"):
        from_plain(ERSettings, {"lr": -1})


def test_a_value_without_a_plain_form_is_named() -> None:
    @dataclass(frozen=True)
    class Holder:
        function: object

    assert to_plain(Holder(print)) == {"function": {"kind": "custom", "repr": repr(print)}}

"""A checkpoint altered in any byte, cut, foreign or with NaN is refused; the one before is used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save, save_file
from stored_runs import assert_same_run, small
from torch import nn

import ocar
import ocar_lab
from ocar.errors import CheckpointError, CheckpointWarning, NumericalError
from ocar.state import OLDER, VERSION, load_state, previous, save_state, seal
from ocar_lab.runs.folder import CHECKPOINT

TENSORS = {"a": torch.arange(6).view(2, 3), "b.c": torch.tensor([1.5, -2.0], dtype=torch.float64)}
VALUES = {"text": "ü", "list": [1, None, 2.5]}


def net(width: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2))


def learner(batches: int = 2, **values: Any) -> ocar.Learner:
    made = ocar.OCAR(net(), lr=0.01, tau_step=1e-6, ema=0.2, memory=6, **values)
    for _ in range(batches):
        made.learn(torch.eye(4), torch.tensor([0, 1, 0, 1]))
    return made


def write(path: Path, data: bytes | bytearray) -> None:
    """A new file: some file systems wait for the disk where a file is cut and written again."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def refused(path: Path) -> bool:
    try:
        load_state(path)
    except CheckpointError:
        return True
    return False


def test_every_byte_counts(tmp_path: Path) -> None:
    path = tmp_path / "state"
    save_state(path, TENSORS, VALUES)
    data = path.read_bytes()
    for place in range(len(data)):
        altered = bytearray(data)
        altered[place] ^= 1 << place % 8
        write(path, altered)
        assert refused(path), place
    write(path, data)
    assert load_state(path)[1] == VALUES


def test_every_length_counts(tmp_path: Path) -> None:
    path = tmp_path / "state"
    save_state(path, TENSORS, VALUES)
    data = path.read_bytes()
    for length in range(len(data)):
        write(path, data[:length])
        assert refused(path), length
    for more in (b"\0", b" ", data):
        write(path, data + more)
        assert refused(path)


@pytest.mark.long
def test_every_other_byte_in_every_place_of_a_small_file(tmp_path: Path) -> None:
    path = tmp_path / "state"
    save_state(path, TENSORS, VALUES)
    data = path.read_bytes()
    for place in range(len(data)):
        for change in range(1, 256):
            altered = bytearray(data)
            altered[place] ^= change
            write(path, altered)
            assert refused(path), (place, change)


@pytest.mark.long
def test_every_byte_and_every_length_of_a_learner(tmp_path: Path) -> None:
    path = tmp_path / "state"
    learner().save(path)
    data = path.read_bytes()
    for place in range(len(data)):
        altered = bytearray(data)
        altered[place] ^= 1 << place % 8
        write(path, altered)
        assert refused(path), place
        write(path, data[:place])
        assert refused(path), place


def test_nan_anywhere_is_neither_saved_nor_loaded(tmp_path: Path) -> None:
    path = tmp_path / "state"
    tensors, values = learner(prediction="average").state()
    save_state(path, tensors, values)
    good = path.read_bytes()
    names = [name for name, t in tensors.items() if t.is_floating_point() and t.numel()]
    assert {name.split(".")[0] for name in names} >= {"model", "memory", "transform", "slow"}
    header = {"format": "ocar-checkpoint", "version": str(VERSION), "values": json.dumps(values)}
    for name in names:
        for bad in (float("nan"), float("inf")):
            spoiled = {n: t.clone().contiguous() for n, t in tensors.items()}
            spoiled[name].view(-1)[-1] = bad
            with pytest.raises(NumericalError, match=f"was not written: {name} would hold NaN"):
                save_state(path, spoiled, values)
            assert path.read_bytes() == good
            data = seal(save(spoiled, metadata={**header, "checksum": "0" * 64}))
            (tmp_path / "spoiled").write_bytes(data)
            with pytest.raises(CheckpointError, match=f"holds NaN or Inf in {name}"):
                ocar.load(tmp_path / "spoiled", net())
    assert not previous(path).exists()


def test_files_of_version_0_1_and_files_without_a_checksum_are_refused(tmp_path: Path) -> None:
    tensors, values = learner().state()
    own = {name: t.contiguous() for name, t in tensors.items()}
    header = {"format": "ocar-checkpoint", "values": json.dumps(values)}
    for version in OLDER:
        save_file(own, tmp_path / "old", metadata={**header, "version": version})
        with pytest.raises(CheckpointError, match=r"was saved by ocar 0\.1.* Use ocar 0\.1 for it"):
            ocar.load(tmp_path / "old", net())
    save_file(own, tmp_path / "bare", metadata={**header, "version": str(VERSION)})
    with pytest.raises(CheckpointError, match="it has no checksum"):
        ocar.load(tmp_path / "bare", net())


def spoil(path: Path, how: str) -> str:
    """Make a checkpoint unfit; returns the reason to expect."""
    data = path.read_bytes()
    if how == "cut":
        write(path, data[:-1])
        return "is not a whole checkpoint"
    if how == "altered":
        write(path, data[:-1] + bytes([data[-1] ^ 4]))
        return "has been altered since it was saved"
    if how == "newer":
        ours, newer = (f'"version":"{number}"'.encode() for number in (VERSION, VERSION + 1))
        write(path, seal(data.replace(ours, newer)))
        return f"has checkpoint version '{VERSION + 1}'"
    if how == "other model":
        made = ocar.ER(net(5), lr=0.1, memory=6)
        made.save(path.with_name("other"))
        write(path, path.with_name("other").read_bytes())
        return "is of another model"
    path.unlink()
    return "There is no checkpoint"


@pytest.mark.parametrize("how", ["cut", "altered", "newer", "other model", "gone"])
def test_the_one_before_is_used_and_that_is_said(tmp_path: Path, how: str) -> None:
    path, first = tmp_path / "state", learner(1)
    first.save(path)
    before = path.read_bytes()
    first.learn(torch.eye(4), torch.tensor([0, 1, 0, 1]))
    first.save(path)
    assert previous(path).read_bytes() == before
    reason = spoil(path, how)
    with pytest.warns(CheckpointWarning, match=f"{reason}.*was used: what was learned") as said:
        restored = ocar.load(path, net())
    assert said[0].filename == __file__
    assert restored.batches == 1
    previous(path).write_bytes(b"")
    with pytest.raises(
        CheckpointError, match=f"{reason}.*cannot be read either: .*not a whole checkpoint"
    ):
        ocar.load(path, net())


def test_what_is_wrong_with_both_is_said_once(tmp_path: Path) -> None:
    made = learner(1, normalize=lambda x: x.float())
    for _ in range(2):
        made.save(tmp_path / "state")
    with pytest.raises(CheckpointError, match=r"normalize=\.\.\.\)\.$"):
        ocar.load(tmp_path / "state", net())
    assert ocar.load(tmp_path / "state", net(), normalize=lambda x: x.float()).batches == 1


def test_the_good_one_outlives_the_damaged_one(tmp_path: Path) -> None:
    path, made = tmp_path / "state", learner(1)
    for _ in range(2):
        made.save(path)
    spoil(path, "altered")
    with pytest.warns(CheckpointWarning):
        restored = ocar.load(path, net())
    restored.save(path)
    assert ocar.load(path, net()).batches == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["state", "state.previous"]


@pytest.mark.parametrize("how", ["cut", "altered"])
def test_a_run_goes_on_from_the_checkpoint_before(tmp_path: Path, how: str) -> None:
    config = small(checkpoint_every=5, max_batches=30, probe=False)
    whole = ocar_lab.run(config, out=tmp_path / "whole")
    left = iter([False] * 17)
    path = ocar_lab.run(config, out=tmp_path / "part", stop=lambda: next(left, True)).path
    newest = load_state(path / CHECKPOINT)[1]["position"]
    before = load_state(previous(path / CHECKPOINT))[1]["position"]
    assert before < newest
    spoil(path / CHECKPOINT, how)
    with pytest.warns(CheckpointWarning, match="was used"):
        run = ocar_lab.run(config, out=tmp_path / "part")
    assert run.status["sessions"][-1]["batch"] == before
    assert_same_run(whole.path, run.path)

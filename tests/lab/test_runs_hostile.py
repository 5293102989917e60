"""Links, FIFOs and foreign or damaged files in a run folder, and a folder that disappears."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stored_runs import assert_same_run, small

import ocar_lab
from ocar.errors import CheckpointError, RunError
from ocar.state import load_state, previous, save_state
from ocar_lab.cli import main
from ocar_lab.experiment import RunConfig
from ocar_lab.experiment.session import Session
from ocar_lab.runs import keep, read_run
from ocar_lab.runs.folder import CHECKPOINT, CONFIG, METRICS, RUN, STATUS

pytestmark = pytest.mark.timeout(120)  # a reader of a FIFO would wait for ever

Captured = pytest.CaptureFixture[str]

FILES = (".lock", CONFIG, METRICS, STATUS, CHECKPOINT, f"{CHECKPOINT}.previous")
OPENED = (".lock", METRICS)
"""Files that are opened to write; the others are replaced."""

COMMAND = [
    "run",
    "split-digits",
    "er",
    "--max-batches",
    "4",
    "--no-probe",
    "--device",
    "cpu",
    "--threads",
    "1",
    "--out",
]


def short(**values: Any) -> RunConfig:
    return small(**{"max_tasks": None, "max_batches": 4, "probe": False, **values})


def begun(out: Path, config: RunConfig) -> Path:
    """The folder of a run that was stopped after a batch and has two checkpoints."""
    asked = iter([False, False, True])
    return ocar_lab.run(config, out=out, stop=lambda: next(asked, True)).path


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = begun(tmp_path_factory.mktemp("stopped"), short(checkpoint_every=1))
    assert previous(path / CHECKPOINT).exists()
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ocar_lab.run(short(checkpoint_every=1), out=tmp_path_factory.mktemp("whole")).path


@pytest.fixture
def folder(tmp_path: Path, stopped: Path) -> Path:
    """A copy of the run that was stopped, where its configuration finds it."""
    return Path(shutil.copytree(stopped, tmp_path / "runs" / short().folder()))


def resume(folder: Path) -> Path:
    return ocar_lab.run(short(checkpoint_every=1), out=folder.parents[3]).path


# --- links ---


def make_link(path: Path, outside: Path, kind: str) -> None:
    """Put a file elsewhere, and a link to it in its place."""
    path.replace(outside)
    path.symlink_to(outside) if kind == "symbolic" else path.hardlink_to(outside)


@pytest.mark.parametrize("name", OPENED)
@pytest.mark.parametrize("kind", ["symbolic", "hard"])
def test_a_link_is_not_written_through(folder: Path, tmp_path: Path, name: str, kind: str) -> None:
    outside = tmp_path / "outside"
    make_link(folder / name, outside, kind)
    content = outside.read_bytes()
    with pytest.raises(RunError, match=f"{name} cannot be written: it (is a link|has a second)"):
        resume(folder)
    assert outside.read_bytes() == content


@pytest.mark.parametrize("kind", ["symbolic", "hard"])
def test_a_link_is_replaced(folder: Path, whole: Path, tmp_path: Path, kind: str) -> None:
    names = [name for name in FILES if name not in OPENED]
    for name in names:
        make_link(folder / name, tmp_path / name, kind)
    before = [(tmp_path / name).read_bytes() for name in names]
    trap = folder / f".{STATUS}.{os.getpid()}.partial"
    trap.symlink_to(tmp_path / CONFIG)
    assert_same_run(resume(folder), whole)
    assert [(tmp_path / name).read_bytes() for name in names] == before
    assert not (folder / STATUS).is_symlink()


def test_folders_may_be_links(folder: Path, whole: Path, tmp_path: Path) -> None:
    elsewhere = folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(elsewhere)
    assert_same_run(resume(folder), whole)
    assert folder.is_symlink()


def test_a_study_is_not_written_through_links(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    from ocar_lab.tune import Study, TuneConfig

    outside = tmp_path / "outside"
    outside.write_bytes(b"precious, without a line break")
    config = TuneConfig(benchmark="split-digits", method="er", device="cpu")
    for name in (".lock", "journal.log"):
        study = tmp_path / name.strip(".")
        study.mkdir()
        (study / name).symlink_to(outside)
        with pytest.raises(RunError, match=f"{name} cannot be written: it is a link"):
            Study(config, study).__enter__()
        (study / name).unlink()
        os.mkfifo(study / name)
        with pytest.raises(RunError, match=f"{name} cannot be written: it is no regular"):
            Study(config, study).__enter__()
    assert outside.read_bytes() == b"precious, without a line break"


# --- FIFOs ---


@pytest.mark.parametrize("name", FILES)
def test_a_fifo_does_not_hang_a_run(folder: Path, whole: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    if name in (STATUS, CHECKPOINT, f"{CHECKPOINT}.previous"):
        if name == CHECKPOINT:
            with pytest.warns(UserWarning, match="The checkpoint before it"):
                assert_same_run(resume(folder), whole)
        else:
            assert_same_run(resume(folder), whole)
    else:
        with pytest.raises(RunError, match="no regular file"):
            resume(folder)


def test_a_fifo_does_not_hide_other_runs(folder: Path, whole: Path, capsys: Captured) -> None:
    shutil.copytree(whole, folder.with_name("whole"))
    for name in (METRICS, CONFIG):
        (folder / name).unlink()
        os.mkfifo(folder / name)
        assert main(["show", str(folder.parents[3])]) == 1
        captured = capsys.readouterr()
        assert captured.err.startswith(f"ocar: {folder / name} cannot be read: it is no regular")
        assert "er (max_batches=4)" in captured.out
        (folder / name).unlink()


# --- files of another run ---

OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "seed": ({"seed": 1}, "seed is 1 there and 0 here"),
    "rate": ({"settings": {"lr": 0.5}}, "hash is"),
    "method": ({"method": "er-ace"}, "label is er-ace there and er here"),
    "stream": ({"blurry": 0.5}, "hash is"),
    "benchmark": ({}, "benchmark is split-mnist there and split-digits here"),
}


def copy_in(source: Path, target: Path) -> Path:
    target.mkdir(parents=True)
    for name in (CHECKPOINT, METRICS):
        shutil.copy(source / name, target)
    return target


@pytest.mark.parametrize("other", OTHERS)
def test_the_checkpoint_of_another_run_is_refused(tmp_path: Path, other: str) -> None:
    values, message = OTHERS[other]
    foreign = begun(tmp_path / "other", short(**values))
    if other == "benchmark":  # the only one that needs no files
        tensors, saved = load_state(foreign / CHECKPOINT)
        saved[RUN]["benchmark"] = "split-mnist"
        save_state(foreign / CHECKPOINT, tensors, saved)
    target = copy_in(foreign, tmp_path / "runs" / short().folder())
    before = (target / METRICS).read_bytes()
    with pytest.raises(RunError, match=f"{CHECKPOINT} is of another run: .*{message}"):
        resume(target)
    assert (target / METRICS).read_bytes() == before


def without_name(folder: Path) -> None:
    """Make the checkpoint one of an earlier version, which did not name its run."""
    tensors, values = load_state(folder / CHECKPOINT)
    assert values.pop(RUN)["label"]
    previous(folder / CHECKPOINT).unlink(missing_ok=True)
    save_state(folder / CHECKPOINT, tensors, values)
    previous(folder / CHECKPOINT).unlink(missing_ok=True)


@pytest.mark.parametrize("other", ["seed", "rate", "method"])
def test_an_older_checkpoint_names_its_learner(tmp_path: Path, other: str) -> None:
    foreign = begun(tmp_path / "other", short(**OTHERS[other][0]))
    without_name(foreign)
    target = copy_in(foreign, tmp_path / "runs" / short().folder())
    wanted = {"seed": "seed is 1", "rate": "lr is 0.5", "method": "method is er-ace"}[other]
    with pytest.raises(CheckpointError, match=f"checkpoint of another learner: .*{wanted} there"):
        resume(target)


def test_an_older_checkpoint_of_the_run_goes_on(folder: Path, whole: Path) -> None:
    without_name(folder)
    assert_same_run(resume(folder), whole)


def test_the_result_of_another_run_is_no_result(
    tmp_path: Path, whole: Path, capsys: Captured
) -> None:
    target = copy_in(whole, tmp_path / "runs" / short(seed=3).folder())
    assert main([*COMMAND, str(tmp_path / "runs"), "--seeds", "3"]) == 1
    assert "metrics.jsonl is of another run: seed is 0 there and 3 here" in capsys.readouterr().err
    with pytest.raises(RunError, match="of another run"):
        read_run(target)


def test_an_older_result_is_read(tmp_path: Path, whole: Path) -> None:
    copy = Path(shutil.copytree(whole, tmp_path / "copy"))
    *lines, last = (copy / METRICS).read_bytes().splitlines(keepends=True)
    result = json.loads(last)
    assert result.pop(RUN) == {
        "benchmark": "split-digits", "label": "er", "hash": read_run(whole).hash, "seed": 0
    }  # fmt: skip
    (copy / METRICS).write_bytes(b"".join([*lines, json.dumps(result).encode(), b"\n"]))
    assert read_run(copy).summary == read_run(whole).summary


def test_a_session_of_ones_own_refuses_another_learner(tmp_path: Path) -> None:
    """Without a configuration too; a function of one's own is not compared."""
    import torch

    import ocar
    from ocar.streams import ArrayStream, TaskArrays
    from ocar_lab.runs import RunFolder

    def session(folder: RunFolder, lr: float) -> Session:
        x, y = torch.randn(40, 4), torch.arange(40) % 2
        task = TaskArrays(name="t", x_train=x, y_train=y, x_test=x, y_test=y)
        net = torch.nn.Sequential(torch.nn.Linear(4, 2))
        learner = ocar.ER(net, lr=lr, memory=5, normalize=lambda x: x)
        return Session(folder, learner=learner, stream=ArrayStream([task], batch_size=10))

    with RunFolder(tmp_path) as folder:
        list(session(folder, 0.1).events(lambda: True))
    with RunFolder(tmp_path) as folder:
        assert session(folder, 0.1).position > 0
    with (
        RunFolder(tmp_path) as folder,
        pytest.raises(CheckpointError, match=r"lr is 0.1 there and"),
    ):
        session(folder, 0.2)


# --- a damaged status ---

DAMAGED: tuple[Any, ...] = (
    *(b"", b"{", b"\xff\xfe", b"[]", b"[" * 100_000),
    *({"sessions": 5}, {"sessions": [3]}, {"state": []}, {"pid": "x"}, {"pid": 2**70}),
    {"sessions": [{"batch": 0, "device": 5}]},
    {"sessions": [{"batch": 0, "device": {"name": 5}}]},
    {"sessions": [{"batch": 0, "command": [5], "versions": {"a": {}}}]},
    *({"sessions": [{"batch": 0, "time": "now"}]}, {"sessions": [{"batch": "x"}]}),
    *({"updated": 3, "state": "finished"}, {"guarded": 7}),
)


def as_bytes(status: Any) -> bytes:
    return status if isinstance(status, bytes) else json.dumps(status).encode()


def test_a_damaged_status_stops_nothing(tmp_path: Path, whole: Path, capsys: Captured) -> None:
    path = Path(shutil.copytree(whole, tmp_path / "runs" / short().folder()))
    out = str(tmp_path / "runs")
    expected = read_run(path).summary
    for number, status in enumerate(DAMAGED):
        (path / STATUS).write_bytes(as_bytes(status))
        commands = ([*COMMAND, out], ["show", out], ["report", out, "--json"])
        for command in commands[: 1 if number % 5 else 3]:
            assert main(command) == 0, (status, capsys.readouterr().err)
        run = read_run(path)
        assert (run.summary, run.state, run.status) == (expected, "finished", {})
        assert keep([run], tmp_path / "kept").seeds == (0,)
    capsys.readouterr()


@pytest.mark.parametrize("seed", [-1, 2**63, 10**30, 1.5, "1", True])
def test_a_damaged_seed_hides_no_other_run(
    tmp_path: Path, whole: Path, capsys: Captured, seed: Any
) -> None:
    copies = [tmp_path / "runs" / short(seed=n).folder() for n in (0, 1)]
    for path in copies:
        shutil.copytree(whole, path)
    document = json.loads((copies[1] / CONFIG).read_bytes())
    (copies[1] / CONFIG).write_text(json.dumps({**document, "seed": seed}))
    main(["show", str(tmp_path / "runs")])
    captured = capsys.readouterr()
    assert f"{copies[1]} is damaged: ValueError: the seed is {seed!r}." in captured.err
    assert captured.out.splitlines()[2].split()[-5] == "1"


@pytest.mark.parametrize("status", [b"{", {"sessions": 5, "state": [], "pid": "x"}], ids=str)
def test_a_run_with_a_damaged_status_goes_on(folder: Path, whole: Path, status: Any) -> None:
    (folder / STATUS).write_bytes(as_bytes(status))
    assert read_run(folder).state == "killed"
    assert_same_run(resume(folder), whole)
    assert json.loads((folder / STATUS).read_bytes())["state"] == "finished"


# --- a folder that disappears ---

GONE: dict[str, Callable[[Path], object]] = {
    "deleted": shutil.rmtree,
    "moved": lambda path: path.rename(path.with_name("moved")),
    "replaced": lambda path: (path.rename(path.with_name("moved")), path.mkdir()),
    "without metrics": lambda path: (path / METRICS).unlink(),
    "all deleted": lambda path: shutil.rmtree(path.parents[3]),
}


@pytest.mark.parametrize(("how", "moment"), [*((how, 2) for how in GONE), ("deleted", 4)])
def test_a_run_whose_folder_is_gone_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured, how: str, moment: int
) -> None:
    """At its second batch, or at its last one."""
    record, path = Session._record, tmp_path / "runs" / short().folder()

    def spoil(self: Session, *args: Any) -> Any:
        found = record(self, *args)
        if self.position == moment:
            GONE[how](path)
        return found

    monkeypatch.setattr(Session, "_record", spoil)
    assert main([*COMMAND, str(tmp_path / "runs")]) == 1
    assert "was moved, deleted or replaced while a run worked in it" in capsys.readouterr().err
    if how == "without metrics":
        assert read_run(path).state == "running"  # there, nothing can say that it failed
    else:
        assert not (path / CONFIG).exists()

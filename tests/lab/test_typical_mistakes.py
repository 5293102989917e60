"""Typical mistakes of the first hour: each is answered by one line that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from kept_files import write_kept
from torch import nn

import ocar
from ocar.errors import OcarError
from ocar.install import install_line
from ocar_lab.cli import main

Captured = pytest.CaptureFixture[str]

RUN = "run split-digits er"

COMMANDS = {
    "rnu split-digits er": "Unknown command 'rnu'. Did you mean 'run'?",
    "dance": "Unknown command 'dance'. There are demo, run",
    "run": "A benchmark and a method are needed: ocar run BENCHMARK METHOD",
    "run split-digits": "[METHOD ...]. Lists: ocar benchmarks, ocar methods.",
    "run er split-digits": "The benchmark comes first: split-digits er",
    "run split-digits split-mnist": "'split-mnist' is a benchmark, not a method.",
    "run split-digit er": "Unknown benchmark 'split-digit'. Did you mean 'split-digits'?",
    "run nowhere er": "Unknown benchmark 'nowhere'. There are split-digits",
    "run cifar er": "Unknown benchmark 'cifar'. Did you mean 'split-cifar100'?",
    "run split-digits magic": "Unknown method 'magic'. There are er",
    "run split-digits orca": "Unknown method 'orca'. Did you mean 'ocar'?",
    "run split-digits ER": "Unknown method 'ER'. Did you mean 'er'?",
    "run split-digits er,ocar": "Separate methods by spaces: er ocar",
    f"{RUN} er": "Each can be named once",
    "run split-digits gdumb --transform lpr": "GDumb goes with no gradient transform: it takes no",
    f"{RUN} --workers 0": "Invalid --workers 0. Must be at least 1.",
    f"{RUN} --transform ocra": "Unknown transform 'ocra'. Did you mean 'ocar'?",
    f"{RUN} --tau 1": "It is a setting of ocar, ocar-ace, ocar-der++, ocar-slow; er does not",
    f"{RUN} --learning-rate 1": "Unknown flag --learning-rate. Did you mean --lr?",
    f"{RUN} --seed 1": "Unknown flag --seed. Did you mean --seeds?",
    f"{RUN} --max-task 1": "Unknown flag --max-task. Did you mean --max-tasks?",
    f"{RUN} --lr": "--lr needs a value: a number.",
    f"{RUN} --lr much": "Invalid --lr much. Must be a number.",
    f"{RUN} --lr -1": "Invalid lr=-1.0. Must be larger than 0.",
    f"{RUN} --seeds 0,1": "Invalid --seeds 0,1. Must be whole numbers, separated by spaces.",
    f"{RUN} --seeds 1 1": "Invalid seeds=(1, 1). Must be one or more different numbers.",
    f"{RUN} --seeds": "Invalid seeds=(). Must be one or more different numbers.",
    f"{RUN} --closed-form-head maybe": "Unexpected argument maybe",
    f"{RUN} --every often": "Invalid --every often. Must be a whole number, or task.",
    f"{RUN} --defaults": "er has no default for lr. Give --lr 0.05, or leave out --defaults.",
    f"{RUN} --preset nothing": "Invalid preset: nothing does not exist. ocar tune writes one.",
    "run clear er": "Give --lr 0.05, or search: ocar tune clear er",
    "run pacs er --transform ngd": "Give --damping 0.1 --ema 0.1, or search: ocar tune pacs er --t",
    "tune split-digits er ocar": "A benchmark and one method are needed: ocar tune BENCHMARK",
    "show": "DIR is missing: a folder that contains runs",
    "show nowhere": "There is no folder nowhere. Runs are written by ocar run, by default to runs",
    "report .": "There are no runs in .. Runs are written by ocar run",
    "compare kept:er": "SECOND is missing: the second set, such as runs:ocar",
    "compare kept:er kept:ocar": "kept:er matches 2 configurations. Name one: kept:",
    "compare kept:mir kept:ocar": "kept:mir matches nothing. Name one: kept:",
    "compare er ocar": "Invalid set 'er': there is no folder er. Must be PATH or PATH:WORD, as in",
    "compare kept:er kept:ocar kept:mir": "Unexpected argument kept:mir.",
    "methods --jsn": "--jsn",
    "data burn": "burn",
    "methods er": "Unexpected argument er.",
    f"{RUN} --out taken": "Invalid --out taken: taken is a file. Must be a folder, which may be",
    "demo --out taken/in": "Invalid --out taken/in: taken is a file.",
    "keep kept --to taken": "Invalid --to taken: taken is a file.",
    "tune split-digits er --out taken": "Invalid --out taken: taken is a file.",
    "report . --out .": "Invalid --out .: it is a folder. Must be a file.",
    "show taken": "taken is a file. Must be a folder, or a file of ocar keep (.json).",
    f"{RUN} --preset taken": "Invalid preset: taken cannot be read: it is no JSON.",
    f"{RUN} --tracker wand": "Invalid --tracker wand. Must be one of tensorboard, mlflow, wandb.",
    f"{RUN} --device tpu": "Invalid --device tpu. Must be one of auto, cpu, cuda.",
    f"{RUN} --device cuda": "Invalid device='cuda'. PyTorch finds no CUDA device here.",
    f"{RUN} --device": "--device needs a value: one of auto, cpu, cuda.",
    f"{RUN} --plugin ./taken.py": "Must be a module, as in import taken.",
    f"{RUN} --plugin nowhere": "Must be a module on PYTHONPATH or in the working directory.",
    f"{RUN} --plugin needy": "No module named 'nowhere'. The module raises this when it is imp",
    "tune --stream needy:make": "No module named 'nowhere'. The module raises this when it is imp",
    "watch --port 65536": "port must be 0-65535. Choose another --port; 0 takes a free one.",
    "paper tabel1": "Unknown table or figure 'tabel1'. Did you mean 'table1'?",
}

FAILED = ("show nowhere", "show taken", "report .")
"""Calls that are right, of what is not there; the others are wrong, and have another exit code."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with kept results of two settings of ER."""
    for changed in ({}, {"memory": 20}):
        write_kept(tmp_path / "kept", "split-digits", "er", {0: {"acc": 0.5}}, changed=changed)
    (tmp_path / "empty").mkdir()
    (tmp_path / "taken").write_text("a file")
    (tmp_path / "needy.py").write_text("import nowhere\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_command_is_answered_by_one_line(
    command: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    if command.endswith("cuda") and torch.cuda.is_available():
        pytest.skip("there is one")
    if command.startswith("report"):
        monkeypatch.chdir(here / "empty")
    assert main(command.split()) == (1 if command in FAILED else 2)
    captured = capsys.readouterr()
    assert COMMANDS[command] in captured.err
    assert captured.err.startswith("ocar: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_each_choice_of_a_comparison_says_its_folder_and_works(
    here: Path, capsys: Captured
) -> None:
    assert main(["compare", "kept:er", "kept:er"]) == 2
    choices = capsys.readouterr().err.partition("Name one: ")[2].rstrip(".\n").split(", kept:")
    names = ["kept:" + choice.removeprefix("kept:").partition(" ")[0] for choice in choices]
    assert len(names) == 2
    for name, choice in zip(names, choices, strict=True):
        assert f"kept/split-digits/er-{name.removeprefix('kept:')}.json)" in choice
    assert main(["compare", *names]) == 0


def test_a_configuration_that_is_alone_is_chosen_by_its_name(here: Path, capsys: Captured) -> None:
    write_kept(here / "kept", "split-digits", "ocar", {0: {"acc": 0.6}})
    assert main(["compare", "kept:mir", "kept:er"]) == 2
    assert "kept:ocar (split-digits ocar, kept/split-digits/ocar-" in capsys.readouterr().err
    assert main(["compare", "kept/split-digits:ocar", "kept:ocar"]) == 0


def test_a_removed_working_directory_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["methods"]) == 1
    assert capsys.readouterr().err.startswith("ocar: The working directory was removed. ")


def test_a_damaged_run_hides_no_other_run(here: Path, capsys: Captured) -> None:
    quick = ["run", "split-digits", "er", "--every", "task", "--no-probe", "--device", "cpu"]
    quick += ["--max-batches", "3", "--workers", "1", "--seeds", "0", "1"]
    assert main(quick) == 0
    (damaged,) = here.glob("runs/*/*/*/seed-0/config.json")
    damaged.write_text("{")
    capsys.readouterr()
    assert main(quick) == 1
    captured = capsys.readouterr()
    assert captured.err.count("config.json cannot be read") == 1
    assert "Restore the file, or move it away." in captured.err
    assert captured.out.splitlines()[-1].startswith("er (max_batches=3, every=task)      1")
    damaged.unlink()
    assert main(quick) == 0


def test_data_that_are_missing_are_named_with_where_to_get_them(
    here: Path, capsys: Captured
) -> None:
    assert main(["run", "split-mnist", "er", "--data-root", "none", "--out", "runs"]) == 1
    captured = capsys.readouterr()
    assert "train-images-idx3-ubyte.gz" in captured.err
    assert "https://" in captured.err
    row = captured.out.splitlines()[-1].split(maxsplit=1)
    assert row == ["er", "0 of 1 (1 failed)"]


def test_the_tables_of_the_paper_say_where_our_numbers_are(here: Path, capsys: Captured) -> None:
    assert main(["paper", "table1"]) == 0
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    clone = Path(__file__).parents[2]
    assert f"--results {clone / 'results'}" in captured.err
    assert main(["paper", "table1", "--results", str(clone / "results")]) == 0
    assert capsys.readouterr().err == ""


def test_more_tasks_than_there_are_is_all_of_them(here: Path, capsys: Captured) -> None:
    quick = ["run", "split-digits", "er", "--every", "task", "--no-probe", "--device", "cpu"]
    assert main([*quick, "--max-batches", "3", "--max-tasks", "99"]) == 0
    assert "er (max_batches=3, every=task)" in capsys.readouterr().out
    assert main([*quick, "--max-batches", "3"]) == 0
    assert "already finished" in capsys.readouterr().err


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 2))


X, Y = torch.rand(10, 3, 4), torch.arange(10) % 2

CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "another library's name": (
        lambda: ocar.OCAR(mlp(), learning_rate=0.1),
        "no setting learning_rate. Did you mean 'lr'?",
    ),
    "no learning rate": (lambda: ocar.ER(mlp()), "needs a value for 'lr', the learning rate, such"),
    "a misspelt method": (lambda: ocar.make_learner("orca", mlp()), "Did you mean 'ocar'?"),
    "a misspelt part": (lambda: ocar.OCAR(mlp(), curvature="kfca"), "Did you mean 'kfac'?"),
    "a class for a model": (lambda: ocar.OCAR(nn.Linear), "given the class Linear"),  # type: ignore[arg-type]
    "nothing to learn": (lambda: ocar.OCAR(nn.ReLU()), "has no parameter that requires a gradient"),
    "too few labels": (lambda: ocar.OCAR(mlp()).learn(X, Y[:5]), "each of 10 samples; given (5,)"),
    "one-hot labels": (
        lambda: ocar.OCAR(mlp()).learn(X, torch.eye(2)[Y]),
        "y must be integer labels of shape (n,); given torch.float32 of shape (10, 2)",
    ),
    "NaN": (lambda: ocar.OCAR(mlp()).learn(X / 0, Y), "x must be finite; 10 of 10 samples hold"),
    "no checkpoint": (lambda: ocar.load("nothing", mlp()), "There is no checkpoint 'nothing'."),
    "a data set for a benchmark": (lambda: ocar.make_stream("mnist"), "mean 'split-mnist'?"),
}


@pytest.mark.parametrize("mistake", CALLS)
def test_a_wrong_call_is_answered_by_one_line(mistake: str) -> None:
    call, answer = CALLS[mistake]
    with pytest.raises(OcarError) as raised:
        call()
    assert answer in str(raised.value)
    assert "\n" not in str(raised.value)


# --- what to install ---


def test_in_a_clone_the_clone_is_installed(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    clone = Path(__file__).parents[2]
    assert install_line("cli").endswith(f'pip install -e "{clone}[cli]"')
    monkeypatch.chdir(clone)
    assert install_line("cli").endswith('pip install -e ".[cli]"')


@pytest.mark.parametrize(
    ("document", "package"),
    [
        (None, "ocar"),
        ('{"url": "https://example.org/ocar.whl", "archive_info": {}}', "ocar"),
        ('{"url": "file://CLONE", "dir_info": {}}', "CLONE"),
        ('{"url": "file:///gone", "dir_info": {}}', "ocar"),
    ],
)
def test_elsewhere_the_record_of_pip_says_where_it_came_from(
    document: str | None, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = Path(__file__).parents[2]
    installed = tmp_path / "site" / "ocar" / "install.py"
    record = tmp_path / "site" / "ocar-1.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: ocar\nVersion: 1\n")
    if document is not None:
        (record / "direct_url.json").write_text(document.replace("CLONE", str(clone)))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr("ocar.install.__file__", str(installed))
    monkeypatch.chdir(tmp_path)
    expected = package.replace("CLONE", str(clone))
    assert install_line("cli").endswith(f' install "{expected}[cli]"')


def test_it_is_the_pip_of_this_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("pip", "python"):
        (tmp_path / "bin" / name).write_text("")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setattr("sys.executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert install_line("cli").startswith("pip install ")
    monkeypatch.setenv("PATH", "/nowhere")
    assert install_line("cli").startswith(f"{tmp_path / 'bin' / 'python'} -m pip install ")
    monkeypatch.chdir(tmp_path)
    assert install_line("cli").startswith("bin/python -m pip install ")

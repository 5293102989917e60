"""``ocar run --ranks``: the metrics of one process, whatever dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import ROOT

from ocar.errors import ConfigError
from ocar_lab.cli.run import plan
from ocar_lab.runs.folder import METRICS

RUN = ["run", "split-digits", "ocar", "--max-batches", "8", "--checkpoint-every", "2"]


def ocar_run(out: Path, *arguments: str, code: int = 0) -> str:
    """What the command prints, with both streams together."""
    paths = [str(ROOT / "src"), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "ocar_lab", *arguments, "--out", str(out)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


def read(out: Path) -> tuple[list[float], dict[str, float | None]]:
    """The loss of each batch, and the results but for times."""
    (path,) = out.rglob(METRICS)
    *evaluated, finished = map(json.loads, path.read_text().splitlines())
    results = {n: v for n, v in finished["summary"].items() if "seconds" not in n}
    return [record["loss"] for record in evaluated], results


def assert_same_metrics(one: Path, other: Path) -> None:
    (losses, results), (other_losses, other_results) = read(one), read(other)
    assert len(losses) == 8
    assert losses == pytest.approx(other_losses, rel=1e-4)  # in float32
    assert results == pytest.approx(other_results, abs=1e-3)


def test_two_ranks_have_the_metrics_of_one_process(tmp_path):
    ocar_run(tmp_path / "one", *RUN)
    ocar_run(tmp_path / "two", *RUN, "--ranks", "2")
    assert_same_metrics(tmp_path / "one", tmp_path / "two")
    assert "already finished" in ocar_run(tmp_path / "two", *RUN, "--ranks", "2")


@pytest.mark.long
def test_a_run_goes_on_when_a_rank_was_killed(tmp_path):
    ocar_run(tmp_path / "one", *RUN)
    text = ocar_run(tmp_path / "two", "--plugin", "killed_rank", *RUN, "--ranks", "2")
    assert "start 0" in text
    assert "start 1" in text
    assert "resumes at batch 4" in text
    assert_same_metrics(tmp_path / "one", tmp_path / "two")


def test_a_method_for_one_device_is_refused_once_and_the_next_one_runs(tmp_path):
    mir, er = ["run", "split-digits", "mir", "er"], ["--max-batches", "2", "--lr", "0.1"]
    text = ocar_run(tmp_path, *mir, *er, "--ranks", "2", code=1)
    assert text.count("MIRSettings cannot be used with 2 ranks") == 1
    assert [path.parts[-4] for path in tmp_path.rglob(METRICS)] == ["er"]


@pytest.mark.parametrize("others", [["--workers", "2"], ["--ray", "auto"]])
def test_ranks_exclude_workers(others):
    with pytest.raises(ConfigError, match="Invalid --ranks with --workers or --ray"):
        plan(["split-digits", "er", "--ranks", "2", *others])

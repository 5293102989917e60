"""``experiments/listed_runs.py``: what it needs, what it does, and the list beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import ROOT, call_script, load_script
from test_light_imports import REFUSE

from ocar_lab.runs import is_finished, read_result, result_files

SCRIPT = "experiments/listed_runs.py"

CALL = """
import os, runpy
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    print(os.environ["CUDA_DEVICE_MAX_CONNECTIONS"])
"""


def call(folder: Path, *rows: dict[str, object]) -> subprocess.CompletedProcess[str]:
    """The script on a list, without the packages of the command line."""
    (folder / "list.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    code = f"{REFUSE}sys.argv = sys.argv[1:]\n{CALL}"
    words = [str(ROOT / SCRIPT), "list.jsonl", "--device", "cpu", "--workers", "1"]
    environment = os.environ | {"OCAR_DATA": str(folder)}
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=environment,
    )


def test_it_runs_without_the_packages_of_the_commands(tmp_path: Path) -> None:
    er: dict[str, object] = {"benchmark": "convex", "method": "er", "seeds": [0, 1]}
    ended = call(tmp_path, er | {"max_batches": 3}, er | {"max_batches": 4})
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "32\n"  # as the command line has it
    folders = [path.parent for path in tmp_path.glob("runs/convex/er/*/*/config.json")]
    assert len(folders) == 4
    assert all(map(is_finished, folders))
    hashes = {folder.parent.name for folder in folders}
    for name in (f"er {own} seed {seed}" for own in hashes for seed in (0, 1)):
        assert f"{name}: finished" in ended.stderr


def test_table_1_begins_with_whole_data_only(tmp_path: Path) -> None:
    tiny: dict[str, object] = {"benchmark": "split-tinyimagenet", "method": "er", "seeds": [0, 1]}
    convex: dict[str, object] = {"benchmark": "convex", "method": "er", "seeds": [0]}
    ended = call(tmp_path, tiny, convex | {"max_batches": 3})
    assert ended.returncode == 1
    assert "2 runs of split-tinyimagenet are left out. Table 1 needs tiny-imag" in ended.stderr
    assert "er seed 0: finished" in ended.stderr
    assert not (tmp_path / "runs" / "split-tinyimagenet").exists()


def test_results_lack_every_listed_run() -> None:
    configs = load_script(SCRIPT).read_list(
        ROOT / "experiments" / "listed_runs.jsonl", device="cuda"
    )
    listed = [(c.benchmark, c.label, c.hash(), c.seed) for c in configs]
    assert len(set(listed)) == len(listed)
    results = map(read_result, result_files(ROOT / "results"))
    kept = {(*run.key, run.seed) for result in results for run in result.runs}
    assert not kept & set(listed)


def test_a_wrong_list_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "list.jsonl"
    path.write_text('{"benchmark": "convex", "method": "nothing", "seeds": [0]}')
    with pytest.raises(SystemExit, match="2"):
        call_script(load_script(SCRIPT), monkeypatch, str(path))
    assert capsys.readouterr().err.startswith("Unknown method 'nothing'.")

"""``import ocar`` is light, and the core imports without any optional package."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from made_runs import history, write_run

import ocar
from ocar.install import install_line
from ocar_lab.runs.command import PROTOCOL
from ocar_lab.runs.folder import CONFIG

REFUSE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in OPTIONAL:
            raise ImportError(f"{name} is not installed")

OPTIONAL = {"tyro", "rich", "matplotlib", "sklearn", "tensorboard", "optuna", "ray", "plotly",
            "jinja2", "polars", "scipy", "pandas", "nngeometry", "avalanche", "curvlinops",
            "fastapi", "onnx", "onnxscript", "prometheus_client", "uvicorn"}
sys.meta_path.insert(0, Refuse())
"""

BLOCK = """
import benchmarks, ocar_lab.experiment, ocar.evaluate, ocar_lab.runs, ocar_lab.tune
assert ocar.evaluate is sys.modules["ocar.evaluate"].evaluate
from ocar_lab.cli import main
sys.exit(main(sys.argv[1:]))
"""


CORE_ONLY = [["methods"], ["run", "split-digits", "er"], ["tune", "--stream", "module:function"]]


@pytest.mark.parametrize("words", CORE_ONLY, ids=" ".join)
def test_the_core_imports_with_its_four_packages_and_says_what_is_missing(words: list[str]) -> None:
    command = [sys.executable, "-c", REFUSE + BLOCK, *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    missing = "tyro, rich, polars, scipy"
    assert ended.stderr == f"ocar: The command line needs {missing}: {install_line('cli')}\n"


def test_a_service_needs_only_its_extra() -> None:
    present = 'OPTIONAL -= {"tyro", "rich", "fastapi", "uvicorn", "prometheus_client"}\n'
    code = f"{REFUSE}{present}from ocar_lab.cli import main\nsys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "serve", "gone", "--model", "builtins:dict"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stderr == "ocar: There is no checkpoint gone. learner.save writes one.\n"


@pytest.mark.long
def test_the_demo_needs_only_its_extra(tmp_path: Path) -> None:
    others = """
OPTIONAL = {"tensorboard", "optuna", "ray", "nngeometry", "avalanche", "curvlinops", "playwright",
            "river", "fastapi", "uvicorn", "sphinx", "pytest", "mlflow", "wandb"}
from ocar_lab.cli import main
sys.exit(main(["demo", "--seeds", "0", "--out", sys.argv[1]]))
"""
    command = [sys.executable, "-c", REFUSE + others, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "not made" not in ended.stdout
    for name in ("accuracy.png", "report.html"):
        assert (tmp_path / name).stat().st_size > 0


def test_every_public_name_is_there() -> None:
    for name in ocar.__all__:
        assert getattr(ocar, name) is not None
    assert set(ocar.__all__) <= set(dir(ocar))
    assert callable(ocar.evaluate)


LIBRARY = """
OPTIONAL |= {"ocar_lab", "benchmarks", "river", "triton"}
import importlib, pkgutil
import ocar
assert "torch" not in sys.modules, "PyTorch was imported"
import torch
for name in ocar.__all__:
    getattr(ocar, name)
for module in pkgutil.walk_packages(ocar.__path__, "ocar."):
    if not module.name.startswith(("ocar.integrations.", "ocar.accel.triton.")):
        importlib.import_module(module.name)
learner = ocar.OCAR(ocar.make_model("mlp", image_shape=(1, 2, 2)), lr=0.1, tau_step=0.0, ema=0.5)
learner.learn(torch.rand(2, 1, 2, 2), torch.tensor([0, 1]))
"""


def test_the_library_needs_neither_the_workbench_nor_an_optional_package() -> None:
    command = [sys.executable, "-W", "ignore", "-c", REFUSE + LIBRARY]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]


def test_the_package_can_be_pickled() -> None:
    """Ray and cloudpickle send a function with the modules that it uses."""
    assert pickle.loads(pickle.dumps(ocar)) is ocar


READ = """
import sys
from ocar_lab.cli import main
code = main(sys.argv[1:])
assert "torch" not in sys.modules, "PyTorch was imported"
sys.exit(code)
"""


@pytest.mark.parametrize("command", ["show", "report"])
def test_reading_runs_does_not_wait_for_torch(command: str, tmp_path: Path) -> None:
    pytest.importorskip("tyro", reason="the command line is not installed")
    pytest.importorskip("plotly", reason="plotly is not installed")
    run = write_run(tmp_path, history(np.random.default_rng(0), [3, 2]), **PROTOCOL, device="cpu")
    config = run.path / CONFIG
    document = json.loads(config.read_bytes())
    document["given"] = {"method": "er", "transform": None, "settings": {}, "every": None}
    config.write_text(json.dumps(document), encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-c", READ, command, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    if command == "report":
        page = (tmp_path / "report.html").read_text(encoding="utf-8")
        assert "ocar run split-digits er --seeds 0 --device cpu" in page

"""``import ocar`` is light, and the core imports without any optional package."""

from __future__ import annotations

import subprocess
import sys

import ocar

BLOCK = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in OPTIONAL:
            raise ImportError(f"{name} is not installed")

OPTIONAL = {"tyro", "rich", "matplotlib", "sklearn", "tensorboard", "optuna", "ray", "plotly",
            "jinja2", "polars", "scipy", "pandas", "nngeometry", "avalanche", "curvlinops"}
sys.meta_path.insert(0, Refuse())
import ocar.bench, ocar.experiment, ocar.evaluate, ocar.runs, ocar.tune
assert ocar.evaluate is sys.modules["ocar.evaluate"].evaluate
from ocar.cli import main
sys.exit(main(["methods"]))
"""


def test_the_core_imports_with_its_four_packages_and_says_what_is_missing() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", BLOCK], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr == ('ocar: The command line needs tyro and rich: pip install "ocar[cli]"\n')


def test_every_public_name_is_there() -> None:
    for name in ocar.__all__:
        assert getattr(ocar, name) is not None
    assert set(ocar.__all__) <= set(dir(ocar))
    assert callable(ocar.evaluate)

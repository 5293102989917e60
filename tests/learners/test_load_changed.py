"""``ocar.load`` with other settings: those that may change do, others say that they cannot."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import ocar
from ocar.errors import ConfigError


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 4)).double()


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    x = torch.rand(10, 3, 4, generator=generator, dtype=torch.float64)
    return x, torch.arange(10) % 2 + 2 * number


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    learner = ocar.ER(mlp(), lr=0.01, memory=20, passes=1)
    learner.learn(*batch(0))
    learner.save(tmp_path / "saved")
    return tmp_path / "saved"


def moved(path: Path, **settings: object) -> torch.Tensor:
    """How far the next batch moves the weights of a loaded learner."""
    learner = ocar.load(path, mlp(), **settings)
    before = learner.model[1].weight.detach().clone()
    learner.learn(*batch(1))
    return learner.model[1].weight.detach() - before


def test_a_step_of_sgd_is_as_long_as_the_new_rate_says(saved: Path) -> None:
    once = moved(saved)
    assert once.abs().max() > 1e-6
    torch.testing.assert_close(moved(saved, lr=0.03), 3 * once, rtol=1e-9, atol=0)


def test_the_changed_learner_saves_the_change(saved: Path) -> None:
    ocar.load(saved, mlp(), lr=0.03, passes=2).save(saved)
    again = ocar.load(saved, mlp())
    assert (again.settings.lr, again.settings.passes) == (0.03, 2)


def test_settings_of_the_transform_change_too(tmp_path: Path) -> None:
    learner = ocar.OCAR(mlp(), lr=0.01, memory=20)
    learner.learn(*batch(0))
    learner.save(tmp_path / "saved")
    assert moved(tmp_path / "saved", tau=1e3).norm() < 0.1 * moved(tmp_path / "saved").norm()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"memory": 30}, r"memory cannot be changed in a saved learner\. These can .* lr, passes"),
        ({"tau": 1.0}, r"tau is not one of its settings\. These can be changed: lr, passes"),
        ({"lr": -1.0}, r"Invalid lr=-1\.0\. Must be larger than 0"),
        ({"lr": None}, r"Invalid lr=None\. The saved learner has lr=0\.01 and goes on like it"),
    ],
)
def test_what_cannot_change_is_said(saved: Path, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ocar.load(saved, mlp(), **settings)


def test_a_learner_that_chooses_its_rate_keeps_doing_so(tmp_path: Path) -> None:
    learner = ocar.OCAR(mlp(), memory=20)
    learner.learn(*batch(0))
    learner.save(tmp_path / "saved")
    with pytest.raises(ConfigError, match="The saved learner chooses its own"):
        ocar.load(tmp_path / "saved", mlp(), lr=0.1)

"""Every model of the zoo learns, is saved and resumed to the bit, or is refused by name."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from model_zoo import LEARNS, ZOO, Entry, stream
from torch import nn
from toys import assert_same, everything, seeded

import ocar
from ocar.errors import OcarError

SETTINGS = {
    "er": {"lr": 0.1},
    "ocar": {"lr": 0.05, "tau": 0.2, "tau_step": 1e-6, "ema": 0.2},
}
COMMON = {"memory": 40, "passes": 2}
SAMPLE = (
    "functional dropout", "channels last", "transformer", "head tied to the embedding",
    "unused linear layer of equal width", "Softmax at the end", "head under weight_norm",
    "head under spectral_norm, classes given", "returns a tuple", "lazy", "layer called twice",
    "buffers that change and are not saved by PyTorch",
)  # fmt: skip


@contextmanager
def known_warnings_ignored() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No curvature for")
        yield


def learner_of(entry: Entry, method: str, model: nn.Module) -> ocar.Learner:
    with known_warnings_ignored():
        settings = {**SETTINGS[method], **COMMON, **entry.settings}
        return ocar.make_learner(method, model, **settings)


def learn(learner: ocar.Learner, batches: list) -> None:
    with known_warnings_ignored():
        for x, y in batches:
            learner.learn(x, y)


def check_learns(entry: Entry, method: str, path: Path) -> None:
    batches = list(stream(entry.fed, entry.batches))
    learner = learner_of(entry, method, seeded(entry.make))
    torch.manual_seed(1)
    before = torch.get_rng_state()
    learn(learner, batches)
    assert torch.equal(torch.get_rng_state(), before)  # the user's generator
    assert learner.guarded.skipped == 0
    x, y = map(torch.cat, zip(*list(stream(entry.fed, 30, seed=5))[10:], strict=True))
    right = torch.tensor(learner.classes)[learner.predict(x).argmax(1)] == y
    assert right.double().mean() > 0.35  # 0.2 is chance
    learner.save(path / "file")
    torch.manual_seed(2)
    with known_warnings_ignored():
        resumed = ocar.load(path / "file", seeded(entry.make, 1))
        copied = copy.deepcopy(learner)
    for one in (learner, resumed, copied):
        torch.manual_seed(3)
        learn(one, batches[-3:])
    assert_same(everything(resumed), everything(learner))
    assert_same(everything(copied), everything(learner))


def check_refused(entry: Entry, method: str, message: str) -> None:
    """At construction or, where only a forward pass can tell, at the first batch."""
    model = seeded(entry.make)
    try:
        learner = learner_of(entry, method, model)
    except OcarError as error:
        said = str(error)
    else:
        before = everything(learner)
        with pytest.raises(OcarError) as raised:
            learn(learner, list(stream(entry.fed, 1)))
        said = str(raised.value)
        assert_same(everything(learner), before)  # nothing has changed
        assert learner.classes == tuple(entry.settings.get("classes", ()))
    assert message in said


def check(name: str, method: str, path: Path) -> None:
    entry = ZOO[name]
    expected = getattr(entry, method)
    if expected == LEARNS:
        check_learns(entry, method, path)
    else:
        check_refused(entry, method, expected)


@pytest.mark.parametrize("method", SETTINGS)
@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_learns_or_is_refused(name: str, method: str, tmp_path: Path) -> None:
    check(name, method, tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize("method", SETTINGS)
@pytest.mark.parametrize("name", [name for name in ZOO if name not in SAMPLE])
def test_every_model_learns_or_is_refused(name: str, method: str, tmp_path: Path) -> None:
    check(name, method, tmp_path)

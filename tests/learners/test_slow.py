"""Slow weights and distillation against a loop that is written by hand, in float64."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tolerances import EXACT
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close
from toys import RAW, vectors

import ocar
from ocar.curvature import KFAC

BOTH: dict[str, Any] = {"prediction": "both", "distillation": 1.5}
ALONE: dict[str, Any] = {"memory": 1, "replay_batch": 0, "passes": 2, **RAW}


def normed(units: int = 5) -> nn.Module:
    """A network with BatchNorm, in float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        hidden = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh())
        return nn.Sequential(hidden, nn.Linear(8, units)).double()


def stream(count: int = 6) -> list[tuple[Tensor, Tensor]]:
    return [(x.double(), y) for x, y in vectors(count, [0, 1, 2])]


def classes(y: Tensor, known: list[int]) -> Tensor:
    """The unit of each label, in order of appearance."""
    known += [label for label in dict.fromkeys(y.tolist()) if label not in known]
    return torch.tensor([known.index(label) for label in y.tolist()])


def kl(slow: Tensor, fast: Tensor, temperature: float) -> Tensor:
    """T² KL(slow ‖ fast) of each sample."""
    q, p = (functional.softmax(z / temperature, 1) for z in (slow, fast))
    return temperature**2 * (q * (q.log() - p.log())).sum(1)


def follow(slow: nn.Module, model: nn.Module, rate: float) -> None:
    with torch.no_grad():
        for own, other in zip(slow.state_dict().values(), model.state_dict().values(), strict=True):
            if own.is_floating_point():
                own += rate * (other - own)


def by_hand(
    model: nn.Module, *, weight: float, temperature: float = 1.0, ocar_lr: float | None = None
) -> tuple[nn.Module, list[int]]:
    """Two steps of SGD, or of OCAR without replay, a batch; returns the slow model."""
    slow = copy.deepcopy(model).eval()
    kfac = KFAC(model, damping=0.1, ema=0.3, fisher="exact", max_cost=None)
    known: list[int] = []
    for batch, (x, y) in enumerate(stream()):
        units = classes(y, known)
        for step in range(2):
            model.train().zero_grad()
            with kfac.record():
                outputs = model(x)
            seen = outputs[:, : len(known)]
            with torch.no_grad():
                targets = slow(x)[:, : len(known)]
            loss = functional.cross_entropy(seen, units)
            loss = loss + weight * kl(targets, seen, temperature).mean()
            if ocar_lr is not None and step == 0:
                active = torch.arange(outputs.shape[1]) < len(known)
                kfac.update(outputs, active=active)
            loss.backward()
            if ocar_lr is not None:
                kfac.precondition_()
            with torch.no_grad():
                for p in model.parameters():
                    p -= (ocar_lr or 0.1) * p.grad
        follow(slow, model, max(0.3, 2.0 / (batch + 2.0)))
    return slow, known


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("method", ["er", "ocar"])
def test_distillation_is_that_of_a_loop_by_hand(method: str, temperature: float) -> None:
    curved = {"tau": 0.1, "ema": 0.3, "fisher": "exact", "replay_weight": "lambda"}
    learner = ocar.make_learner(
        method,
        normed(),
        lr=0.1,
        slow_rate=0.3,
        slow_warmup=2.0,
        distill_temperature=temperature,
        guard=None,
        **(curved if method == "ocar" else {}),
        **ALONE,
        **BOTH,
    )
    for x, y in stream():
        learner.learn(x, y)
    model = normed()
    rate = 0.1 if method == "ocar" else None
    slow, known = by_hand(model, weight=1.5, temperature=temperature, ocar_lr=rate)
    assert list(learner.classes) == known
    for name, tensor in model.state_dict().items():
        assert_close(learner.model.state_dict()[name], tensor, **EXACT)
        if tensor.is_floating_point():
            assert_close(learner.slow.values[name], slow.state_dict()[name], **EXACT)
    x = stream()[0][0]
    with torch.no_grad():
        fast, old = (m.eval()(x)[:, :3].softmax(1) for m in (model, slow))
    assert_close(learner.predict(x).exp(), (fast + old) / 2, **EXACT)
    assert_close(learner.predict(x, prediction="plain").softmax(1), fast, **EXACT)
    assert_close(learner.predict(x, prediction="slow").softmax(1), old, **EXACT)
    assert not torch.allclose(fast, old, rtol=1e-3)

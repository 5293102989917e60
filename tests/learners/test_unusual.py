"""Unusual models and inputs: they learn as the usual ones do, or are refused before a step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toys import assert_same, everything, seeded, vectors
from zoo.parts import Net, head, stream

import ocar

X, Y = next(vectors(1, [0, 1, 2]))
MADE: dict[str, dict[str, Any]] = {
    "er": {"lr": 0.1},
    "ocar": {},
    "ocar-slow": {"lr": 0.05},
    "ewc": {"lr": 0.1, "strength": 1.0},
}
ALL = pytest.mark.parametrize("method", ["er", "ocar", "ocar-slow"])


def make(method: str, model: nn.Module, **settings: Any) -> ocar.Learner:
    return ocar.make_learner(method, model, memory=30, **{**MADE.get(method, {}), **settings})


def check_refused(learner: ocar.Learner, kind: type[Exception], match: str) -> None:
    before = everything(learner)
    with pytest.raises(kind, match=match):
        learner.learn(X, Y)
    assert_same(everything(learner), before)


# --- models --------------------------------------------------------------------------------------


def words(kind: type[nn.Module], **options: Any) -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        found = m.embed(x.long())
        outputs: Tensor = m.head(found if kind is nn.EmbeddingBag else found.mean(1))
        return outputs

    return seeded(lambda: Net(run, embed=kind(30, 16, **options), head=head()))


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize(
    ("method", "settings"), [*((name, {}) for name in MADE), ("ocar", {"curvature": "dense"})]
)
@pytest.mark.filterwarnings("ignore:No curvature for")
def test_sparse_gradients_learn_as_dense_ones(
    kind: type[nn.Module], method: str, settings: dict[str, Any]
) -> None:
    sparse, dense = (make(method, words(kind, sparse=s), **settings) for s in (True, False))
    for x, y in stream("tokens", 4):
        sparse.learn(x, y)
        dense.learn(x, y)
    assert_same(everything(sparse), everything(dense))


def wrapped(dtype: torch.dtype, *, first: bool) -> nn.Module:
    """A layer of another type than the other."""

    def run(m: Any, x: Tensor) -> Tensor:
        hidden = m.a(x.to(m.a.weight.dtype)).relu()
        outputs: Tensor = m.head(hidden.to(m.head.weight.dtype))
        return outputs

    model = seeded(lambda: Net(run, a=nn.Linear(6, 16), head=head()))
    (model.a if first else model.head).to(dtype)
    return model


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        *(("ocar", {}), ("ocar", {"curvature": "dense"}), ("ocar-slow", {})),
        *(("lpr", {"lr": 0.1}), ("ewc", {})),
    ],
)
def test_layers_of_two_types_learn(
    method: str, settings: dict[str, Any], dtype: torch.dtype, first: bool
) -> None:
    learner = make(method, wrapped(dtype, first=first), **settings)
    x, y = next(vectors(1, [0, 1, 2], size=40))
    for batch in zip(x.split(10), y.split(10), strict=True):
        learner.learn(*batch)
    assert learner.guarded.skipped == 0
    assert learner.predict(x).isfinite().all()

"""What is rolled back where the verdict on a batch is a value that nothing may wait for.

There weights, statistics, curvature and samples are restored by the value; clocks and draws on the
host go on. Where the verdict is known nothing stays behind, see ``test_undone.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cases import ALONE, Case
from torch import Tensor, nn
from toys import assert_same, everything, mlp, never_wait, seeded, spoiled, vectors
from twins import assert_resumes

import ocar
from ocar.errors import NumericalError
from ocar.guard import BatchGuard, Guard
from ocar.learner import Learner

pytestmark = pytest.mark.filterwarnings("ignore::ocar.guard.GuardWarning")

LEARNING = [case for case in ALONE if case.method != "gdumb"]  # that takes no steps on the stream

LEFT_BEHIND = (
    # clocks and labels that the host counts, as it does learner.batches and learner.steps
    "objective.counters",  # ER + LwF: stream batches, for a teacher that is copied every so many
    "objective.stretches.counters",  # OCM, OnPro: batches since the last new label
    "objective.previous",  # MIR: labels of the batch before
    "transform.due",  # LPR: when the preconditioner is made again
    "transform.inverses.",  # LPR: it is made before the steps, from the memory
    "transform.curvature.averages.batches",  # when E-KFAC renews its basis
    "transform.recent.",  # OCAR: labels of the last batches, which estimate n_new
    "objective.prototypes",  # OnPro: those of the last replay batch
    # random numbers that were used
    "transform.generator",
    "transform.curvature.generator",
    "objective.generator",
    "objective.host",
    "generator.augment",
    # the host takes the samples for remembered: counts, priorities, places
    "memory.generator",
    "memory.seen",
    "memory.occupied",
    "memory.policy.",
)
"""What a skipped batch leaves behind, unless it is the first."""


def settings(case: Case) -> dict[str, Any]:
    """All units are there from the start, and τ does not grow with the steps."""
    has_tau = any("tau_step" in kind.__dataclass_fields__ for kind in case.kinds)
    return {"classes": (0, 1, 2, 3), **({"tau_step": 0.0} if has_tau else {})}


def learn_bad(learner: Learner, kind: str, labels: list[int]) -> None:
    """A batch that the guard refuses before the steps, or rolls back after them."""
    x, y = next(vectors(1, labels, seed=9, size=12))
    skipped = learner.guarded.skipped
    if kind == "scale":
        learner.learn(1e9 * x, y)
    else:
        with spoiled(learner):
            learner.learn(x, y)
    assert learner.guarded.skipped == skipped + 1


def run(case: Case, position: int | None, kind: str) -> list[dict[str, Tensor]]:
    """The state after every batch of a stream, with a bad batch before one of them or not."""
    learner = case.make(mlp(), **settings(case))
    states = []
    for index, (x, y) in enumerate(vectors(7, [0, 1, 2, 3], size=12)):
        if index == position:
            learn_bad(learner, kind, [0, 1, 2, 3])
            states.append(everything(learner))
        learner.learn(x, y)
        states.append(everything(learner))
    return states


def assert_like_one_that_never_saw_it(
    state: dict[str, Tensor], other: dict[str, Tensor], *, but: tuple[str, ...]
) -> None:
    """Equal to the bit in all that does not begin with one of some prefixes."""
    but = (*but, "values", "guard.")
    names = [name for name in state.keys() | other.keys() if not name.startswith(but)]
    different = [
        name
        for name in names
        if name not in state or name not in other or not torch.equal(state[name], other[name])
    ]
    assert not different
    assert any(name.startswith("model.") for name in names)


@pytest.mark.parametrize(("kind", "position"), [("loss", 3), ("scale", 6)])
@pytest.mark.parametrize("case", LEARNING, ids=str)
def test_clocks_and_draws_alone_are_left_behind(
    case: Case, kind: str, position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_wait(monkeypatch)
    bad, good = run(case, position, kind), run(case, None, kind)
    # Not the samples: a slot that was free may hold another one than before.
    held = good[position - 1]["memory.occupied"]
    for state in (bad[position], good[position - 1]):
        for name in [name for name in state if name.startswith("memory.columns.")]:
            state[name] = state[name][held]
    assert_like_one_that_never_saw_it(bad[position], good[position - 1], but=LEFT_BEHIND)
    for name, tensor in bad[position].items():
        assert not tensor.is_floating_point() or tensor.isfinite().all(), name


@pytest.mark.parametrize("case", LEARNING, ids=str)
def test_nothing_is_left_behind_by_the_first_batch(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nothing has been learned the verdict is waited for."""
    never_wait(monkeypatch)
    fresh = everything(case.make(mlp(), **settings(case)))
    bad, good = run(case, 0, "loss"), run(case, None, "loss")
    assert_like_one_that_never_saw_it(bad[0], fresh, but=())
    assert_like_one_that_never_saw_it(bad[-1], good[-1], but=())


@pytest.mark.parametrize("case", LEARNING, ids=str)
def test_the_rest_of_a_stream_is_learned_whatever_came_before(case: Case) -> None:
    """With a bad batch of each kind here and there no good one is refused."""
    learner = case.make(mlp(), **settings(case))
    for index, (x, y) in enumerate(vectors(9, [0, 1, 2, 3], size=12)):
        if index in (0, 2, 5):
            learn_bad(learner, "loss", [0, 1, 2, 3])
        if index in (1, 5, 7):
            learn_bad(learner, "scale", [0, 1, 2, 3])
        loss = learner.learn(x, y).loss
        assert loss.isfinite()
        assert learner.guarded.in_a_row == 0
    assert learner.guarded.not_finite == learner.guarded.out_of_scale == 3


# --- the curvature -------------------------------------------------------------------------------


def averages(learner: Learner) -> dict[str, Tensor]:
    """The averages of the curvature with their counts, and not the clock."""
    start = "transform.curvature.averages."
    found = {n: t for n, t in everything(learner).items() if n.startswith(start)}
    found.pop(f"{start}batches", None)
    return found


@pytest.mark.parametrize("curvature", ["kfac", "ekfac", "foof", "dense"])
@pytest.mark.parametrize("grows", [False, True], ids=["known", "new classes"])
def test_the_averages_of_the_curvature_are_rolled_back(
    curvature: str, grows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At batch 3, also where it makes the head grow; the steps had changed them."""
    options = {"lr": 0.02, "tau_step": 1e-6, "ema": 0.2, "memory": 30, "curvature": curvature}
    learner = ocar.OCAR(mlp(units=4), **options)
    for x, y in vectors(3, [0, 1, 2, 3]):
        learner.learn(x, y)
    if grows:
        learner.remember(*next(vectors(1, [4, 5])))  # the head doubles,
        learner.transform.curvature.begin()  # and the curvature makes room, or starts again
    before, during = averages(learner), []
    commit = BatchGuard.commit

    def watched(guard: BatchGuard, *given: Tensor | None) -> None:
        during.append({n: t.clone() for n, t in averages_inside(learner).items()})
        commit(guard, *given)

    monkeypatch.setattr(BatchGuard, "commit", watched)
    learn_bad(learner, "loss", [4, 5] if grows else [0, 1, 2, 3])
    assert_same(averages(learner), before)
    (inside,) = during
    learner.learn(*next(vectors(1, [0, 1, 2, 3], seed=4)))
    for changed in (inside, averages(learner)):
        assert changed.keys() > before.keys() or any(
            not torch.equal(changed[name], before[name]) for name in before
        )


def averages_inside(learner: Learner) -> dict[str, Tensor]:
    """As :func:`averages`, in the middle of the steps, where no checkpoint may be made."""
    start = "transform.curvature.averages."
    own = learner.transform.curvature._averages()
    return {start + name: tensor for name, tensor in own.items() if name != "batches"}


def test_without_a_guard_the_averages_are_those_of_the_bad_batch() -> None:
    """The negative control."""
    learner = ocar.OCAR(mlp(), lr=0.02, tau_step=1e-6, ema=0.2, memory=30, guard=None)
    for x, y in vectors(3, [0, 1, 2, 3]):
        learner.learn(x, y)
    before = averages(learner)
    with spoiled(learner):
        learner.learn(x, y)
    after = averages(learner)
    assert all(not torch.equal(after[n], before[n]) for n in before if n.endswith((".A", ".G")))


def no_inverse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ocar.accel.linalg.cholesky", lambda matrix: None)


@pytest.mark.parametrize("started", [False, True], ids=["at once", "later"])
def test_a_curvature_without_an_inverse_is_not_ignored(
    started: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = list(vectors(4, [0, 1, 2, 3]))
    for guard in (Guard(), None):
        learner = ocar.OCAR(mlp(), lr=0.02, tau_step=1e-6, ema=0.2, memory=30, guard=guard)
        for x, y in batches[: 3 if started else 0]:
            learner.learn(x, y)
        before = {name: t.clone() for name, t in learner.model.state_dict().items()}
        with monkeypatch.context() as patch:
            no_inverse(patch)
            if guard is None:
                with pytest.raises(NumericalError, match=r"of the inputs of layer '0' is not pos"):
                    learner.learn(*batches[3])
            else:
                assert learner.learn(*batches[3]).loss.isnan()
                assert learner.guarded.not_finite == 1
        assert_same(learner.model.state_dict(), before)
        learner.check()
        learner.learn(*batches[3])
        learner.check()
        assert not torch.equal(learner.model[0].weight, before["0.weight"])


def test_where_nothing_may_wait_a_missing_inverse_is_reported_by_the_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    never_wait(monkeypatch)
    learner = ocar.OCAR(mlp(), lr=0.02, tau_step=1e-6, ema=0.2, memory=30)
    batches = list(vectors(4, [0, 1, 2, 3]))
    for x, y in batches[:2]:
        learner.learn(x, y)
    learner.check()
    with monkeypatch.context() as patch:
        failed = lambda matrix: (torch.zeros_like(matrix), torch.tensor(True))  # noqa: E731
        patch.setattr("ocar.accel.linalg.inverse", failed)
        learner.learn(*batches[2])
    with pytest.warns(UserWarning, match="could not be inverted in single precision"):
        learner.check()
    learner.check()
    with spoiled(learner):
        learner.learn(*batches[3])
    learner.check()
    assert learner.guarded.not_finite == 1


# --- the rest ------------------------------------------------------------------------------------


@pytest.mark.parametrize("position", [0, 2])
@pytest.mark.parametrize("grows", [False, True], ids=["known", "new classes"])
def test_the_average_of_the_weights_is_rolled_back(position: int, grows: bool) -> None:
    learner = ocar.ER(mlp(units=2), lr=0.1, memory=30, prediction="average", average_rate=0.3)
    batches = list(vectors(4, [0, 1]))
    for x, y in batches[:position]:
        learner.learn(x, y)
    before = {name: t.clone() for name, t in learner.slow.values.items()}
    learn_bad(learner, "loss", [2, 3, 4] if grows else [0, 1])
    for name, tensor in learner.slow.values.items():
        assert torch.equal(tensor[: len(before[name])], before[name]), name
        assert tensor.isfinite().all()
    assert learner.predict(x if position else batches[0][0]).isfinite().all()


@pytest.mark.parametrize("kind", ["scale", "remember", "loss"])
def test_a_head_that_grows_with_a_batch_that_is_not_learned(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Predictions have a column for every class, and a checkpoint can be loaded."""
    never_wait(monkeypatch)
    learner = ocar.ER(mlp(units=2), lr=0.1, memory=30, prediction="average")
    for x, y in vectors(3, [0, 1]):
        learner.learn(x, y)
    if kind == "remember":
        learner.remember(*next(vectors(1, [2, 3, 4])))
    else:
        learn_bad(learner, kind, [2, 3, 4])
    assert learner.predict(x).shape == (10, len(learner.classes)) == (10, 5)
    assert_resumes(learner, list(vectors(2, [2, 3, 4])), mlp(units=2), tmp_path)


def test_prototypes_stay_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second pass of a batch sees weights that are not finite before they are rolled back."""
    never_wait(monkeypatch)
    learner = ocar.make_learner("onpro", mlp(), lr=0.01, memory=40, passes=2, replay_batch=20)
    for labels in ([0, 1],) * 5 + ([2, 3],) * 3:
        learner.learn(*next(vectors(1, labels)))
    assert learner.objective.stretches.ended == 1
    assert learner.objective.prototypes.any()
    learn_bad(learner, "loss", [2, 3])
    assert learner.objective.prototypes.isfinite().all()
    learner.save(tmp_path / "ckpt")
    assert learner.learn(*next(vectors(1, [2, 3]))).loss.isfinite()


def test_a_batch_may_be_rolled_back_in_a_model_with_several_types() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)))
    model[1].double()
    model.insert(1, Cast(torch.float64))
    model.insert(3, Cast(torch.float32))
    learner = ocar.ER(model, lr=0.1, memory=30)
    for x, y in vectors(2, [0, 1, 2, 3]):
        learner.learn(x, y)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    learn_bad(learner, "loss", [0, 1, 2, 3])
    assert_same(dict(model.state_dict()), before)


class Cast(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        return x.to(self.dtype)

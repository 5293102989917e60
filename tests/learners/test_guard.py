"""The guard leaves alone, to the bit, what it lets pass, and undoes what it refuses."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from cases import ALONE, LEGAL, Case
from torch import Tensor, nn
from toys import RAW, assert_same, convnet, everything, images, mlp, never_wait, seeded, vectors

import ocar
from ocar.errors import ConfigError, NumericalError
from ocar.evaluate import Guarded, evaluate
from ocar.guard import BatchGuard, Guard, GuardCounts, GuardWarning
from ocar.streams.arrays import ArrayStream, TaskArrays

OCAR = {"lr": 0.02, "tau_step": 1e-6, "ema": 0.2, "memory": 30, "passes": 2}


def with_dropout() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(), nn.Linear(8, 4)))


def without_guard(state: dict[str, Tensor]) -> dict[str, Tensor]:
    kept = {n: t for n, t in state.items() if not n.startswith("guard.")}
    del kept["values"]
    return kept


@pytest.mark.parametrize("case", LEGAL, ids=str)
def test_on_and_never_triggered_is_off_to_the_bit(case: Case) -> None:
    learners = [case.make(mlp(), guard=guard) for guard in (Guard(), None)]
    for learner in learners:
        for x, y in vectors(8, [0, 1, 2, 3]):
            learner.learn(x, y)
    on, off = (without_guard(everything(learner)) for learner in learners)
    assert learners[0].guarded.total == 0
    assert_same(on, off)


@pytest.mark.parametrize(("make", "stream"), [(convnet, images), (with_dropout, vectors)])
def test_measuring_touches_neither_statistics_nor_random_numbers(make, stream) -> None:
    states = []
    for guard in (Guard(), None):
        torch.manual_seed(3)
        learner = ocar.OCAR(make(), guard=guard, **OCAR)
        for x, y in stream(8, [0, 1, 2]):
            learner.learn(x, y)
        states.append(without_guard(everything(learner)) | {"global": torch.get_rng_state()})
        if guard is not None:
            assert 0 < learner.guarded.largest_kl < 10
    assert_same(*states)


@pytest.mark.parametrize("bound", [1e-4, 1e-2])
def test_a_linear_model_stays_within_the_bound(
    bound: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KL is convex in the logits, and these are linear in the weights."""
    found: list[tuple[float, float]] = []
    commit = BatchGuard.commit

    def measured(guard: BatchGuard) -> float | None:
        divergences = guard._divergences()
        return None if divergences is None else float(divergences.mean())

    def commit_and_measure(guard: BatchGuard, *given: Tensor | None) -> None:
        before = measured(guard)
        commit(guard, *given)
        if before is not None:
            found.append((before, measured(guard)))

    monkeypatch.setattr(BatchGuard, "commit", commit_and_measure)
    model = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 4))).double()
    learner = ocar.OCAR(model, guard=Guard(kl=bound), **{**OCAR, "lr": 0.5, "tau": 0.1})
    batches = [(x.double(), y) for x, y in vectors(12, [0, 1, 2, 3])]
    with pytest.warns(GuardWarning, match="shortened"):
        _learn(learner, batches)
    over = [(before, after) for before, after in found if before > bound]
    assert len(over) == learner.guarded.shortened > 3
    assert all(after <= bound * (1 + 1e-6) for _, after in over)
    assert all(after == before for before, after in found if before <= bound)
    assert learner.guarded.largest_kl == pytest.approx(max(before for before, _ in found))


def test_the_step_is_shortened_along_itself() -> None:
    ends = {}
    for guard in (None, Guard(kl=1e-3)):
        learner = ocar.OCAR(mlp(), guard=guard, **OCAR)
        batches = list(vectors(3, [0, 1, 2, 3]))
        learner.learn(*batches[0])
        start = _weights(learner)
        if guard is None:
            learner.learn(*batches[1])
        else:
            with pytest.warns(GuardWarning):
                learner.learn(*batches[1])
            share = guard.kl / learner.guarded.largest_kl
        ends[guard] = _weights(learner) - start
    whole, short = ends.values()
    torch.testing.assert_close(short, share * whole, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("case", ALONE, ids=str)
def test_a_batch_out_of_scale_leaves_nothing_behind(case: Case) -> None:
    learner = case.make(mlp())
    batches = list(vectors(6, [0, 1, 2, 3]))
    for x, y in batches[:5]:
        learner.learn(x, y)
    before = _kept(learner)
    with pytest.warns(GuardWarning, match="1 skipped for being out of scale"):
        learner.learn(batches[5][0] * 1e6, batches[5][1])
    assert_same(before, _kept(learner))
    largest = learner.guarded.largest_kl
    assert learner.guarded == GuardCounts(out_of_scale=1, in_a_row=1, largest_kl=largest)
    learner.learn(*batches[5])
    assert learner.guarded.out_of_scale == 1
    assert learner.guarded.in_a_row == 0


@pytest.mark.parametrize("method", ["er", "ocar", "ocar-slow"])
@pytest.mark.parametrize("likelihood", ["gaussian", "student-t"])
def test_targets_out_of_scale_leave_nothing_behind(method: str, likelihood: str) -> None:
    """One broken number would be in the running variance of the targets for ever."""
    given = {"likelihood": likelihood, "memory_kind": "reservoir", "memory": 30}
    given |= {} if method == "ocar" else {"lr": 0.1}
    learner = ocar.make_learner(method, mlp(1), **given)
    batches = [(x, x[:, :1]) for x, _ in vectors(5, [0, 1, 2])]
    for x, y in batches[:4]:
        learner.learn(x, y)
    before = _kept(learner)
    broken = batches[4][1].clone()
    broken[3] = -1e9
    for act in (learner.learn, learner.remember):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GuardWarning)
            act(batches[4][0], broken)
        assert_same(before, _kept(learner))
    assert learner.guarded.out_of_scale == 2
    learner.learn(*batches[4])
    assert learner.guarded.in_a_row == 0


def test_what_is_not_finite_is_taken_back() -> None:
    learner = ocar.ER(convnet(), lr=1e30, memory=30)
    batches = list(images(3, [0, 1]))
    before = _kept(learner)
    with pytest.warns(GuardWarning, match="1 skipped for not being finite"):
        learner.learn(*batches[0])
    assert_same(before, _kept(learner))
    assert len(learner.memory) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error", GuardWarning)  # the next is said at ten
        learner.learn(*batches[1])
    assert learner.guarded == GuardCounts(not_finite=2, in_a_row=2)


def test_a_curvature_that_is_not_finite_is_taken_back() -> None:
    batches = list(vectors(4, [0, 1, 2, 3]))
    huge = torch.full_like(batches[0][0], 1e25)
    for guard in (Guard(scale=None), None):
        learner = ocar.OCAR(mlp(), guard=guard, **RAW, **OCAR)
        for x, y in batches[:3]:
            learner.learn(x, y)
        before = _kept(learner)
        if guard is None:
            with pytest.raises(NumericalError, match="not finite"):
                learner.learn(huge, batches[3][1])
            continue
        with pytest.warns(GuardWarning, match="1 skipped for not being finite"):
            report = learner.learn(huge, batches[3][1])
        assert_same(before, _kept(learner))
        assert not report.loss.isfinite()
        learner.learn(*batches[3])
        assert learner.guarded.in_a_row == 0


def test_the_first_batch_sets_the_scale_whatever_it_is() -> None:
    learner = ocar.ER(mlp(), lr=1e-9, memory=30)
    batches = list(vectors(3, [0, 1]))
    learner.learn(batches[0][0] * 1e6, batches[0][1])
    learner.learn(*batches[1])
    assert learner.guarded.total == 0
    assert len(learner.memory) == 20
    with pytest.warns(GuardWarning):
        learner.remember(batches[2][0] * 1e12, batches[2][1])
    assert learner.guarded.out_of_scale == 1
    assert len(learner.memory) == 20


def test_a_new_class_in_a_refused_batch_is_learned_later() -> None:
    learner = ocar.OCAR(mlp(2), **OCAR)
    for x, y in vectors(3, [0, 1]):
        learner.learn(x, y)
    (x, y), sane = next(vectors(1, [2, 3])), next(vectors(1, [2, 3], seed=1))
    with pytest.warns(GuardWarning):
        learner.learn(x * 1e6, y)  # the head doubles here
    learner.learn(*sane)
    assert learner.predict(sane[0]).shape == (10, 4)
    assert all(p.isfinite().all() for p in learner.model.parameters())


def test_a_regression_is_bounded_where_a_bound_is_given() -> None:
    settings = {**OCAR, "likelihood": "gaussian", "memory_kind": "reservoir", "lr": 0.5}
    for guard, shortened in ((Guard(), False), (Guard(gaussian_kl=1e-3), True)):
        learner = ocar.OCAR(mlp(1), guard=guard, **settings)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GuardWarning)
            for x, _ in vectors(4, [0, 1, 2]):
                learner.learn(x, x[:, :1])
        assert (learner.guarded.shortened > 0) == shortened


def test_counts_and_settings_are_in_the_checkpoint(tmp_path: Path) -> None:
    learner = ocar.ER(mlp(), lr=0.1, memory=30, guard=Guard(scale=5.0))
    x, y = next(vectors(1, [0, 1]))
    learner.learn(x, y)
    with pytest.warns(GuardWarning):
        learner.learn(100 * x, y)
    learner.save(tmp_path / "a")
    other = ocar.load(tmp_path / "a", mlp())
    assert other.guarded == learner.guarded != GuardCounts()
    with pytest.warns(GuardWarning):
        other.learn(100 * x, y)
    assert other.guarded.out_of_scale == 2
    plain = ocar.ER(mlp(), lr=0.1, memory=30, guard=None)
    plain.learn(x, y)
    plain.save(tmp_path / "b")
    assert ocar.load(tmp_path / "b", mlp()).guard_settings is None


def test_the_loop_tells_of_it() -> None:
    x, y = next(vectors(1, [0, 1], size=60))
    bad = torch.cat([x[:30], x[30:40] * 1e9, x[40:]])
    task = TaskArrays(name="a", x_train=bad, y_train=y, x_test=x[:10], y_test=y[:10])
    stream = ArrayStream([task], batch_size=10, validation=0.0, shuffle=False)
    with pytest.warns(GuardWarning):
        events = list(evaluate(ocar.ER(mlp(), lr=0.1, memory=20), stream, online=True))
    told = [event for event in events if isinstance(event, Guarded)]
    expected = Guarded(index=3, not_finite=0, out_of_scale=1, shortened=0, copies=0, in_a_row=1)
    assert told == [expected]


@pytest.mark.parametrize("case", ALONE, ids=str)
def test_copies_of_one_sample_are_learned_and_not_remembered(case: Case) -> None:
    learner = case.make(mlp())
    for x, y in vectors(4, [0, 1, 2, 3]):
        learner.learn(x, y)
    before, batches = learner.memory.state_dict(), learner.batches
    x, y = next(vectors(1, [0, 1, 2, 3]))
    with pytest.warns(GuardWarning, match="1 not remembered for being copies"):
        learner.learn(x[:1].repeat(10, 1), y)
    after = learner.memory.state_dict()
    assert_same({"x": before["columns.x"]}, {"x": after["columns.x"]})
    assert int(after["seen"]) == int(before["seen"])
    assert learner.batches == batches + 1
    learner.learn(x[:1], y[:1])  # a batch of one is no copy
    assert learner.guarded.copies == 1
    allowed = case.make(mlp(), guard=Guard(copies=True))
    allowed.learn(x[:1].repeat(10, 1), y)
    assert len(allowed.memory) == 10
    assert allowed.guarded.total == 0


@pytest.mark.parametrize("spoil", ["step", "scale", "number", "copies"])
@pytest.mark.parametrize("method", ["er", "ocar"])
@pytest.mark.filterwarnings("ignore::ocar.guard.GuardWarning")
def test_to_decide_by_values_is_to_decide_by_branches(
    method: str, spoil: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a GPU does without waiting, done on the CPU."""
    learners = []
    for waits in (True, False):
        if not waits:
            never_wait(monkeypatch)
        guard = Guard(kl=1e-3 if spoil == "step" else 10.0)
        settings = OCAR if method == "ocar" else {"lr": 0.02, "memory": 30, "passes": 2}
        learner = (ocar.OCAR if method == "ocar" else ocar.ER)(mlp(), guard=guard, **settings)
        *batches, (x, y) = vectors(4, [0, 1, 2, 3])
        _learn(learner, batches)
        spoiled = {
            "scale": x * 1e6,
            "number": (x * torch.inf).nan_to_num(),
            "copies": 0 * x + x[:1],
        }
        learner.learn(spoiled.get(spoil, x), y)
        learner.check()
        learners.append(learner)
    one, other = learners
    assert one.guarded.shortened == other.guarded.shortened
    assert (one.guarded.shortened > 0) == (spoil == "step" and method == "ocar")
    assert (one.guarded.out_of_scale > 0) == (spoil in {"scale", "number"})
    assert (one.guarded.copies > 0) == (spoil == "copies")
    assert other.guarded.largest_kl == pytest.approx(one.guarded.largest_kl, rel=1e-4)
    for name in ("not_finite", "out_of_scale", "copies", "in_a_row"):
        assert getattr(one.guarded, name) == getattr(other.guarded, name)
    torch.testing.assert_close(_weights(other), _weights(one))
    held = [m.gather(m.slots) for m in (one.memory, other.memory)]
    if spoil == "step":
        assert torch.equal(held[0].x, held[1].x)
    else:  # the policy has placed the batch before the device refused it
        assert held[1].x.abs().max() < 100
        assert torch.equal(other.memory.labels, held[1].y)


@pytest.mark.parametrize("name", ["kl", "gaussian_kl", "scale"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_bounds_are_positive(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name}=.*larger than 0, or None"):
        Guard(**{name: value})
    with pytest.raises(ConfigError, match=f"Invalid {name}='x'. Must be a number or None."):
        Guard(**{name: "x"})


def test_a_guard_is_no_flag() -> None:
    with pytest.raises(ConfigError, match=r"Invalid guard=False. Must be a Guard, or None"):
        ocar.ER(torch.nn.Linear(6, 2), lr=0.1, guard=False)


def _learn(learner: ocar.Learner, batches: list[tuple[Tensor, Tensor]]) -> None:
    for x, y in batches:
        learner.learn(x, y)


def _weights(learner: ocar.Learner) -> Tensor:
    return torch.cat([p.detach().flatten() for p in learner.model.parameters()])


def _kept(learner: ocar.Learner) -> dict[str, Tensor]:
    """What a refused batch must leave as it was: all but clocks, draws and counts."""
    prefixes = ("model.", "memory.columns", "memory.seen", "optimizer.", "slow.")
    prefixes += ("transform.curvature.averages", "transform.average", "transform.anchor")
    state = {n: t for n, t in everything(learner).items() if n.startswith(prefixes)}
    clocks = ("num_batches_tracked", "averages.batches")
    return {n: t for n, t in state.items() if not n.endswith(clocks)}

"""Settings for a recorded stream: better than bad ones, near the best, within the time."""

from __future__ import annotations

import importlib
import itertools
import math
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import ocar
from ocar.errors import ConfigError, InputError, ModelError, NumericalError
from ocar.methods.registry import METHODS
from ocar.methods.spaces import Choice, search_space
from ocar.suggest.plan import LEAST, MOST, PREFIXES, Plan, make_plan
from ocar.suggest.recorded import Recorded
from ocar.suggest.search import Search, draw

Batches = list[tuple[Tensor, Tensor]]


def digits(seed: int) -> Batches:
    """Scikit-learn's digits, two classes at a time, in an order that the seed decides."""
    datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn is not installed")
    data = datasets.load_digits()
    x, y = torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)
    generator = torch.Generator().manual_seed(seed)
    found = []
    for pair in torch.randperm(10, generator=generator).split(2):
        rows = torch.nonzero(torch.isin(y, pair)).flatten()
        rows = rows[torch.randperm(len(rows), generator=generator)]
        found += [(x[part], y[part]) for part in rows.split(10)]
    return found


def mlp(seed: int = 0) -> nn.Module:
    return ocar.make_model("mlp", image_shape=(1, 8, 8), seed=seed)


def toy(batches: int = 24, size: int = 10) -> Batches:
    """Two classes at a time around centres of their own."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for place in range(batches):
        y = torch.randint(0, 2, (size,), generator=generator) + 2 * (3 * place // batches)
        found.append((torch.randn(size, 6, generator=generator) + 3 * torch.eye(6)[y], y))
    return found


def toy_model(outputs: int = 6) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, outputs))


def anytime_accuracy(settings: Mapping[str, Any], seed: int) -> float:
    """Mean accuracy of ER on all data so far, by an own loop over another order of the digits."""
    learner = ocar.ER(mlp(seed), **{**settings, "memory": 100, "seed": seed})
    scores, seen = [], []
    for place, (x, y) in enumerate(digits(100 + seed)):
        learner.learn(x, y)
        seen.append((x, y))
        if place % 10 == 9:
            known = torch.tensor(learner.classes)
            all_x, all_y = (torch.cat(parts) for parts in zip(*seen, strict=True))
            scores.append((known[learner.predict(all_x).argmax(1)] == all_y).double().mean())
    return float(torch.stack(scores).mean())


def test_suggested_rates_hold_on_other_orders_and_seeds() -> None:
    suggested = ocar.suggest(mlp(), digits(0), method="er", trials=9, memory=100).settings
    tried = [*({"lr": lr} for lr in (0.001, 0.01, 0.1)), suggested]
    *fixed, found = (sum(anytime_accuracy(some, seed) for seed in (1, 2)) / 2 for some in tried)
    assert found > min(fixed) + 0.2
    assert found > max(fixed) - 0.1


def test_the_same_call_finds_the_same_and_another_seed_tries_others() -> None:
    one, again = (ocar.suggest(toy_model(), toy(), trials=4, memory=30, seed=5) for _ in range(2))
    assert one == again
    other = ocar.suggest(toy_model(), toy(), trials=4, memory=30, seed=6)
    drawn = [{t.settings["lr"] for t in some.trials if t.settings} for some in (one, other)]
    assert drawn[0].isdisjoint(drawn[1])


def test_neither_model_nor_global_generators_change() -> None:
    model = toy_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    generator = torch.get_rng_state()
    ocar.suggest(model, toy(), trials=2, memory=30)
    assert torch.equal(torch.get_rng_state(), generator)
    assert model.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_code_makes_the_learner_that_was_tried() -> None:
    found = ocar.suggest(toy_model(), toy(), trials=3, memory=30, passes=2)
    assert str(found).endswith(f"\n{found.code}")
    assert "more time" not in str(found)
    made = eval(found.code, {"ocar": ocar, "model": toy_model()})
    again = ocar.OCAR(toy_model(), **found.settings)
    assert (made.settings, made.transform_settings) == (again.settings, again.transform_settings)
    assert (made.settings.memory, made.settings.passes) == (30, 2)
    assert found.settings == {**found.trials[0].settings, "memory": 30, "passes": 2}


@pytest.mark.parametrize(
    ("call", "start"),
    [
        ({"method": "er", "memory": ocar.ReservoirMemory(20)}, "ocar.ER(model, "),
        ({"method": "er-ace", "memory": 20}, "ocar.make_learner('er-ace', model, "),
        (
            {"method": "er-ace", "transform": "ocar", "memory": 20, "record": False},
            "ocar.make_learner('er-ace', model, transform='ocar', ",
        ),
    ],
)
def test_the_code_of_other_methods(call: dict[str, Any], start: str) -> None:
    found = ocar.suggest(toy_model(), toy(), trials=1, **call)
    assert found.code.startswith(start)
    made = eval(found.code, {"ocar": ocar, "model": toy_model()})
    assert made.memory.capacity == 20
    assert (made.transform_settings is None) == ("transform" not in call)


def test_a_score_is_the_mean_accuracy_on_what_was_held_out_so_far() -> None:
    """Compared with a loop of its own; what is held out is never learned."""
    stream, settings = toy(), {"lr": 0.05}
    recorded = Recorded(stream)
    search = Search(
        lambda found: ocar.ER(toy_model(), memory=30, **found), recorded, moments=len(stream)
    )
    search.run([settings], Plan(trials=1, batches=len(stream)))
    learner = ocar.ER(toy_model(), memory=30, **settings)
    held_x, held_y, scores, learned = torch.empty(0, 6), torch.empty(0).long(), [], 0
    for place, ((x, y), (kept_x, kept_y)) in enumerate(recorded.first(len(stream))):
        whole = torch.cat([x, kept_x])
        assert sorted(whole.tolist()) == sorted(stream[place][0].tolist())
        learner.learn(x, y)
        learned += len(y)
        held_x, held_y = torch.cat([held_x, kept_x]), torch.cat([held_y, kept_y])
        if len(held_y):
            known = torch.tensor(learner.classes)[learner.predict(held_x).argmax(1)]
            scores.append(float((known == held_y).double().mean()))
    assert (len(held_y), learned) == (24 * 10 // recorded.one_in, 24 * 10 * 4 // 5)
    assert search.trials[0].score == pytest.approx(sum(scores) / len(scores), abs=1e-12)


def test_a_shorter_plan_is_evaluated_as_often() -> None:
    """The beginning of a long stream is scored like a stream that ends there."""
    long, short = Recorded(toy(120)), Recorded(toy(120)[:24])
    short.one_in = long.one_in
    scores = []
    for recorded in (long, short):
        search = Search(lambda found: ocar.ER(toy_model(), **found), recorded, moments=8)
        search.run([{"lr": 0.05}], Plan(trials=1, batches=24))
        scores.append(search.trials[0].score)
    assert scores[0] == scores[1]


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=30),
    count=st.integers(1, 30),
)
def test_of_every_few_samples_in_a_row_one_is_held_out(sizes: list[int], count: int) -> None:
    ends = list(itertools.accumulate(sizes))
    numbers = torch.arange(ends[-1])
    stream = [
        (numbers[end - size : end].unsqueeze(1).double(), numbers[end - size : end] % 2)
        for size, end in zip(sizes, ends, strict=True)
    ]
    recorded = Recorded(stream)
    passes = [list(recorded.first(count)) for _ in range(2)]
    held, learned = (
        torch.cat([part[which][0].flatten() for part in passes[0]]).long().tolist()
        for which in (1, 0)
    )
    assert sorted(held + learned) == list(range(ends[min(count, len(ends)) - 1]))
    for block in range(len(held + learned) // recorded.one_in):
        assert sum(number // recorded.one_in == block for number in held) == 1
    again = torch.cat([part[1][0].flatten() for part in passes[1]]).long().tolist()
    assert again == held


def test_regression() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(6, 2, generator=generator)
    stream = []
    for _ in range(40):
        x = torch.randn(10, 6, generator=generator)
        stream.append((x, x @ weights + 0.1 * torch.randn(10, 2, generator=generator)))
    found = ocar.suggest(toy_model(2), stream, method="er", trials=12, memory=50)
    assert found.regression
    scored = [trial for trial in found.trials if not math.isnan(trial.score)]
    assert found.score == min(trial.score for trial in scored if trial.batches == 40)
    assert found.score < 1.0 < max(trial.score for trial in scored)
    made = eval(found.code, {"ocar": ocar, "model": toy_model(2)})
    made.learn(*stream[0])
    assert str(found).startswith("Mean squared error on held-out samples")


def test_batches_of_one_sample_in_numpy_will_do() -> None:
    stream = [(x[i : i + 1].numpy(), y[i : i + 1].numpy()) for x, y in toy(6) for i in range(10)]
    found = ocar.suggest(toy_model(), stream, method="er", trials=6, memory=30)
    assert (found.length, found.one_in) == (60, 5)
    assert found.score > 0.3


def test_the_defaults_are_tried_on_every_prefix_where_a_method_has_them() -> None:
    found = ocar.suggest(toy_model(), toy(), method="gdumb", trials=4, memory=30)
    first = next(trial for trial in found.trials if trial.number == 0)
    assert (first.settings, first.batches, len(found.trials)) == ({}, 24, 4)
    assert "the defaults" in str(found)


class Passes:
    """Batches that can be read again, without a length."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self.batches)


class Shuffled(Passes):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.batches = self.batches[1:] + self.batches[:1]
        return iter(self.batches)


def test_anything_that_can_be_read_again_gives_the_same() -> None:
    call: dict[str, Any] = {"method": "er", "trials": 2, "memory": 30}
    listed = ocar.suggest(toy_model(), toy(), **call)
    assert ocar.suggest(toy_model(), Passes(toy()), **call) == listed
    rows = torch.utils.data.TensorDataset(*(torch.cat(p) for p in zip(*toy(), strict=True)))
    loader = torch.utils.data.DataLoader(rows, batch_size=10)
    assert ocar.suggest(toy_model(), loader, **call) == listed


X, Y = toy(1)[0]
WRONG: list[tuple[Any, str]] = [
    ([], "The stream has no batches"),
    (iter(toy()), r"A list_iterator can be read only once.*Give list\(batches\)"),
    ((pair for pair in toy()), "A generator can be read only once"),
    (Shuffled(toy()), "Two passes over this Shuffled begin with different batches"),
    ([(X, Y.float())], r"Invalid y of torch.float32 and shape \(10,\). Labels must be integers"),
    ([(X, Y.unsqueeze(1))], r"Invalid y of torch.int64 and shape \(10, 1\)"),
    ([(X, ["cat"] * 10)], "Batch 0, its y: too many dimensions .* Must be a pair"),
    ([(X, Y, Y)], "Batch 0 is a tuple of 3 parts"),
    ([X], "Batch 0 is a Tensor"),
    ([(X, Y[:5])], "Must be equally long"),
    ([(X, Y), (X[:, :3], Y)] * 3, r"Batch 1: x must hold samples of shape \(6,\)"),
    ([(X * torch.nan, Y)] * 20, "x must be finite; 8 of 8 samples hold NaN"),
    ([(X[:1], Y[:1])], "No sample is held out in the first 1 batches"),
]


@pytest.mark.parametrize(("batches", "reason"), WRONG, ids=[reason[:30] for _, reason in WRONG])
def test_a_wrong_stream_is_refused(batches: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        ocar.suggest(toy_model(), batches, method="er", trials=2)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ({"method": "nonsense"}, "Unknown method 'nonsense'"),
        ({"transform": "nonsense"}, "Unknown transform 'nonsense'"),
        ({"nonsense": 1}, "has no setting nonsense"),
        ({"memory": 0}, "Invalid memory=0"),
        ({"method": "er", "lr": 0.1}, "Nothing to search"),
        ({"minutes": 0}, "Invalid minutes=0"),
        ({"trials": 0}, "Invalid trials=0"),
    ],
)
def test_a_wrong_call_is_refused(call: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        ocar.suggest(toy_model(), toy(), **call)


def test_a_model_is_copied_as_learners_copy_it_or_refused() -> None:
    model = toy_model()
    model.kept = model[0].weight * 2  # type: ignore[assignment]
    assert len(ocar.suggest(model, toy(), trials=1, progress=False).trials) == 1
    model.kept = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(ModelError, match="Sequential cannot be copied"):
        ocar.suggest(model, toy(), trials=1)


def test_a_model_that_cannot_learn_is_refused_before_the_stream_is_read() -> None:
    for model, reason in (
        (nn.Sequential(nn.LazyLinear(4)), "Sequential is lazy: '0.weight' has no shape yet"),
        (toy_model().requires_grad_(False), "no parameter that requires a gradient"),
        (nn.Linear, "A model must be an nn.Module"),
    ):
        with pytest.raises(ModelError, match=reason):
            ocar.suggest(model, 7, trials=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("guarded", [True, False])
def test_settings_that_diverge_are_never_suggested(guarded: bool) -> None:
    """A guard skips steps that are not finite; without it the weights become NaN."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(6, 2, generator=generator)
    xs = [torch.randn(10, 6, generator=generator) for _ in range(40)]
    more: dict[str, Any] = {} if guarded else {"guard": None}
    for scale, some in ((1.0, True), (1e25, False)):
        stream = [(scale * x, x @ weights) for x in xs]
        call = {"method": "er", "trials": 6, "memory": 50, "standardize": False, **more}
        if not some:
            with pytest.raises(NumericalError, match="All 6 trials diverged"):
                ocar.suggest(toy_model(2), stream, **call)
            continue
        found = ocar.suggest(toy_model(2), stream, **call)
        lost = [trial for trial in found.trials if math.isnan(trial.score)]
        best = next(trial for trial in found.trials if trial.settings)  # not the defaults
        assert lost
        assert min(trial.settings["lr"] for trial in lost) > best.settings["lr"]
        assert list(found.trials[-len(lost) :]) == lost


def test_an_interrupt_returns_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    home = importlib.import_module("ocar.suggest.suggestion")
    make, made = home.make_learner, []

    def interrupted(*arguments: Any, **settings: Any) -> Any:
        made.append(settings)
        if len(made) == stop:
            raise KeyboardInterrupt
        return make(*arguments, **settings)

    monkeypatch.setattr(home, "make_learner", interrupted)
    stop = 4
    found = ocar.suggest(toy_model(), toy(), method="er", trials=9)
    assert len(found.trials) == 3
    assert (found.batches, found.length) == (6, 24)
    assert found.score == max(trial.score for trial in found.trials)
    assert "3 trials on the first 6 of 24 batches" in str(found)
    assert "give more time before you rely on this" in str(found)
    made.clear()
    stop = 1
    with pytest.raises(KeyboardInterrupt):
        ocar.suggest(toy_model(), toy(), method="er", trials=9)


def test_time_is_kept_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock on which everything takes a second, the search ends by it."""
    clock = itertools.count()
    for name in ("monotonic", "perf_counter"):
        monkeypatch.setattr(f"time.{name}", lambda: float(next(clock)))
    found = ocar.suggest(toy_model(), toy(), method="er", minutes=5, memory=30)
    assert 1 <= len(found.trials) <= MOST
    assert next(clock) < 2 * 5 * 60
    assert found.batches <= found.length == 24


@given(batches=st.integers(1, 10**6), seconds=st.floats(1e-6, 1e3), budget=st.floats(1.0, 1e5))
def test_a_plan_fits_into_its_time(batches: int, seconds: float, budget: float) -> None:
    plan = make_plan(batches, seconds=seconds, budget=budget)
    assert LEAST <= plan.trials <= MOST
    assert 1 <= plan.batches <= batches
    shortened = plan.batches < batches
    assert plan.work * seconds <= budget or plan.batches <= 20
    assert not shortened or plan.trials == LEAST
    counts, lengths = zip(*plan.prefixes(), strict=True)
    assert list(counts) == sorted(counts, reverse=True)
    assert lengths[-1] == plan.batches


@pytest.mark.parametrize(
    ("trials", "prefixes"),
    [
        (1, [(1, 100)]),
        (2, [(2, 100)]),
        (4, [(4, 25), (2, 100)]),
        (9, [(9, 25), (3, 50), (2, 100)]),
        (27, [(27, 25), (9, 50), (3, 100)]),
    ],
)
def test_a_third_goes_on_and_two_are_compared_at_last(
    trials: int, prefixes: list[tuple[int, int]]
) -> None:
    assert Plan(trials=trials, batches=100).prefixes() == prefixes
    assert PREFIXES[-1] == 1


@pytest.mark.parametrize("method", METHODS)
def test_points_lie_in_the_space_and_cover_it(method: str) -> None:
    space = search_space(method)
    points = draw(space, 16, seed=3)
    for name, part in space.items():
        values = [point[name] for point in points]
        assert all(value in part for value in values)
        if isinstance(part, Choice):
            assert set(values) == set(part.values)
        elif part.log:  # of sixteen points of a Sobol sequence, one lies in each sixteenth
            share = [math.log(v / part.low) / math.log(part.high / part.low) for v in values]
            assert all(abs(16 * s - place - 0.5) < 0.6 for place, s in enumerate(sorted(share)))


class Terminal:
    """Standard error that says it is a terminal."""

    def __init__(self, *, terminal: bool) -> None:
        self.terminal = terminal
        self.text = ""

    def isatty(self) -> bool:
        return self.terminal

    def fileno(self) -> int:
        raise OSError

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None: ...


def test_progress_is_one_line_in_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def written(*, terminal: bool, progress: bool) -> str:
        stream = Terminal(terminal=terminal)
        monkeypatch.setattr(sys, "stderr", stream)
        ocar.suggest(toy_model(), toy(), method="er", trials=2, progress=progress)
        return stream.text

    assert written(terminal=False, progress=True) == written(terminal=True, progress=False) == ""
    shown = written(terminal=True, progress=True)
    assert "of 2 trials" in shown
    assert " left" in shown
    assert "\n" not in shown
    assert shown.endswith(f"\r{' ' * 79}\r")

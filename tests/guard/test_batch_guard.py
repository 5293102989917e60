"""The guard without a learner: what it trusts, lets stand, shortens, rolls back and counts."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from ocar.guard import BatchGuard, Guard, GuardCounts, GuardWarning

YES, NO = torch.tensor(True), torch.tensor(False)
LOSS = torch.tensor(1.0)

pytestmark = pytest.mark.filterwarnings("ignore::ocar.guard.GuardWarning")


def network(*layers: nn.Module) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), *layers, nn.Linear(8, 4))


def make(
    settings: Guard | None = Guard(),  # noqa: B008 (it is frozen)
    *,
    model: nn.Module | None = None,
    bound: float | None = None,
    normalize: Callable[[Tensor], Tensor] = lambda x: x.float(),
) -> BatchGuard:
    model = network(nn.Tanh()) if model is None else model
    return BatchGuard(settings, model=model, normalize=normalize, bound=bound)


def batch(scale: float = 1.0, *, seed: int = 0, n: int = 10) -> Tensor:
    return scale * torch.randn(n, 6, generator=torch.Generator().manual_seed(seed))


# --- inputs --------------------------------------------------------------------------------------


LABELS = torch.zeros(10, dtype=torch.int64)


def trusts(guard: BatchGuard, x: Tensor, y: Tensor = LABELS) -> bool:
    """Whether a batch that is fine otherwise is accepted."""
    trusted = guard.trust(x, y)
    guard.refuse(trusted)
    guard.end()
    return bool(trusted)


@pytest.mark.parametrize("first", [1e-6, 1.0, 1e6])
def test_inputs_may_be_some_times_as_large_as_any_before(first: float) -> None:
    guard = make(Guard(scale=100.0))
    start = batch(first)
    limit = 100 * max(1.0, float(start.square().mean().sqrt()))

    def scaled(size: float) -> Tensor:
        return start * (size / float(start.square().mean().sqrt()))

    assert trusts(guard, start)
    assert not trusts(guard, scaled(1.01 * limit))
    assert not trusts(guard, scaled(1.01 * limit)), "what is refused raises no bound"
    assert trusts(guard, scaled(0.99 * limit))
    assert trusts(guard, scaled(50 * limit)), "the largest so far counts"


def test_the_scale_is_that_of_the_model_s_inputs() -> None:
    guard = make(normalize=lambda x: x / 1e6)
    assert trusts(guard, batch(1e6))
    assert trusts(guard, batch(1e8))
    assert not trusts(guard, batch(1e12))


@pytest.mark.parametrize("x", [batch(1e30), batch().fill_(float("inf"))])
def test_inputs_whose_square_is_not_finite_are_never_trusted(x: Tensor) -> None:
    assert not bool(make().trust(x, LABELS)), "not even at first"
    assert bool(make(Guard(scale=None)).trust(x, LABELS))
    assert bool(make(None).trust(x, LABELS))


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_the_squares_of_many_numbers_fit_whatever_their_type(kind: torch.dtype) -> None:
    """With 16 bits their sum would be infinite."""
    guard = make(normalize=lambda x: x.to(kind))
    assert trusts(guard, batch(30.0, n=1000))
    assert not trusts(guard, batch(5e4, n=1000))


@pytest.mark.parametrize("kind", [torch.float32, torch.uint8])
def test_targets_have_a_scale_of_their_own(kind: torch.dtype) -> None:
    guard = make(Guard(scale=100.0, rescale_after=2))
    x = torch.ones(10, 6, dtype=kind)
    sizes = {2000.0: True, 1.9e5: True, 2.1e7: False, 1.8e7: True}
    for size, expected in sizes.items():
        assert trusts(guard, x, torch.full((10, 1), size)) == expected, size
    assert trusts(guard, x, torch.zeros(10, 1))
    if kind is torch.float32:
        assert not trusts(guard, 1e6 * x, torch.full((10, 1), 1e6)), "large targets do not count"
    row = [trusts(guard, x, torch.full((10, 1), -4e9)) for _ in range(3)]
    assert row == [False, False, True]
    assert not trusts(guard, x, torch.full((10, 1), 1e15))
    guard.accept_scale()
    assert trusts(guard, x, torch.full((10, 1), 1e17))


def test_a_batch_that_was_rolled_back_raises_no_bound() -> None:
    guard = make(Guard(scale=100.0))
    assert trusts(guard, batch(1.0))
    for ending in ("skipped", "broken off"):
        assert bool(guard.trust(batch(90.0), LABELS))
        happen(guard, "nan") if ending == "skipped" else guard.abandon()
        guard.end()
        assert not trusts(guard, batch(5000.0)), ending
    assert trusts(guard, batch(90.0))
    assert trusts(guard, batch(5000.0)), "the negative control"


@pytest.mark.parametrize("waits", [True, False])
def test_a_scale_that_has_changed_for_good_can_be_accepted(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not waits:
        monkeypatch.setattr("ocar.accel.known", lambda flag: None)
    guard, other = make(Guard(scale=10.0)), make(Guard(scale=10.0))
    for one in (guard, other):
        assert trusts(one, batch(1.0))
        assert [trusts(one, batch(5000.0, seed=i)) for i in range(30)] == [False] * 30
        assert one.counts().in_a_row == 30
    guard.accept_scale()
    assert trusts(guard, batch(5000.0))
    assert not trusts(guard, batch(1e6))
    guard.accept_scale()
    assert trusts(guard, batch(1.0))
    guard.accept_scale()  # nothing was refused since
    assert not trusts(other, batch(5000.0)), "the negative control"


@pytest.mark.parametrize("waits", [True, False])
def test_a_guard_with_patience_accepts_a_scale_that_stays(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not waits:
        monkeypatch.setattr("ocar.accel.known", lambda flag: None)
    guard = make(Guard(scale=10.0, rescale_after=3))
    assert trusts(guard, batch(1.0))
    assert not any(trusts(guard, batch(10.0**power)) for power in (4, 6, 8, 10, 12)), "all differ"
    assert trusts(guard, batch(1.0))
    assert [trusts(guard, batch(5000.0, seed=i)) for i in range(5)] == [False] * 3 + [True] * 2
    assert trusts(guard, batch(1.0))
    assert not trusts(guard, batch(1e30)), "its square is not finite"
    row = [trusts(guard, batch(size)) for size in (1e6, 1e6, 1.0, 1e6, 1e6, 1e6, 1e6)]
    assert row == [False, False, True, False, False, False, True], "in a row"


def test_bytes_have_one_scale() -> None:
    guard = make()
    for value in (0, 255):
        assert bool(guard.trust(torch.full((4, 6), value, dtype=torch.uint8), LABELS))


# --- the verdict ---------------------------------------------------------------------------------


class Batch:
    """The tensors of a step, and the step itself."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.weights = [torch.randn(s, generator=generator) for s in ((3, 4), (5,), (2, 3, 2, 2))]
        self.weights[2] = self.weights[2].contiguous(memory_format=torch.channels_last)
        self.statistics = [torch.randn(4, generator=generator), torch.randn(2).double()]
        self.others = [torch.randn(6, generator=generator), torch.arange(3)]
        self.before = [t.clone() for t in self.all]

    @property
    def all(self) -> list[Tensor]:
        return [*self.weights, *self.statistics, *self.others]

    def step(self) -> list[Tensor]:
        for tensor in self.all:
            tensor += 1
        return [t.clone() for t in self.all]

    def __eq__(self, tensors: object) -> bool:
        assert isinstance(tensors, list)
        return all(torch.equal(a, b) for a, b in zip(self.all, tensors, strict=True))

    __hash__ = None  # type: ignore[assignment]


def begun(guard: BatchGuard) -> Batch:
    own = Batch()
    guard.begin(own.weights, own.statistics, own.others)
    return own


def test_what_is_accepted_stays_to_the_bit() -> None:
    guard = make(bound=1.0)
    own = begun(guard)
    after = own.step()
    guard.commit(LOSS, YES.clone(), YES)
    assert own == after
    assert bool(guard.verdict.accepted)
    assert guard.counts() == GuardCounts()


SPOIL = {
    "loss": lambda own: {"loss": torch.tensor(float("nan"))},
    "infinite loss": lambda own: {"loss": torch.tensor(float("inf"))},
    "weight": lambda own: own.weights[1].fill_(float("nan")) is None,
    "one weight": lambda own: own.weights[2][1, 2, 0, 1].fill_(float("inf")) is None,
    "statistic": lambda own: own.statistics[1].fill_(float("-inf")) is None,
    "transform": lambda own: {"ok": NO.clone()},
    "scale": lambda own: {"trusted": NO},
}


@pytest.mark.parametrize("reason", SPOIL)
def test_what_is_not_finite_is_rolled_back_to_the_bit(reason: str) -> None:
    guard = make(bound=1.0)
    own = begun(guard)
    own.step()
    changed = SPOIL[reason](own) or {}
    given = {"loss": LOSS, "ok": YES.clone(), "trusted": YES} | changed
    guard.commit(**given)
    assert own == own.before
    assert not bool(guard.verdict.accepted)
    counted = "out_of_scale" if reason == "scale" else "not_finite"
    assert guard.counts() == GuardCounts(**{counted: 1, "in_a_row": 1})
    assert bool(given["ok"]), "the guard has dealt with it"


def test_others_are_rolled_back_but_need_not_be_finite() -> None:
    guard = make()
    own = begun(guard)
    own.others[0].fill_(float("nan"))
    guard.commit(LOSS, None, YES)
    assert bool(guard.verdict.accepted)
    assert own.others[0].isnan().all()


def test_steps_that_break_off_are_rolled_back() -> None:
    guard = make()
    own = begun(guard)
    own.step()
    guard.roll_back()
    assert own == own.before
    assert guard.counts() == GuardCounts(not_finite=1, in_a_row=1)
    guard.roll_back()  # nothing was begun
    guard.commit(LOSS, None, YES)
    assert guard.counts() == GuardCounts(not_finite=1, in_a_row=1)


def test_without_settings_nothing_is_done() -> None:
    guard = make(None)
    own = begun(guard)
    after = own.step()
    guard.commit(torch.tensor(float("nan")), NO.clone(), YES)
    guard.roll_back()
    assert own == after
    assert bool(guard.verdict.accepted)
    copies = batch()[:1].repeat(4, 1)
    assert bool(guard.remembers(copies, YES))
    assert guard.counts() == GuardCounts()
    assert guard.state_dict() == {}
    assert not guard.check()


# --- how far predictions move --------------------------------------------------------------------

ACTIVE = torch.tensor([True, True, True, False])


def divergence(before: nn.Module, after: nn.Module, x: Tensor, replayed: int) -> float:
    """KL(before ‖ after) of the last samples, written out."""
    with torch.no_grad():
        p, q = (m(x)[-replayed:, ACTIVE].double().softmax(1) for m in (before, after))
    return float((p * (p.log() - q.log())).sum(1).mean())


def ask_and_move(
    guard: BatchGuard, x: Tensor, by: float, *, active: Tensor | None = ACTIVE
) -> list[Tensor]:
    """Ask, then move the weights; returns where they would be."""
    parameters = list(guard.model.parameters())
    guard.begin(parameters, list(guard.model.buffers()), [])
    guard.ask(x, guard.model(x), replayed=4, active=active)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in parameters:
            parameter += by * torch.randn(parameter.shape, generator=generator)
    return [p.detach().clone() for p in parameters]


@pytest.mark.parametrize("by", [0.01, 0.3, 3.0])
def test_steps_are_shortened_by_how_far_predictions_moved(by: float) -> None:
    guard = make(bound=0.01)
    before, x = copy.deepcopy(guard.model), batch()
    whole = ask_and_move(guard, x, by)
    moved = divergence(before, guard.model, x, 4)
    guard.commit(LOSS, None, YES)
    counts = guard.counts()
    assert counts.largest_kl == pytest.approx(moved, rel=1e-3, abs=1e-6)
    assert counts.shortened == (moved > 0.01)
    share = min(1.0, 0.01 / moved)
    ends = zip(before.parameters(), guard.model.parameters(), whole, strict=True)
    for start, end, all_the_way in ends:
        torch.testing.assert_close(end, torch.lerp(start, all_the_way, share))
        if share == 1:
            assert torch.equal(end, all_the_way)


def test_a_regression_moves_by_half_the_squared_distance() -> None:
    guard = make(bound=1e9)
    before, x = copy.deepcopy(guard.model), batch()
    ask_and_move(guard, x, 0.1, active=None)
    guard.commit(LOSS, None, YES)
    with torch.no_grad():
        distance = (before(x)[-4:] - guard.model(x)[-4:]).square().sum(1).mean() / 2
    assert guard.counts().largest_kl == pytest.approx(float(distance), rel=1e-4)


def test_a_divergence_that_is_not_finite_is_rolled_back() -> None:
    guard = make(bound=1.0)
    before = copy.deepcopy(guard.model)
    ask_and_move(guard, batch(), 1e38)
    guard.commit(LOSS, None, YES)
    for one, other in zip(guard.model.parameters(), before.parameters(), strict=True):
        assert torch.equal(one, other)
    assert guard.counts() == GuardCounts(not_finite=1, in_a_row=1)


@pytest.mark.parametrize("reason", ["no bound", "no outputs", "no replay"])
def test_nothing_is_measured_where_there_is_nothing_to_measure(reason: str) -> None:
    guard = make(bound=None if reason == "no bound" else 1e-9)
    x, calls = batch(), []
    guard.begin(list(guard.model.parameters()), [], [])
    outputs = None if reason == "no outputs" else guard.model(x)
    guard.ask(x, outputs, replayed=0 if reason == "no replay" else 4, active=ACTIVE)
    with torch.no_grad():
        for parameter in guard.model.parameters():
            parameter += 1
    guard.model.register_forward_pre_hook(lambda *_: calls.append(1))
    guard.commit(LOSS, None, YES)
    assert not calls
    assert guard.counts() == GuardCounts()


def test_batchnorm_sees_the_whole_batch_and_keeps_its_statistics() -> None:
    guard = make(model=network(nn.BatchNorm1d(8), nn.ReLU()).train(), bound=1e9)
    x = batch()
    ask_and_move(guard, x, 0.1)
    buffers = {name: b.clone() for name, b in guard.model.named_buffers()}
    sizes: list[int] = []
    guard.model.register_forward_pre_hook(lambda module, given: sizes.append(len(given[0])))
    guard.commit(LOSS, None, YES)
    assert sizes == [len(x)]
    for name, buffer in guard.model.named_buffers():
        assert torch.equal(buffer, buffers[name]), name
    assert all(m.track_running_stats for m in guard.model if isinstance(m, nn.BatchNorm1d))


def test_a_model_that_draws_is_asked_in_eval_mode() -> None:
    guard = make(model=network(nn.Dropout(0.5)).train(), bound=1e-9)
    x, modes = batch(), []
    guard.begin(list(guard.model.parameters()), [], [])
    outputs = guard.model(x)
    guard.model.register_forward_pre_hook(lambda module, given: modes.append(module.training))
    state = torch.get_rng_state()
    guard.ask(x, outputs, replayed=4, active=ACTIVE)
    guard.commit(LOSS, None, YES)
    assert torch.equal(torch.get_rng_state(), state)
    assert modes == [False, False]
    assert guard.model.training
    assert guard.counts().largest_kl == 0, "the same model gives the same answer"


# --- the memory ----------------------------------------------------------------------------------


def test_copies_are_not_remembered() -> None:
    guard = make()
    copies = batch()[:1].repeat(5, 1)
    nearly = copies.clone()
    nearly[4, 5] += 1e-3
    assert bool(guard.remembers(batch(), YES))
    assert bool(guard.remembers(nearly, YES))
    assert bool(guard.remembers(copies[:1], YES)), "one sample is no copy"
    assert guard.counts().copies == 0
    assert not bool(guard.remembers(copies, YES))
    assert guard.counts().copies == 1
    assert not bool(guard.remembers(copies, NO))
    assert guard.counts().copies == 1, "it was refused before"
    assert not bool(guard.remembers(batch(), NO))
    assert bool(make(Guard(copies=True)).remembers(copies, YES))


# --- counts --------------------------------------------------------------------------------------

EVENTS = ("good", "nan", "scale", "broken", "refused", "trusted", "long", "copies")


def happen(guard: BatchGuard, event: str) -> None:
    """What a learner calls for a batch."""
    if event in ("refused", "trusted"):
        guard.refuse(torch.tensor(event == "trusted"))
        return
    if event == "copies":
        guard.remembers(torch.zeros(3, 6), YES)
        return
    if event == "long":
        ask_and_move(guard, batch(), 3.0)
        guard.commit(LOSS, None, YES)
        return
    guard.begin(list(guard.model.parameters()), [], [])
    if event == "broken":
        guard.roll_back()
    else:
        loss = torch.tensor(float("nan")) if event == "nan" else LOSS
        guard.commit(loss, None, torch.tensor(event != "scale"))


def expected(events: list[str]) -> GuardCounts:
    """A plain model of the counts."""
    row = 0
    for event in events:
        if event in ("nan", "broken", "scale", "refused"):
            row += 1
        elif event != "copies":  # that is a question about a batch, not a batch
            row = 0
    return GuardCounts(
        not_finite=events.count("nan") + events.count("broken"),
        out_of_scale=events.count("scale") + events.count("refused"),
        shortened=events.count("long"),
        copies=events.count("copies"),
        in_a_row=row,
    )


@settings(deadline=None, max_examples=30)
@given(events=st.lists(st.sampled_from(EVENTS), max_size=12))
def test_counts_are_those_of_a_plain_model(events: list[str]) -> None:
    guard = make(bound=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuardWarning)
        for number in range(len(events)):
            happen(guard, events[number])
            counts = guard.counts()
            wanted = expected(events[: number + 1])
            assert counts.skipped == wanted.skipped
            assert counts == GuardCounts(**vars(wanted) | {"largest_kl": counts.largest_kl})
    assert (guard.counts().largest_kl > 1e-3) == ("long" in events)


def test_it_warns_at_1_10_and_100_and_of_20_in_a_row() -> None:
    guard, warned = make(), []
    for number in range(1, 121):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            happen(guard, ("nan", "scale", "refused", "copies")[number % 4])
        warned += [number for w in caught if issubclass(w.category, GuardWarning)]
    assert warned == [1, 10, 26, 100]  # three of four are skipped, and none is learned
    happen(guard, "good")
    for _ in range(19):
        happen(guard, "refused")
    with pytest.warns(GuardWarning, match=r"20 batches in a row.*accept_scale\(\)"):
        happen(guard, "refused")


def test_a_check_says_once_that_batches_were_refused() -> None:
    guard = make()
    assert not guard.check()
    for event, refused in (("good", False), ("nan", True), ("copies", True), ("long", False)):
        happen(guard, event)
        assert guard.check() == refused, event
        assert not guard.check()


def test_a_restored_guard_goes_on() -> None:
    guard = make(Guard(scale=10.0), bound=1e-3)
    assert trusts(guard, batch(50.0))
    for event in ("nan", "long", "refused"):
        happen(guard, event)
    other = make(Guard(scale=10.0), bound=1e-3)
    other.load_state_dict({})
    other.load_state_dict(guard.state_dict())
    happen(guard, "good")  # the state was a copy
    assert other.counts().in_a_row == 1
    happen(other, "good")
    assert other.counts() == guard.counts()
    for one in (guard, other):
        assert trusts(one, batch(400.0))
        assert not trusts(one, batch(1e6))


def test_the_divergence_needs_no_more_than_single_precision() -> None:
    """Outputs in half precision are compared in float32."""
    guard = make(model=network(nn.Tanh()).bfloat16(), bound=1e9)
    before, x = copy.deepcopy(guard.model), batch().bfloat16()
    ask_and_move(guard, x, 0.5)
    guard.commit(torch.tensor(1.0), None, YES)
    with torch.no_grad():
        p, q = (
            functional.log_softmax(m(x)[-4:].float()[:, ACTIVE], 1) for m in (before, guard.model)
        )
    kl = float((p.exp() * (p - q)).sum(1).mean())
    assert guard.counts().largest_kl == pytest.approx(kl, rel=1e-3)

"""The evaluation loop in regression: its losses against brute force."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch
from nearest_mean import Report

from ocar.errors import InputError
from ocar.evaluate import Counts, Evaluated, Finished, Learned, TaskEnded, evaluate, summarize
from ocar.streams import ConvexStream


class MeanTarget:
    """Predicts the mean of the targets learned so far."""

    classes = ()

    def __init__(self) -> None:
        self.y = torch.empty(0, 1)

    def learn(self, x: torch.Tensor, y: torch.Tensor) -> Report:
        self.y = torch.cat([self.y, y])
        return Report(loss=torch.tensor(0.0))

    def remember(self, x: torch.Tensor, y: torch.Tensor) -> None:
        pass

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        return (self.y.mean() if len(self.y) else torch.tensor(0.0)).expand(len(x), 1)


def make_regression(*, blurry: float = 0.0) -> ConvexStream:
    return ConvexStream(tasks=3, features=4, samples=23, batch_size=5, seed=2, blurry=blurry)


def brute_losses(stream: ConvexStream, every: int) -> tuple[list[float], list[float]]:
    """L_p and L_s at each evaluation."""
    new: list[float] = []
    seen: list[float] = []
    learned: list[float] = []
    l_p = l_s = 0.0
    given: list[float] = []
    for batch in stream:
        guess = sum(learned) / len(learned) if learned else 0.0
        targets = batch.y[:, 0].tolist()
        l_p += sum((y - guess) ** 2 for y in targets) / len(targets)
        given += targets
        if batch.complete:
            learned += targets
        if (batch.index + 1) % every == 0 or batch.last:
            guess = sum(learned) / len(learned)
            l_s += sum((y - guess) ** 2 for y in given) / len(given)
            new.append(l_p)
            seen.append(l_s)
    return new, seen


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("blurry", [0.0, 0.4])
def test_regression_losses_equal_brute_force(every: int, blurry: float) -> None:
    events = list(evaluate(MeanTarget(), make_regression(blurry=blurry), every=every))
    got = [event for event in events if isinstance(event, Evaluated)]
    new, seen = brute_losses(make_regression(blurry=blurry), every)
    assert [event.l_p for event in got] == pytest.approx(new, rel=1e-5)
    assert [event.l_s for event in got] == pytest.approx(seen, rel=1e-5)
    assert all((event.correct, event.sizes) == ((), ()) for event in got)
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert (finished.summary.l_p, finished.summary.l_s) == (got[-1].l_p, got[-1].l_s)
    defined = {n for n, v in asdict(finished.summary).items() if v is not None}
    assert defined == {"l_p", "l_s", "seconds", "first_task_seconds"}
    counts = Counts(correct=(), sizes=())
    assert summarize(got, test=counts, seconds=got[-1].seconds) == finished.summary
    kinds = [type(event) for event in events]
    assert kinds.count(Learned) == 12  # of 15 batches, 3 are short
    assert kinds.count(TaskEnded) == 3


def test_regression_goes_on_after_a_stop() -> None:
    whole = [e for e in evaluate(MeanTarget(), make_regression()) if isinstance(e, Evaluated)]
    for stop in range(1, len(whole) + 1):
        learner, stream = MeanTarget(), make_regression()
        history: list[Evaluated] = []
        for event in evaluate(learner, stream):
            if isinstance(event, Evaluated):
                history.append(event)
                if len(history) == stop:
                    break
        again = make_regression()
        again.load_state_dict(stream.state_dict())
        rest = list(evaluate(learner, again, history=history))
        got = [*history, *(e for e in rest if isinstance(e, Evaluated))]
        assert [(e.l_p, e.l_s, e.seen) for e in got] == [(e.l_p, e.l_s, e.seen) for e in whole]
        assert isinstance(rest[-1], Finished)
        assert rest[-1].summary.l_s == whole[-1].l_s


def test_regression_is_not_probed() -> None:
    learner = MeanTarget()
    learner.model = torch.nn.Linear(4, 1)  # type: ignore[attr-defined]
    *_, finished = evaluate(learner, make_regression(), probe=True)
    assert isinstance(finished, Finished)
    assert finished.summary.probe is None


def test_regression_outputs_must_fit() -> None:
    class Wide(MeanTarget):
        def predict(self, x: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(x), 2)

    with pytest.raises(InputError, match=r"predicts \(5, 2\) for targets of \(5, 1\)"):
        list(evaluate(Wide(), make_regression()))

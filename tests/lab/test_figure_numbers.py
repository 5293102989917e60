"""The numbers of the figures against theorems, plain loops and single runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from made_runs import history, write_run
from stored_runs import small

import ocar_lab
from ocar.curvature import KFAC
from ocar.errors import ConfigError, InputError, NumericalError
from ocar.events import Finished
from ocar.methods.ocar import OCARTransform
from ocar.streams import ConvexStream, make_stream
from ocar_lab.paper.figures import convex, curves, grid, ratio, setup, spectrum
from ocar_lab.paper.figures.setup import Setup, Shortened
from ocar_lab.paper.figures.steps import StepsFigure, effective_step
from ocar_lab.runs.columns import Columns
from ocar_lab.runs.timeline import STEPS, sampled


def quiet(done: int, total: int) -> None:
    pass


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def test_a_shortened_stream_has_the_first_batches_of_each_task() -> None:
    whole = list(make_stream("split-digits", seed=3))
    some = list(Shortened(make_stream("split-digits", seed=3), 3))
    assert [b.index for b in some] == list(range(15))
    assert [b.task for b in some] == [task for task in range(5) for _ in range(3)]
    assert [b.last for b in some] == [False, False, True] * 5
    for task in range(5):
        theirs = [b for b in whole if b.task == task][:3]
        ours = [b for b in some if b.task == task]
        assert all(torch.equal(a.x, b.x) for a, b in zip(theirs, ours, strict=True))


def test_the_sums_are_those_of_a_plain_loop() -> None:
    found = convex.ConvexFigure(batches=12).make("er, seed 1", quiet)
    own = Setup(benchmark="convex", batches=12, seed=1)
    learner = own.learner(own.config("er"))
    seen_x, seen_y, l_p, l_s = [], [], 0.0, 0.0
    times, plastic, stable = [], [], []
    for batch in Shortened(ConvexStream(seed=1), 12):
        l_p += float(((learner.predict(batch.x) - batch.y) ** 2).mean())
        learner.learn(batch.x, batch.y)
        seen_x.append(batch.x)
        seen_y.append(batch.y)
        l_s += float(((learner.predict(torch.cat(seen_x)) - torch.cat(seen_y)) ** 2).mean())
        if (batch.index + 1) % convex.EVERY == 0 or batch.last:
            times.append(batch.index + 1)
            plastic.append(l_p)
            stable.append(l_s)
    assert list(found.times) == times
    assert found.boundaries == tuple(range(12, 121, 12))
    np.testing.assert_allclose(found.l_p, plastic, rtol=1e-5)
    np.testing.assert_allclose(found.l_s, stable, rtol=1e-5)
    assert found.total == pytest.approx(l_p + l_s, rel=1e-5)


def test_seeds_are_averaged_by_method() -> None:
    rng = np.random.default_rng(0)
    parts = {
        convex.part_name(method, seed): convex.Sums(
            times=(1, 2),
            l_p=tuple(rng.random(2).tolist()),
            l_s=tuple(rng.random(2).tolist()),
            boundaries=(2,),
        )
        for method in ("er", "ocar")
        for seed in (3, 12)
    }
    averages = convex.averages(parts)
    found = averages.filter(averages["method"] == "ocar")
    one, other = parts["ocar, seed 3"], parts["ocar, seed 12"]
    np.testing.assert_allclose(found["l_s"], (np.array(one.l_s) + other.l_s) / 2)
    np.testing.assert_allclose(found["l_p_std"], np.abs(np.array(one.l_p) - other.l_p) / 2**0.5)
    alone = convex.averages({"ocar, seed 3": one})
    assert alone["l_s_std"].to_list() == [0, 0]
    assert convex.split_name("ocar, seed 12") == ("ocar", 12)


def test_a_cell_is_a_single_run(tmp_path: Path) -> None:
    figure = grid.GridFigure(tasks=2, lrs=(0.05,), ratios=(0.5,))
    cell = figure.make("α 0.05, α/τ 0.5", quiet)
    config = small(
        method="ocar", settings={"lr": 0.05, "tau": 0.1, "tau_step": 0.0}, every="task", probe=False
    )
    told: list[object] = []
    run = ocar_lab.run(config, out=tmp_path, listen=told.append)
    assert run.summary is not None
    assert cell.average == run.summary.acc
    (end,) = [event for event in told if isinstance(event, Finished)]
    accuracies = end.accuracies
    assert cell.last == accuracies[1]
    alone = ocar_lab.run(small(**{**vars(config), "max_tasks": 1}), out=tmp_path)
    assert alone.summary is not None
    assert alone.summary.acc is not None
    assert cell.forgetting == pytest.approx(alone.summary.acc - accuracies[0])


def test_a_pair_that_diverges_is_a_cell_without_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise NumericalError("diverged")

    monkeypatch.setattr(setup, "evaluate", fail)
    figure = grid.GridFigure(batches=4, lrs=(0.1,), ratios=(10.0,))
    cell = figure.make("α 0.1, α/τ 10", quiet)
    assert (cell.average, cell.forgetting, cell.last) == (None, None, None)
    lrs, ratios, values = grid.matrix({"a": cell}, "average")
    assert (lrs, ratios) == ([0.1], [10.0])
    assert np.isnan(values).all()


def test_a_matrix_has_each_cell_in_its_place() -> None:
    cells = {
        f"{lr}, {r}": grid.Cell(lr=lr, ratio=r, average=lr * r, forgetting=r, last=lr)
        for lr in (3.0, 1.0)
        for r in (5.0, 2.0, 4.0)
    }
    lrs, ratios, values = grid.matrix(cells, "average")
    np.testing.assert_allclose(values, np.outer(ratios, lrs))
    assert lrs == [1.0, 3.0]
    assert ratios == [2.0, 4.0, 5.0]
    assert grid.centred(1.0, 3, factor=10.0) == (0.1, 1.0, 10.0)


def test_the_effective_step_tends_to_its_limits() -> None:
    lr, tau = 0.02, 1e-3
    assert effective_step(0.0, lr=lr, tau=tau) == lr / tau
    small_ones, large = np.logspace(-12, -7, 6), np.logspace(1, 6, 6)
    np.testing.assert_allclose(effective_step(small_ones, lr=lr, tau=tau), lr / tau, rtol=1e-3)
    np.testing.assert_allclose(effective_step(large, lr=lr, tau=tau), lr / large, rtol=1e-3)
    assert effective_step(tau, lr=lr, tau=tau) == pytest.approx(lr / tau / 2)
    line = StepsFigure(lrs=(lr,), taus=(tau,)).make("α 0.02, τ 0.001", quiet)
    assert all(a > b for a, b in zip(line.steps, line.steps[1:], strict=False))
    with pytest.raises(ConfigError, match="larger than 0"):
        effective_step(1.0, lr=lr, tau=0.0)


def test_the_spectrum_is_that_of_the_damped_curvature() -> None:
    figure = spectrum.SpectrumFigure(batches=2, tasks=1)
    (end,) = figure.make("ocar", quiet).ends
    learner = figure.learner(figure.config("ocar"))
    for batch in figure.stream(figure.config("ocar")):
        learner.learn(batch.x, batch.y)
    transform = learner.transform
    assert isinstance(transform, OCARTransform)
    kfac = transform.curvature
    assert isinstance(kfac, KFAC)
    tau = end.tau
    (block,) = (block for block in kfac.blocks if "hidden.1" in block.layers)
    a, g = (block.buffer.average(f"hidden.1.{key}")[0].double() for key in ("A", "G"))
    pi = float((a.trace() / len(a) / (g.trace() / len(g))).sqrt())
    eye = torch.eye(len(a), dtype=torch.float64)
    damped_a = torch.linalg.eigvalsh(a + pi * tau**0.5 * eye)
    damped_g = torch.linalg.eigvalsh(g + tau**0.5 / pi * torch.eye(len(g), dtype=torch.float64))
    expected = torch.outer(damped_g, damped_a).flatten().sort(descending=True).values
    own = end.layers["hidden.1"]
    assert own.count == len(expected)
    assert (own.ranks[0], own.ranks[-1]) == (1, own.count)
    chosen = expected[torch.tensor(own.ranks) - 1]
    np.testing.assert_allclose(own.values, chosen.numpy(), rtol=1e-3)
    counts = [ranked.count for name, ranked in end.layers.items() if name != spectrum.WHOLE]
    assert end.layers[spectrum.WHOLE].count == sum(counts)


def test_the_ratio_is_that_of_the_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    norms: list[tuple[float, float]] = []
    rewrite = KFAC.apply_

    def watched(self: KFAC) -> None:
        def norm() -> float:
            grads = [p.grad.flatten() for p in self.model.parameters() if p.grad is not None]
            return float(torch.cat(grads).double().norm())

        before = norm()
        rewrite(self)
        norms.append((before, norm()))

    monkeypatch.setattr(KFAC, "apply_", watched)
    found = ratio.RatioFigure(batches=4, lr=1e-6, ema=0.14).make("ocar", quiet)
    assert (found.lr, found.tau) == (1e-6, 1e-8)
    assert found.boundaries == (4, 8, 12, 16)
    assert len(norms) == 3 * len(found.ratios)  # three passes a batch; the last is reported
    expected = [after / before for before, after in norms[2::3]]
    np.testing.assert_allclose(found.ratios, expected, rtol=1e-4)


def test_a_run_that_diverges_says_what_to_try(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise NumericalError("Not finite.")

    monkeypatch.setattr(setup, "evaluate", fail)
    with pytest.raises(NumericalError, match="With τ = α/100 it may need a smaller lr"):
        ratio.RatioFigure(batches=4).make("ocar", quiet)


def test_a_run_of_one_task_is_stretched(tmp_path: Path) -> None:
    events = history(np.random.default_rng(0), [2], size=10)
    columns = write_run(tmp_path, events).columns
    first, second = (event.accuracy for event in events)
    times, (found,) = sampled("er", [columns], Columns.accuracy, tasks=4)
    np.testing.assert_allclose(times, np.arange(1, 4 * STEPS + 1) / STEPS)
    np.testing.assert_allclose(found, np.where(times < 4, first, second))
    empty = write_run(tmp_path, [], seed=1, finished=False).columns
    with pytest.raises(InputError, match="no evaluation"):
        sampled("er", [columns, empty], Columns.accuracy, tasks=4)


def test_a_curve_is_the_mean_and_spread_over_seeds(tmp_path: Path) -> None:
    runs = [ocar_lab.run(small(seed=seed, probe=False), out=tmp_path) for seed in (0, 1)]
    found = curves.make_curve(runs, tasks=2)
    ends = [run.history[-1].accuracy for run in runs]
    assert found.seeds == (0, 1)
    assert found.mean[-1] == pytest.approx(np.mean(ends))
    assert found.std[-1] == pytest.approx(np.std(ends, ddof=1))
    assert curves.choose(runs, "split-digits", "er", (1,)) == [runs[1]]
    assert curves.choose(runs, "split-digits", "ocar", ()) == []


def test_the_curves_of_a_figure_share_their_splits(tmp_path: Path) -> None:
    name, events = "split-cifar100", history(np.random.default_rng(0), [4, 4])
    own = write_run(tmp_path / "own", events, benchmark=name)
    published = write_run(tmp_path / "published", events, benchmark=name, splits="published")
    assert curves.choose([own], name, "er", ()) == []
    assert curves.choose([own, published], name, "er", ()) == [published]
    file = tmp_path / "curves.json"
    assert curves.drawn(file, name) == {}
    for settings, there in ((curves.settings_of(name), True), ({"benchmark": name}, False)):
        document = {
            "format": "ocar-figure",
            "version": 1,
            "settings": settings,
            "parts": {"er": {}},
        }
        file.write_text(json.dumps(document), encoding="utf-8")
        assert bool(curves.drawn(file, name)) == there

"""Copies of a learner: by ``copy``, by pickle, by a fork."""

from __future__ import annotations

import copy
import itertools
import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from cases import ALONE, Case, blobs, mlp
from torch import nn
from toys import assert_same, everything, vectors

import ocar
from ocar import synchronized
from ocar.errors import ModelError

WAYS: dict[str, Callable] = {
    "copy": copy.deepcopy,
    "pickle": lambda learner: pickle.loads(pickle.dumps(learner)),
}
BATCHES = [*blobs(2, [0, 1]), *blobs(2, [0, 1, 2], seed=1)]


PICKLED = [(case, "pickle") for case in ALONE if case.method in ("er", "ocar", "ocm")]


@pytest.mark.parametrize(("case", "way"), [*((case, "copy") for case in ALONE), *PICKLED], ids=str)
def test_a_copy_goes_on_exactly_and_by_itself(case: Case, way: str) -> None:
    learner = case.make(mlp())
    for x, y in BATCHES[:3]:
        learner.learn(x, y)
    before = everything(learner)
    copied = WAYS[way](learner)
    assert_same(everything(copied), before)
    for x, y in BATCHES[3:]:
        copied.learn(x, y)
    assert_same(everything(learner), before)  # it shares nothing with its copy
    for x, y in BATCHES[3:]:
        learner.learn(x, y)
    assert_same(everything(copied), everything(learner))


def test_objects_in_the_settings_are_copied_too() -> None:
    learner = ocar.OCAR(
        mlp(), lr=0.02, tau_step=1e-6, ema=0.2,
        memory=ocar.ReservoirMemory(20), curvature=ocar.curvature.EKFAC(basis_every=2),
    )  # fmt: skip
    for x, y in BATCHES[:3]:
        learner.learn(x, y)
    for way in WAYS.values():
        assert_same(everything(way(learner)), everything(learner))


def test_a_shallow_copy_and_a_copied_serving_are_refused() -> None:
    learner = ocar.ER(mlp(), lr=0.1)
    with pytest.raises(TypeError, match=r"same model: use copy.deepcopy"):
        copy.copy(learner)
    with pytest.raises(TypeError, match="copy the learner, and serve the copy"):
        copy.deepcopy(ocar.Serving(learner))


def test_hooks_on_parameters_are_copied_and_not_pickled() -> None:
    model = mlp()
    model[0].weight.register_hook(torch.zeros_like)
    learner = ocar.ER(model, lr=0.1)
    copied = copy.deepcopy(learner)
    copied.learn(*BATCHES[0])
    assert torch.equal(copied.model[0].weight, model[0].weight)
    with pytest.raises(TypeError, match=r"cannot be pickled: '0.weight' has a hook"):
        pickle.dumps(learner)


def test_a_model_that_cannot_be_copied_is_named() -> None:
    class Stubborn(nn.Sequential):
        def __deepcopy__(self, memo: object) -> nn.Module:
            raise RuntimeError("No.")

    learner = ocar.ER(Stubborn(nn.Linear(6, 2)), lr=0.1)
    for do in (copy.deepcopy, ocar.Serving):
        with pytest.raises(ModelError, match="Stubborn cannot be copied: No"):
            do(learner)


IN_ANY_MODE: dict[str, Callable] = {
    "forgotten": lambda learner, path, model: learner.forget(label=1) and learner,
    "loaded": lambda learner, path, model: learner.save(path) or ocar.load(path, model),
    "copied": lambda learner, path, model: copy.deepcopy(learner),
    "made": lambda learner, path, model: Case("ocar-slow").make(model),
    "exported": lambda learner, path, model: learner.export(path) == 0 and learner,
}


@pytest.mark.parametrize("done", IN_ANY_MODE)
def test_a_learner_goes_on_after_calls_in_inference_mode(done: str, tmp_path: Path) -> None:
    states, answers = [], []
    for mode in (nullcontext(), torch.inference_mode()):
        learner, model = Case("ocar-slow").make(mlp()), mlp()
        for x, y in BATCHES[:3]:
            learner.learn(x, y)
        with mode:
            learner.predict(x)
            learner = IN_ANY_MODE[done](learner, tmp_path / "file.pt2", model)
            serving = ocar.Serving(learner)
        learner.learn(*BATCHES[3])
        states.append(everything(learner))
        answers.append(serving.predict(x).logits)
    assert_same(*states)
    assert torch.equal(*answers)


# --- forks ---------------------------------------------------------------------------------------

fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
quiet = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def in_child(function: Callable[[], object]) -> str:
    """What a function returns in a forked process, or its error."""
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    def run() -> None:
        try:
            queue.put(str(function()))
        except Exception as error:  # noqa: BLE001
            queue.put(f"{type(error).__name__}: {error}")

    process = context.Process(target=run)
    process.start()
    process.join(30)
    if process.is_alive():
        process.kill()
        return "it hangs"
    return queue.get()


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.ones(1_000_000).sum()  # there are threads now
    yield
    torch.set_num_threads(before)


@fork
@quiet
@pytest.mark.usefixtures("two_threads")
def test_a_fork_waits_for_the_batch_that_another_thread_learns() -> None:
    """The child's learner is whole: it goes on as one that learned those batches alone."""
    batches = list(vectors(40, [0, 1, 2]))  # again and again, until the last child has answered
    model = nn.Sequential(*mlp(), nn.Dropout(0.0))
    model[-1].register_forward_hook(lambda *args: torch.rand(1) and None)  # it draws
    learner = ocar.ER(model, lr=0.01, memory=30)
    alone = ocar.ER(copy.deepcopy(model), lr=0.01, memory=30)
    over = threading.Event()

    def run() -> None:
        for x, y in itertools.cycle(batches):
            if over.is_set():
                return
            learner.learn(x, y)

    def weights(one: ocar.Learner) -> str:
        return repr([p.sum().item() for p in one.model.parameters()])

    def child() -> str:
        done = learner.batches
        learner.learn(*batches[done % len(batches)])
        return f"{done} {weights(learner)}"

    thread = threading.Thread(target=run)
    thread.start()
    try:
        found = [in_child(child) for _ in range(4)]
    finally:
        over.set()
        thread.join()
    expected = {}
    for done, (x, y) in enumerate(itertools.islice(itertools.cycle(batches), learner.batches + 1)):
        alone.learn(x, y)
        expected[done] = f"{done} {weights(alone)}"
    assert all(answer in expected.values() for answer in found), found


@fork
@quiet
def test_a_fork_that_cannot_wait_gives_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synchronized, "PATIENCE", 0.05)
    learner, other = ocar.ER(mlp(), lr=0.1), ocar.ER(mlp(), lr=0.1)
    x, y = BATCHES[0]
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with learner.lock:
            held.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        answer = in_child(lambda: learner.learn(x, y))
        assert in_child(lambda: other.learn(x, y)).startswith("Report(")
    finally:
        over.set()
        thread.join()
    assert answer.startswith("RuntimeError: This process was forked while another thread")
    learner.learn(x, y)  # here it works

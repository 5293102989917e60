"""Predictions from other threads: each is that of the learner after the batch it names."""

from __future__ import annotations

import copy
import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn
from toys import convnet, images, mlp, vectors

import ocar
from ocar.errors import ConfigError, InputError
from ocar.learner import Learner
from ocar.make import make_learner
from ocar.serving import Answer, Serving, _Copy
from ocar.standardize import RunningScale

READERS = 3
SETTINGS = {
    "er": {"lr": 0.05},
    "ocar": {"lr": 0.05, "tau_step": 1e-4, "ema": 0.1},
}


@pytest.fixture(autouse=True)
def switch_often() -> Iterator[None]:
    """Threads take turns all the time, so that what can go wrong between two lines does."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


def growing(make: Callable[..., Iterator], batches: int) -> Iterator[tuple[Tensor, Tensor]]:
    """A stream on which two classes more appear every eighth of it: a head of 4 doubles twice."""
    for stretch in range(8):
        yield from make(batches // 8, list(range(2 * stretch + 2)), seed=stretch)


def learner_for(method: str, model: nn.Module, **settings: object) -> Learner:
    return make_learner(method, model, memory=50, **{**SETTINGS[method], **settings})


Known = tuple[nn.Module, tuple[int, ...], RunningScale]
"""A model, the classes of its units and the scale of its inputs."""


def what_it_is(learner: Learner) -> Known:
    """A copy of what a learner predicts with, made without the help of what is tested."""
    model = copy.deepcopy(learner.model).eval()
    if learner.slow is not None:
        model.load_state_dict(learner.slow.values, strict=False)
    return model, learner.classes, copy.deepcopy(learner.intake.inputs)


def ask_while_learning(
    learner: Learner,
    stream: list[tuple[Tensor, Tensor]],
    ask: Callable[[Tensor], Answer],
    questions: Tensor,
) -> tuple[list[tuple[int, Answer]], dict[int, Known]]:
    """Several threads ask while one learns.

    Returns:
        Which question got which answer, and the model after every batch.
    """
    models = {0: what_it_is(learner)}
    over = threading.Event()
    # Not before every thread has had its first answer, nor all before the learning begins.
    ready = threading.Barrier(READERS + 1)

    def reader(seed: int) -> list[tuple[int, Answer]]:
        ready.wait()
        found, at = [], seed
        while not over.is_set():
            at = (at + 1) % len(questions)
            found.append((at, ask(questions[at : at + 1])))
            time.sleep(0.001)  # or the threads that ask leave hardly a turn to the one that learns
        return found

    with ThreadPoolExecutor(READERS) as pool:
        asked = [pool.submit(reader, seed) for seed in range(READERS)]
        ready.wait()
        try:
            for x, y in stream:
                learner.learn(x, y)
                models[learner.batches] = what_it_is(learner)
        finally:
            over.set()
        return [pair for future in asked for pair in future.result()], models


def check(
    learner: Learner,
    answers: list[tuple[int, Answer]],
    models: dict[int, Known],
    questions: Tensor,
) -> None:
    """Every answer is, bit for bit, that of the model it names."""
    assert len({answer.batches for _, answer in answers}) > len(models) / 8, "too few were asked"
    with torch.no_grad():
        for at, answer in answers:
            model, classes, scale = models[answer.batches]
            inputs = learner.intake.prepare(questions[at : at + 1], scale)
            outputs = model(inputs)[:, : len(classes)]
            assert answer.classes == classes
            assert torch.equal(answer.logits, outputs), (answer.batches, at)


@pytest.mark.parametrize("prediction", ["plain", "average"])
@pytest.mark.parametrize("method", ["er", "ocar"])
def test_answers_are_those_of_one_model(method: str, prediction: str) -> None:
    learner = learner_for(method, mlp(), prediction=prediction)
    stream, questions = list(growing(vectors, 64)), torch.randn(16, 6)
    serving = Serving(learner)
    answers, models = ask_while_learning(learner, stream, serving.predict, questions)
    check(learner, answers, models, questions)
    assert learner.model[-1].out_features == 16
    assert len(serving._copies) <= READERS + 2


def test_buffers_belong_to_the_model_too() -> None:
    learner = learner_for("ocar", convnet())
    stream = list(growing(images, 32))
    questions = torch.randint(0, 256, (16, 1, 8, 8), dtype=torch.uint8)
    serving = Serving(learner)
    answers, models = ask_while_learning(learner, stream, serving.predict, questions)
    check(learner, answers, models, questions)


def test_a_learner_itself_may_be_asked_by_other_threads() -> None:
    learner = learner_for("ocar", convnet())
    stream = list(growing(images, 32))
    questions = torch.randint(0, 256, (16, 1, 8, 8), dtype=torch.uint8)

    def ask(x: Tensor) -> Answer:
        with learner.lock:
            logits = learner.predict(x)
            return Answer(logits=logits, classes=learner.classes, batches=learner.batches)

    answers, models = ask_while_learning(learner, stream, ask, questions)
    check(learner, answers, models, questions)


def test_asking_changes_nothing_of_what_is_learned() -> None:
    alone, asked = (learner_for("ocar", convnet()) for _ in range(2))
    stream = list(growing(images, 32))
    questions = torch.randint(0, 256, (16, 1, 8, 8), dtype=torch.uint8)
    ask_while_learning(asked, stream, Serving(asked).predict, questions)
    for x, y in stream:
        alone.learn(x, y)
    left, right = alone.state(), asked.state()
    assert left[1] == right[1]
    assert all(torch.equal(tensor, right[0][name]) for name, tensor in left[0].items())


@pytest.mark.parametrize("method", ["scr", "gdumb"])
def test_a_method_that_predicts_in_its_own_way_is_asked_itself(method: str) -> None:
    settings = {"epochs": 1} if method == "gdumb" else {}
    learner = make_learner(method, mlp(8), lr=0.05, memory=50, **settings)
    serving = Serving(learner)
    for x, y in vectors(3, [4, 1]):
        learner.learn(x, y)
        answer = serving.predict(x)
        assert (answer.classes, answer.batches) == (learner.classes, learner.batches)
        assert torch.equal(answer.logits, learner.predict(x))


def test_a_copy_in_use_is_not_written_to() -> None:
    learner = learner_for("er", mlp())
    serving = Serving(learner)
    batches = list(vectors(9, [0, 1]))
    learner.learn(*batches[0])
    with serving._reading() as first:
        before = copy.deepcopy(first.models[0].state_dict())
        learner.learn(*batches[1])
        with serving._reading() as second:
            for batch in batches[2:]:
                learner.learn(*batch)
        assert second.batches == 2
        assert all(torch.equal(t, before[n]) for n, t in first.models[0].state_dict().items())
        assert first.batches == 1
    assert len(serving._copies) == 4, "one for each that was read, the current and a spare"
    assert serving.predict(batches[0][0]).batches == 9


def test_copies_of_a_smaller_head_are_given_up() -> None:
    learner = learner_for("er", mlp(2))
    serving = Serving(learner)
    with serving._reading() as first:
        for label in range(9):
            learner.learn(torch.randn(4, 6), torch.full((4,), label))
        assert serving.predict(torch.randn(3, 6)).logits.shape == (3, 9)
        assert first.models[0][-1].out_features == 2
    assert all(own.models[0][-1].out_features == 16 for own in serving._copies)
    assert len(serving._copies) <= 2


def test_every_so_many_batches() -> None:
    learner = learner_for("er", mlp())
    serving = Serving(learner, every=3)
    named = []
    for x, y in vectors(8, [0, 1]):
        learner.learn(x, y)
        named.append(serving.predict(x).batches)
    assert named == [0, 0, 3, 3, 3, 6, 6, 6]
    serving.publish()
    assert serving.predict(x).batches == 8


def test_a_restored_state_is_published() -> None:
    learner, other = (learner_for("er", mlp()) for _ in range(2))
    for x, y in vectors(5, [3, 1, 7, 2, 9]):
        learner.learn(x, y)
    serving = Serving(other)
    other.load_state(*learner.state())
    answer = serving.predict(x)
    assert (answer.batches, answer.classes) == (5, learner.classes)
    assert torch.equal(answer.logits, learner.predict(x))


def test_a_regression() -> None:
    learner = learner_for("er", mlp(2), likelihood="gaussian", memory_kind="reservoir")
    serving = Serving(learner)
    x = torch.randn(10, 6)
    learner.learn(x, torch.randn(10, 2))
    answer = serving.predict(x, chunk=3)
    assert (answer.classes, answer.batches) == ((), 1)
    torch.testing.assert_close(answer.logits, learner.predict(x))


def test_what_cannot_be_answered_is_refused_and_leaves_nobody_reading() -> None:
    learner = learner_for("er", mlp())
    serving = ocar.Serving(learner)
    learner.learn(*next(vectors(1, [0, 1])))
    with pytest.raises(InputError, match=r"samples of shape \(6,\)"):
        serving.predict(torch.randn(2, 7))
    assert [own.readers for own in serving._copies] == [0, 0]
    with pytest.raises(ConfigError, match=r"Invalid every=0\. Must be at least 1"):
        Serving(learner, every=0)


def test_a_serving_that_is_gone_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_for("er", mlp())
    serving = weakref.ref(Serving(learner))
    gc.collect()
    assert serving() is None
    monkeypatch.setattr(_Copy, "write", None)
    learner.learn(*next(vectors(1, [0, 1])))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_answers_are_those_of_one_model_on_a_gpu() -> None:
    learner = learner_for("ocar", convnet().cuda())
    stream = list(growing(images, 240))
    questions = torch.randint(0, 256, (16, 1, 8, 8), dtype=torch.uint8)
    serving = Serving(learner)
    streams = threading.local()

    def ask(x: Tensor) -> Answer:
        if not hasattr(streams, "own"):
            streams.own = torch.cuda.Stream()
        with torch.cuda.stream(streams.own):
            answer = serving.predict(x)
            return Answer(
                logits=answer.logits.clone(), classes=answer.classes, batches=answer.batches
            )

    answers, models = ask_while_learning(learner, stream, ask, questions)
    torch.cuda.synchronize()
    check(learner, answers, models, questions)

"""Streams whose samples are tuples or dictionaries: evaluated, probed, searched on and resumed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ocar
from ocar.errors import DataError, InputError
from ocar.evaluate import Evaluated, Finished, evaluate
from ocar.evaluate.probe import probe_accuracy
from ocar.streams import ArrayStream, IterableStream, TaskArrays
from ocar.streams.iterable import as_labelled
from ocar.structure import Structure, cat, equal


class Words(nn.Module):
    """The mean embedding of the words that a mask leaves."""

    def __init__(self, units: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.head = nn.Linear(8, units)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        weights = mask / mask.sum(1, keepdim=True)
        return self.head((self.words(ids) * weights.unsqueeze(-1)).sum(1))


def model(units: int = 2) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Words(units)


def samples(n: int, labels: tuple[int, ...], *, seed: int = 0) -> tuple[dict[str, Tensor], Tensor]:
    """Words that tell the label."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.tensor(labels)[torch.randint(len(labels), (n,), generator=generator)]
    ids = 4 * y[:, None] + torch.randint(4, (n, 5), generator=generator)
    mask = torch.rand(n, 5, generator=generator) < 0.7
    mask[:, 0] = True
    return {"ids": ids, "mask": mask}, y


def given(form: str, x: dict[str, Tensor]) -> Any:
    found: Any = x if form == "dictionary" else (x["ids"], x["mask"])
    if form == "arrays":
        found = {name: part.numpy() for name, part in x.items()}
    return found


def arrays(form: str) -> list[TaskArrays]:
    tasks = []
    for task, labels in enumerate(((0, 1), (2, 3))):
        x, y = samples(60, labels, seed=task)
        x_test, y_test = samples(20, labels, seed=10 + task)
        tasks.append(
            TaskArrays(x_train=given(form, x), y_train=y, x_test=given(form, x_test), y_test=y_test)
        )
    return tasks


EVERY_FORM = pytest.mark.parametrize("form", ["dictionary", "tuple", "arrays"])


@EVERY_FORM
@pytest.mark.parametrize("blurry", [0.0, 0.2])
def test_arrays_of_structures_are_evaluated(form: str, blurry: float) -> None:
    stream = ArrayStream(arrays(form), batch_size=10, validation=0.1, blurry=blurry)
    learner = ocar.OCAR(model(), memory=40)
    *events, last = evaluate(learner, stream, online=True, probe=True)
    assert isinstance(last, Finished)
    assert last.summary.acc > 0.8
    assert last.probe is not None
    assert last.probe > 0.8
    assert sum(isinstance(event, Evaluated) for event in events) == len(stream)


def test_rows_of_several_sources_stay_together() -> None:
    """A blurred batch has rows of both tasks; each row has its own ids, mask and label."""
    stream = ArrayStream(arrays("dictionary"), batch_size=10, validation=0, blurry=0.3)
    for batch in stream:
        assert torch.equal(batch.x.parts["ids"][:, 0] // 4, batch.y)


def test_one_task_of_all() -> None:
    stream = ArrayStream(arrays("tuple"), iid=True, validation=0.1)
    x, y = stream.training(0)
    assert isinstance(x, Structure)
    assert len(x) == len(y) == 108


@EVERY_FORM
def test_a_stream_of_structures_resumes(form: str) -> None:
    def make() -> ArrayStream:
        return ArrayStream(arrays(form), batch_size=7)

    whole, part, other = list(make()), make(), make()
    before = [batch for batch, _ in zip(part, range(4), strict=False)]
    other.load_state_dict({"position": 4})
    for old, new in zip(whole, [*before[:4], *other], strict=True):
        assert equal(old.x, new.x)
        assert torch.equal(old.y, new.y)


def test_a_view_gets_what_was_given() -> None:
    tasks = arrays("tuple")
    view = TaskArrays(
        x_train=tasks[0].x_train, y_train=tasks[0].y_train, view=lambda x: (x[0] + 1, x[1])
    )
    plain, seen = (ArrayStream([t], validation=0) for t in (tasks[0], view))
    for one, other in zip(plain, seen, strict=True):
        assert torch.equal(one.x.parts["0"] + 1, other.x.parts["0"])
        assert torch.equal(one.x.parts["1"], other.x.parts["1"])


def test_loaders_collate_tuples_and_dictionaries() -> None:
    x, y = samples(30, (0, 1))
    rows = [({"ids": x["ids"][i], "mask": x["mask"][i]}, y[i]) for i in range(30)]
    named = IterableStream(DataLoader(rows, batch_size=10))  # type: ignore[arg-type]
    pairs = [((x["ids"][i], x["mask"][i]), y[i]) for i in range(30)]
    placed = IterableStream(DataLoader(pairs, batch_size=10))  # type: ignore[arg-type]
    for stream in (named, placed):
        learner = ocar.ER(model(), lr=0.3, memory=20)
        for batch in stream:
            learner.learn(batch.x, batch.y)
        found = cat([batch.x for batch in IterableStream([(b.x, b.y) for b in _again(stream)])])
        assert next(iter(found.parts.values())).equal(x["ids"])
    plain = IterableStream(DataLoader(TensorDataset(x["ids"].float(), y), batch_size=10))
    assert all(isinstance(batch.x, Tensor) for batch in plain)


def _again(stream: IterableStream) -> IterableStream:
    stream.reset()
    return stream


def test_settings_are_searched_on_structures() -> None:
    batches = [samples(20, (0, 1, 2, 3), seed=i) for i in range(20)]
    found = ocar.suggest(model(), batches, trials=2, memory=30, progress=False)
    assert found.score > 0.5
    with pytest.raises(InputError, match="begin with different batches"):
        ocar.suggest(model(), Changing(), trials=2)


class Changing:
    """Batches that are others in every pass."""

    passes = 0

    def __iter__(self):
        self.passes += 1
        x, y = samples(20, (0, 1))
        x["mask"] = torch.roll(x["mask"], self.passes, dims=0)
        return iter([(x, y)])


def test_a_module_of_several_inputs_is_probed() -> None:
    train, test = samples(80, (0, 1, 2)), samples(40, (0, 1, 2), seed=1)
    both = [(Structure(x), y) for x, y in (train, test)]
    assert probe_accuracy(model(), *both) > 0.8


def test_wrong_structures_are_refused() -> None:
    x, y = samples(10, (0, 1))
    with pytest.raises(InputError, match=r"The batch has x Structure\(.+\) and y \(3,\)"):
        as_labelled((x, y[:3]))
    with pytest.raises(DataError, match=r"x\['ids'\] is torch.complex64"):
        TaskArrays(x_train={"ids": x["ids"] + 0j}, y_train=y)
    first = TaskArrays(x_train=x, y_train=y)
    other = TaskArrays(x_train={"ids": x["ids"]}, y_train=y)
    with pytest.raises(DataError, match="Must be the same in all tasks"):
        ArrayStream([first, other])

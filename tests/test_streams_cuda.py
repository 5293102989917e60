"""Streams, evaluation and probe with everything on a CUDA device."""

from __future__ import annotations

import time

import pytest
import torch

import ocar
from ocar.datasets import Arrays
from ocar.evaluate import Evaluated, Finished
from ocar.evaluate.logistic import fit_probe
from ocar.streams import ArrayStream, ClassIncremental, ConvexStream, DomainIncremental, TaskArrays
from ocar.streams.views import Permute, Rotate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # torch says so once, when the first backward pass of a process begins with a product.
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),
]


def make_tasks() -> list[TaskArrays]:
    generator = torch.Generator().manual_seed(0)

    def part(n: int) -> torch.Tensor:
        return torch.randint(0, 256, (n, 1, 8, 8), generator=generator, dtype=torch.uint8)

    return [
        TaskArrays(
            x_train=part(53),
            y_train=torch.arange(53) % 4,
            x_test=part(12),
            y_test=torch.arange(12) % 4,
            view=view,
        )
        for view in (None, Permute(1), Rotate(90.0))
    ]


def test_streams_give_the_same_batches_on_the_device() -> None:
    tasks = make_tasks()
    arrays = Arrays(
        name="made",
        x_train=tasks[0].x_train,
        y_train=tasks[0].y_train,
        x_test=tasks[0].x_test,
        y_test=tasks[0].y_test,
        domain_train=torch.arange(53) % 2,
        domain_test=torch.arange(12) % 2,
        domains=("a", "b"),
    )
    for host, device in (
        (ArrayStream(tasks, blurry=0.3), ArrayStream([t.to("cuda") for t in tasks], blurry=0.3)),
        (DomainIncremental(arrays), DomainIncremental(arrays.to("cuda"))),
        (
            ClassIncremental(arrays, tasks=2, splits="published"),
            ClassIncremental(arrays.to("cuda"), tasks=2, splits="published"),
        ),
        (ConvexStream(tasks=2), ConvexStream(tasks=2, device="cuda")),
    ):
        for mine, theirs in zip(host, device, strict=True):
            assert theirs.x.is_cuda
            assert theirs.y.is_cuda == theirs.y.is_floating_point()  # labels are wanted on the host
            assert torch.equal(mine.x, theirs.x.cpu())
            assert torch.equal(mine.y, theirs.y.cpu())


def test_a_run_on_the_device() -> None:
    stream = ArrayStream([task.to("cuda") for task in make_tasks()])
    model = ocar.make_model("mlp", image_shape=(1, 8, 8)).cuda()
    learner = ocar.ER(model, lr=0.05, memory=20)
    events = list(ocar.evaluate(learner, stream, online=True, probe=True))
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert finished.sizes == (12, 12, 12)
    assert finished.summary.probe is not None
    assert sum(isinstance(event, Evaluated) for event in events) == len(stream)


def test_a_probe_of_the_benchmarks_size_takes_little_time() -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    n, d, classes = 142_500, 160, 100
    y = torch.arange(n, device="cuda") % classes
    centres = 0.3 * torch.randn(classes, d, generator=generator, device="cuda")
    x = (centres[y] + torch.randn(n, d, generator=generator, device="cuda")).relu()
    start = time.perf_counter()
    probe = fit_probe(x, y)
    seconds = time.perf_counter() - start
    assert seconds < 60
    small = fit_probe(x[:5000].cpu().double(), y[:5000].cpu())
    device = fit_probe(x[:5000], y[:5000])
    assert device.objective == pytest.approx(small.objective, abs=1e-3)
    assert float((probe.predict(x) == y).double().mean()) > 0.5

"""The stream, the learner and the threads of a configuration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

from ocar.accel import Ranks
from ocar.guard import Guard
from ocar.learner import Learner
from ocar.models import make_model
from ocar.streams.base import TaskStream
from ocar.streams.benchmarks import get_benchmark, make_stream
from ocar_lab.experiment.config import RunConfig
from ocar_lab.experiment.limit import Limited


def make_config_stream(config: RunConfig, device: torch.device) -> TaskStream:
    """The stream of a configuration, with its limits."""
    stream: TaskStream = make_stream(
        config.benchmark,
        seed=config.seed,
        data_root=config.data_root,
        iid=config.iid,
        blurry=config.blurry,
        splits=config.splits,
        device=device,
    )
    if config.max_tasks is None and config.max_batches is None:
        return stream
    return Limited(stream, max_tasks=config.max_tasks, max_batches=config.max_batches)


def make_config_learner(
    config: RunConfig, device: torch.device, ranks: Ranks | None = None
) -> Learner:
    """The learner of a configuration, with a new model; on several ranks, if there are any."""
    benchmark = get_benchmark(config.benchmark)
    model = make_model(**benchmark.model_settings(), seed=config.seed)
    settings, transform = config.resolve()
    return Learner(
        model.to(device),
        settings,
        transform=transform,
        record=config.record,
        guard=Guard() if config.guard else None,
        ranks=ranks,
    )


def find_device(config: RunConfig, ranks: Ranks | None = None) -> torch.device:
    """The device of a configuration; each rank has a GPU of its own."""
    device = config.resolve_device()
    return device if ranks is None or device.type == "cpu" else ranks.device


@contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """Limit the threads on the CPU, in PyTorch and in NumPy, inside the ``with`` statement."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        from threadpoolctl import threadpool_limits

        blas = threadpool_limits(count, user_api="blas")
    except ImportError:  # it may be missing on a machine with a GPU
        blas = nullcontext()
    try:
        with blas:
            yield
    finally:
        torch.set_num_threads(before)

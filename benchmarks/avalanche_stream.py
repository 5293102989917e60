"""The stream of digits in Avalanche 0.6: its ``Naive`` strategy with its ``ReplayPlugin``."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ocar.errors import MissingPackageError
from ocar.methods.registry import preset_settings
from ocar.models import make_model


def avalanche_stream(x: Tensor, y: Tensor, *, memory: int) -> Callable[[], object]:
    """What learns one batch of ten when it is called, once the memory is full.

    Args:
        x: Digits, ``(n, 1, 28, 28)`` uint8.
        y: Their labels.
        memory: Samples that the memory holds.

    Raises:
        MissingPackageError: Avalanche is not there or does not import.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own, and of the packages that it imports
        batches, strategy = itertools.cycle(_experiences(x, y)), _strategy(memory)

    def learn() -> None:
        with warnings.catch_warnings(record=True):  # it says at each batch what it will remove
            strategy.train(next(batches))

    for _ in range(memory // 10):
        learn()
    return learn


def _experiences(x: Tensor, y: Tensor) -> list[Any]:
    """One experience for each ten samples, as online streams have them there."""
    try:
        from avalanche.benchmarks import benchmark_from_datasets
        from avalanche.benchmarks.scenarios.online import split_online_stream
        from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
    except ImportError as error:
        raise MissingPackageError(f"{_reason(error)}: pip install avalanche-lib==0.6.0") from error
    except RuntimeError as error:  # torchvision beside a torch that it was not built for
        raise MissingPackageError(f"avalanche-lib does not import here: {error}") from error
    tensors = torch.utils.data.TensorDataset(x.float() / 255, y)
    targets = DataAttribute(y.tolist(), "targets", use_in_getitem=False)
    tasks = DataAttribute([0] * len(y), "targets_task_labels", use_in_getitem=True)
    data = AvalancheDataset([tensors], data_attributes=[targets, tasks])
    benchmark = benchmark_from_datasets(train=[data])
    return list(split_online_stream(benchmark.train_stream, experience_size=10, shuffle=False))


def _reason(error: ImportError) -> str:
    package = (error.name or "").partition(".")[0]
    return "not installed" if package == "avalanche" else f"avalanche-lib needs {package}"


def _strategy(memory: int) -> Any:
    from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin
    from avalanche.training.storage_policy import ReservoirSamplingBuffer
    from avalanche.training.supervised import Naive

    model = make_model("mlp", image_shape=(1, 28, 28))
    replay = ReplayPlugin(
        mem_size=memory,
        batch_size=10,
        batch_size_mem=10,
        storage_policy=ReservoirSamplingBuffer(max_size=memory),
    )
    return Naive(
        model=model,
        optimizer=torch.optim.SGD(
            model.parameters(), lr=preset_settings("split-mnist", "er")["lr"]
        ),
        criterion=torch.nn.CrossEntropyLoss(),
        train_mb_size=10,
        train_epochs=3,
        device="cpu",
        plugins=[replay],
        evaluator=EvaluationPlugin(),
    )

"""Other libraries: nngeometry's K-FAC factors and inverses, Avalanche's replay."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.results import Result, Skipped, Target, compare
from benchmarks.setup import IMAGE, Setup, slim_resnet
from benchmarks.timing import take_turns
from ocar.curvature import KFAC
from ocar.errors import MissingPackageError
from ocar.models import make_model

BATCH, DAMPING = 20, 1e-3


def measure_nngeometry(setup: Setup) -> Iterator[Result]:
    """Their time over ours, from the forward pass to the inverses of all factors."""
    model = slim_resnet(setup, classes=setup.library_classes)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, *IMAGE, generator=generator).to(setup.device)
    kfac = KFAC(model, damping=DAMPING, ema=0.1)

    def ours() -> None:
        with kfac.record():
            logits = model(x)
        kfac.update(logits)

    try:
        theirs = _nngeometry(model, x, layers=kfac.layers)
    except ImportError:
        yield Skipped(name="nngeometry", reason="not installed: pip install nngeometry==0.4")
        return
    sides = {"ours": ours, "nngeometry's FIM and inverse": theirs}
    # One call of theirs takes ten seconds and more on a CPU: fewer turns, longer ones for ours.
    times = take_turns(sides, setup, turns=min(setup.turns, 3), least=10 * setup.least)
    has_target = setup.usual and not setup.on_gpu
    yield compare(
        "nngeometry",
        times,
        "nngeometry's FIM and inverse",
        "ours",
        unit="s from the forward pass to the inverses",
        note=f"{setup.network}, {setup.library_classes} classes, 20 images; ours not recorded",
        target=Target(relation="at least", value=15) if has_target else None,
    )


def _nngeometry(
    model: torch.nn.Module, x: Tensor, *, layers: Collection[str]
) -> Callable[[], object]:
    """Their factors and inverses of the same layers: without BatchNorm."""
    from nngeometry.layercollection import LayerCollection
    from nngeometry.metrics import FIM
    from nngeometry.object.pspace import PMatKFAC
    from torch.utils.data import DataLoader, TensorDataset

    loader = DataLoader(TensorDataset(x), batch_size=BATCH)
    covered = LayerCollection()
    for name, module in model.named_modules():
        if name in layers:
            covered.add_layer_from_model(model, module)
    options = {"variant": "classif_logits", "device": x.device, "layer_collection": covered}
    return lambda: FIM(model, loader, PMatKFAC, **options).inverse(DAMPING)


def avalanche_stream(x: Tensor, y: Tensor, *, memory: int, lr: float) -> Callable[[], object]:
    """Avalanche 0.6: a function that learns one batch of ten at each call, with a full memory.

    Digits are ``(n, 1, 28, 28)`` uint8; the memory holds ``memory`` of them.

    Raises:
        MissingPackageError: Avalanche is not installed or does not import.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own warnings and those of its dependencies
        batches, strategy = itertools.cycle(_experiences(x, y)), _strategy(memory, lr)

    def learn() -> None:
        with warnings.catch_warnings(record=True):  # it warns of deprecations at each batch
            strategy.train(next(batches))

    for _ in range(memory // 10):
        learn()
    return learn


def _experiences(x: Tensor, y: Tensor) -> list[Any]:
    """One experience for each ten samples, as in Avalanche's online streams."""
    try:
        from avalanche.benchmarks import benchmark_from_datasets
        from avalanche.benchmarks.scenarios.online import split_online_stream
        from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        reason = "not installed" if package == "avalanche" else f"avalanche-lib needs {package}"
        raise MissingPackageError(f"{reason}: pip install avalanche-lib==0.6.0") from error
    except RuntimeError as error:  # a torchvision that was built for another torch
        raise MissingPackageError(f"avalanche-lib does not import here: {error}") from error
    tensors = torch.utils.data.TensorDataset(x.float() / 255, y)
    targets = DataAttribute(y.tolist(), "targets", use_in_getitem=False)
    tasks = DataAttribute([0] * len(y), "targets_task_labels", use_in_getitem=True)
    data = AvalancheDataset([tensors], data_attributes=[targets, tasks])
    benchmark = benchmark_from_datasets(train=[data])
    return list(split_online_stream(benchmark.train_stream, experience_size=10, shuffle=False))


def _strategy(memory: int, lr: float) -> Any:
    from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin
    from avalanche.training.storage_policy import ReservoirSamplingBuffer
    from avalanche.training.supervised import Naive

    model = make_model("mlp", image_shape=(1, 28, 28))
    buffer = ReservoirSamplingBuffer(max_size=memory)
    replay = ReplayPlugin(mem_size=memory, batch_size=10, batch_size_mem=10, storage_policy=buffer)
    return Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=lr),
        criterion=torch.nn.CrossEntropyLoss(),
        train_mb_size=10,
        train_epochs=3,
        device="cpu",
        plugins=[replay],
        evaluator=EvaluationPlugin(),
    )

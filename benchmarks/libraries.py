"""Factors and inverses against those of nngeometry, an independent implementation of K-FAC."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import torch

from benchmarks.results import Result, Skipped, Target, compare
from benchmarks.setup import IMAGE, Setup, slim_resnet
from benchmarks.timing import Side, take_turns
from ocar.curvature import KFAC

BATCH, DAMPING = 20, 1e-3
MOST_TURNS = 3
"""A turn of theirs, a single call, takes ten seconds and more on a CPU."""

LONGER = 10
"""How much longer a turn is than others: ours is then called several times in one too."""


def measure_nngeometry(setup: Setup) -> Iterator[Result]:
    """Their time over ours, from the forward pass to the inverses of all factors."""
    try:
        ours, theirs = _sides(setup)
    except ImportError:
        yield Skipped(name="nngeometry", reason="not installed: pip install nngeometry==0.4")
        return
    turns = min(setup.turns, MOST_TURNS)
    least = LONGER * setup.least
    times = take_turns([ours, theirs], turns=turns, least=least, device=setup.device)
    on_cpu = setup.device.type == "cpu"
    yield compare(
        "nngeometry",
        (theirs.name, times[theirs.name]),
        (ours.name, times[ours.name]),
        unit="s from the forward pass to the inverses",
        note=f"{setup.network}, {setup.library_classes} classes, 20 images; ours not captured",
        target=Target(relation="at least", value=15) if setup.usual and on_cpu else None,
    )


def _sides(setup: Setup) -> tuple[Side, Side]:
    model = slim_resnet(setup, classes=setup.library_classes)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, *IMAGE, generator=generator).to(setup.device)
    kfac = KFAC(model, damping=DAMPING, ema=0.1)

    def ours() -> None:
        with kfac.capture():
            logits = model(x)
        kfac.update(logits)
        kfac.refresh()

    theirs = _nngeometry(model, x, layers=kfac.blocks)
    return Side("ours", ours), Side("nngeometry's FIM and inverse", theirs)


def _nngeometry(
    model: torch.nn.Module, x: torch.Tensor, *, layers: Collection[str]
) -> Callable[[], object]:
    """Their factors and inverses, of the same layers: not of BatchNorm."""
    from nngeometry.layercollection import LayerCollection
    from nngeometry.metrics import FIM
    from nngeometry.object.pspace import PMatKFAC
    from torch.utils.data import DataLoader, TensorDataset

    loader = DataLoader(TensorDataset(x), batch_size=BATCH)
    covered = LayerCollection()
    for name, module in model.named_modules():
        if name in layers:
            covered.add_layer_from_model(model, module)

    def call() -> object:
        fisher = FIM(
            model,
            loader,
            PMatKFAC,
            variant="classif_logits",
            device=x.device,
            layer_collection=covered,
        )
        return fisher.inverse(DAMPING)

    return call

"""The factors of all layers in one buffer, against one layer after another.

The steps that a GPU runs as a captured graph are made here on the CPU, one stream at a time.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from ocar.curvature.compiled_pool import make_pool
from ocar.curvature.pool import STACKED, FactorPool
from torch import Tensor, nn
from torch.testing import assert_close

from ocar.curvature import KFAC, kfac, linalg
from ocar.curvature.blocks import KroneckerBlock

EXACT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}
TAU, EMA = 1e-2, 0.3


class OneStream:
    """Lanes where there is one stream, which runs everything at once."""

    def __init__(self, device: torch.device) -> None:
        pass

    def run(self, jobs: Iterable[tuple[int, Callable[[], object]]], *, keep: object = None) -> None:
        for _, job in jobs:
            job()

    def start(self, cost: int, job: Callable[[], object], *, keep: object = None) -> None:
        job()

    def first(self, *, keep: object = None) -> AbstractContextManager[None]:
        return nullcontext()

    def run_between(self, job: Callable[[], object]) -> None:
        job()

    def join(self) -> None:
        pass


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(4, 8, 3, groups=2, bias=True),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, bias=False),
        nn.Flatten(),
        nn.Linear(8 * 4 * 4, 6),
    ).double()


def make_kfac(model: nn.Module, **options: object) -> KFAC:
    own: dict[str, object] = {"fisher": "exact", "damping": TAU, "ema": EMA, **options}
    return KFAC(model, **own)  # type: ignore[arg-type]


def update(
    kfac: KFAC,
    seed: int,
    active: Tensor | None = None,
    *,
    accepted: Tensor | None = None,
    scale: float = 1.0,
) -> None:
    x = torch.randn(5, 4, 8, 8, generator=torch.Generator().manual_seed(seed)).double()
    with kfac.capture():
        outputs = kfac.model(x * scale)
    weights = torch.tensor([1.0, 1, 2, 2, 3])
    kfac.update(outputs, weights=weights, active=active, accepted=accepted)


def true_inverses(block: KroneckerBlock) -> tuple[Tensor, Tensor]:
    a, g = block.averages["A"], block.averages["G"]
    damping_a, damping_g = linalg.factored_damping(a, g, TAU, g_dim=block.active_outputs)
    factor = linalg.damped_factor(a, damping_a, name="A")
    return torch.linalg.inv(factor), linalg.damped_inverse(g, damping_g, name="G")


def kronecker(kfac: KFAC) -> dict[str, KroneckerBlock]:
    return {n: b for n, b in kfac.blocks.items() if isinstance(b, KroneckerBlock)}


def into_pool(kfac: KFAC) -> FactorPool:
    for block in kronecker(kfac).values():
        block._inverse = true_inverses(block)
    kfac._pool = FactorPool(kronecker(kfac), head=kfac.head)
    return kfac._pool


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> Callable[[KFAC, int, Tensor | None], None]:
    """An update as it is recorded for a graph."""

    def run(curvature: KFAC, seed: int, active: Tensor | None = None, **options: object) -> None:
        monkeypatch.setattr(kfac, "is_capturing", lambda device: True)
        monkeypatch.setattr(kfac, "Lanes", OneStream)
        curvature.clock = torch.tensor(1.0)
        update(curvature, seed, active, **options)  # type: ignore[arg-type]
        assert curvature._finish is not None
        curvature._finish()
        monkeypatch.undo()

    return run


@pytest.fixture
def single_by_default() -> Iterator[None]:
    """Numbers of no type become single precision, as in a program that sets nothing."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(before)


def some(count: int) -> Tensor:
    return torch.arange(6) < count


@pytest.mark.parametrize("stacked", [1, STACKED])
@pytest.mark.parametrize("options", [{}, {"norm_layers": True}, {"weighting": "both"}], ids=str)
@pytest.mark.parametrize("classes", [(6, 6), (4, 4), (4, 5)])
@pytest.mark.parametrize("accepted", [None, torch.tensor(True)], ids=["unasked", "accepted"])
@pytest.mark.usefixtures("single_by_default")
def test_as_one_layer_after_another(
    captured: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    stacked: int,
    options: dict[str, object],
    classes: tuple[int, int],
    accepted: Tensor | None,
) -> None:
    monkeypatch.setattr("ocar.curvature.pool.STACKED", stacked)
    ours, theirs = make_kfac(make_model(), **options), make_kfac(make_model(), **options)
    for each in (ours, theirs):
        update(each, 1, some(classes[0]))
        each.refresh()
    into_pool(ours)
    monkeypatch.undo()
    captured(ours, 2, some(classes[1]), accepted=accepted)
    update(theirs, 2, some(classes[1]))
    theirs.refresh()
    for name, block in ours.blocks.items():
        for key, average in theirs.blocks[name].averages.items():
            assert_close(block.averages[key], average, **EXACT, msg=f"{name}.{key}")
    for name, block in kronecker(theirs).items():
        assert_close(kronecker(ours)[name]._inverse, true_inverses(block), **EXACT)
    assert ours._trouble.tolist() == [0, 0]


@pytest.mark.parametrize("norm_layers", [False, True])
@pytest.mark.parametrize(("accepted", "scale"), [(False, 1.0), (True, 1e200), (False, 1e200)])
def test_what_is_not_accepted_leaves_the_averages(
    captured: Callable[..., None], accepted: bool, scale: float, norm_layers: bool
) -> None:
    kfac = make_kfac(make_model(), norm_layers=norm_layers)
    update(kfac, 1, some(4))
    kfac.refresh()
    into_pool(kfac)
    before = {n: {k: t.clone() for k, t in b.averages.items()} for n, b in kfac.blocks.items()}
    inverses = {n: [t.clone() for t in b._inverse] for n, b in kronecker(kfac).items()}
    captured(kfac, 2, some(5), accepted=torch.tensor(accepted), scale=scale)
    # A block that is not in the pool stands for itself, and its statistics may be finite.
    for name, block in (kronecker(kfac) if accepted else kfac.blocks).items():
        assert_close(dict(block.averages), before[name], rtol=0, atol=0)
    for name, block in kronecker(kfac).items():
        assert_close(list(block._inverse), inverses[name], **EXACT)
    assert kfac._trouble.tolist() == [0, 0]
    captured(kfac, 3, some(5), accepted=torch.tensor(True))
    assert not torch.equal(kfac.blocks["3"].averages["A"], before["3"]["A"])


@pytest.mark.parametrize("fisher", ["sketched(2)", "top(2)", "sampled(2)"])
def test_what_is_not_accepted_draws_the_same_random_numbers(
    captured: Callable[..., None], fisher: str
) -> None:
    ours, theirs = (make_kfac(make_model(), fisher=fisher) for _ in range(2))
    for each in (ours, theirs):
        update(each, 1)
        each.refresh()
    into_pool(ours)
    before = ours.generator.get_state()
    captured(ours, 2, accepted=torch.tensor(False))
    update(theirs, 2, accepted=torch.tensor(False))
    assert torch.equal(ours.generator.get_state(), theirs.generator.get_state())
    assert not torch.equal(ours.generator.get_state(), before)


def test_a_pool_changes_nothing_by_itself() -> None:
    kfac = make_kfac(make_model())
    update(kfac, 1)
    before = {n: [t.clone() for t in b.averages.values()] for n, b in kfac.blocks.items()}
    pool = into_pool(kfac)
    for name, block in kronecker(kfac).items():
        assert_close(list(block.averages.values()), before[name], rtol=0, atol=0)
        assert_close(block._inverse, true_inverses(block), **EXACT)
    assert pool.fits(kronecker(kfac))


def test_on_a_cpu_there_are_no_kernels_of_our_own() -> None:
    kfac = make_kfac(make_model())
    update(kfac, 1)
    for block in kronecker(kfac).values():
        block._inverse = true_inverses(block)
    pool = make_pool(kronecker(kfac), head=kfac.head)
    assert type(pool) is FactorPool
    assert not pool.precondition_()


def test_other_tensors_are_noticed() -> None:
    kfac = make_kfac(make_model())
    update(kfac, 1)
    pool = into_pool(kfac)
    block = kfac.blocks["3"]
    block.averages["A"] = block.averages["A"].clone()
    assert not pool.fits(kronecker(kfac))


def test_a_factor_of_zeros_is_not_balanced(
    captured: Callable[[KFAC, int, Tensor | None], None],
) -> None:
    kfac = make_kfac(make_model(), ema=1.0)
    update(kfac, 1)
    into_pool(kfac)
    with torch.no_grad():
        kfac.model.get_submodule("5").get_parameter(
            "weight"
        ).zero_()  # then no gradient reaches the layers before
    captured(kfac, 2, None)
    block = kronecker(kfac)["3"]
    assert not block.averages["G"].any()
    assert_close(block._inverse, true_inverses(block), **EXACT)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1e3])
def test_the_old_inverses_stay_when_one_fails(bad: float) -> None:
    kfac = make_kfac(make_model())
    update(kfac, 1)
    pool = into_pool(kfac)
    before = pool._inverses.clone()
    kfac.blocks["3"].averages["A"][0, 5, 5] = bad
    infinite = pool.mix(0.0, 0.0, torch.tensor(TAU), accepted=pool.accept(None))
    failed = pool.renew([job() for _, job in pool.inversions()], infinite)
    assert bool(infinite) == (bad != -1e3)
    assert infinite + failed >= 1
    assert_close(pool._inverses, before, rtol=0, atol=0)

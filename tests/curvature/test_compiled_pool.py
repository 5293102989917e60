"""Kernels of our own for all factors at once, against PyTorch's in double precision.

On a GPU, or on a CPU with Triton and TRITON_INTERPRET=1 in the environment, for which Triton 3.6
needs a NumPy that still makes a number of an array with one.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence

import pytest
import torch
from interpreter import INTERPRETED, NEEDS_TRITON
from ocar.accel.invert import ManyInverses
from ocar.accel.precondition import ManyProducts, Place
from ocar.curvature.compiled_pool import CompiledPool, make_pool
from ocar.curvature.pool import FactorPool
from torch import Tensor, nn
from torch.testing import assert_close

from ocar.curvature import KFAC, compiled_pool
from ocar.curvature.blocks import KroneckerBlock

pytestmark = [
    *NEEDS_TRITON,
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),  # whatever came first
]
SIZES = (27, 20, 180, 100, 64, 161, 1)
TAU, EMA, HEAD_RATE = 1e-2, 0.3, 0.8


@pytest.fixture
def device() -> torch.device:
    return torch.device("cpu" if INTERPRETED else "cuda")


@pytest.fixture(autouse=True)
def single_by_default() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(before)


@pytest.fixture(autouse=True)
def one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter knows no threads."""
    if INTERPRETED:
        monkeypatch.setattr(
            compiled_pool, "run_side_by_side", lambda jobs, device: [job() for job in jobs]
        )


def positive(size: int, *, least: float, seed: int) -> Tensor:
    """A matrix with eigenvalues from ``least`` to 1."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(size, size, generator=generator, dtype=torch.float64)
    vectors = torch.linalg.qr(noise).Q
    values = torch.logspace(0, torch.tensor(least).log10().item(), size, dtype=torch.float64)
    return vectors * values @ vectors.mT


def starts_of(sizes: Sequence[int]) -> list[int]:
    return [sum(size**2 for size in sizes[:index]) for index in range(len(sizes))]


def invert(
    matrices: Sequence[Tensor], halves: Sequence[bool], device: torch.device
) -> tuple[list[Tensor], list[int]]:
    sizes = [len(matrix) for matrix in matrices]
    kernels = importlib.import_module("ocar.accel.triton.invert")
    many = ManyInverses(starts_of(sizes), sizes, halves, kernels=kernels, device=device)
    values = torch.cat([matrix.float().flatten() for matrix in matrices]).to(device)
    out = torch.zeros_like(values)
    fine = torch.zeros(len(sizes), dtype=torch.int32, device=device)
    report = many.invert(values, out, unless=fine)
    parts = out.cpu().double().split([size**2 for size in sizes])
    inverses = [part.view(size, size) for part, size in zip(parts, sizes, strict=True)]
    return inverses, [int(number != 0) for number in report.tolist()]


def test_inverses(device: torch.device) -> None:
    matrices = [positive(size, least=1e-2, seed=size) for size in SIZES]
    halves = [index % 2 == 0 for index in range(len(SIZES))]
    inverses, report = invert(matrices, halves, device)
    assert report == [0] * len(SIZES)
    for matrix, half, found in zip(matrices, halves, inverses, strict=True):
        true = torch.linalg.inv(torch.linalg.cholesky(matrix) if half else matrix)
        assert_close(found, true, rtol=0, atol=2e-5 * float(true.norm()))


@pytest.mark.parametrize("half", [True, False])
def test_inverses_of_badly_conditioned_matrices(device: torch.device, half: bool) -> None:
    """About as good as the library's in the same precision, which has an error of some 2 %."""
    matrix = positive(180, least=1e-7, seed=3) + 1e-7 * torch.eye(180, dtype=torch.float64)
    single = matrix.float().double()  # what both are given
    (found,), report = invert([matrix], [half], device)
    assert report == [0]
    whole = found.mT @ found if half else found
    true = torch.linalg.inv(single)
    library = torch.cholesky_inverse(torch.linalg.cholesky(single.float())).double()
    error, others = ((each - true).norm() / true.norm() for each in (whole, library))
    assert error < 3 * others


@pytest.mark.parametrize("bad", [-3.0, 0.0, float("nan"), float("inf")])
def test_one_that_fails_leaves_all_as_they_are(device: torch.device, bad: float) -> None:
    matrices = [positive(size, least=1e-2, seed=size) for size in SIZES]
    matrices[2][130, 130] = bad
    inverses, report = invert(matrices, [True] * len(SIZES), device)
    assert report[2] == 1
    assert sum(report) == 1
    assert not any(inverse.any() for inverse in inverses)


def test_products(device: torch.device) -> None:
    shapes = (20, 27), (40, 180), (100, 161), (5, 70), (1, 1)
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    places, layers, at, end = [], [], 0, 0
    for rows, columns in shapes:
        layers.append((random(rows, columns), random(columns, columns).tril(), random(rows, rows)))
        places.append(Place(at, end, end + columns**2, rows, columns))
        at, end = at + rows * columns, end + columns**2 + rows**2
    kernels = importlib.import_module("ocar.accel.triton.precondition")
    many = ManyProducts(places, kernels=kernels, device=device)
    gradients = torch.cat([layer[0].flatten() for layer in layers]).to(device)
    inverses = torch.cat([t.flatten() for layer in layers for t in layer[1:]]).to(device)
    found = many.multiply(gradients, inverses).cpu().split([layer[0].numel() for layer in layers])
    for layer, product in zip(layers, found, strict=True):
        gradient, root, inverse = (t.double() for t in layer)
        true = inverse @ gradient @ root.mT @ root
        difference = product.view_as(true).double() - true
        assert difference.norm() < 1e-6 * true.norm()


def make_kfac(device: torch.device) -> KFAC:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(4, 8, 3, groups=2, bias=True),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, bias=False),
        nn.Flatten(),
        nn.Linear(8 * 4 * 4, 6),
    ).to(device)
    kfac = KFAC(model, fisher="exact", damping=TAU, ema=EMA)
    x = torch.randn(5, 4, 8, 8, generator=torch.Generator().manual_seed(1)).to(device)
    with kfac.capture():
        outputs = model(x)
    kfac.update(outputs, active=torch.arange(6, device=device) < 4)
    kfac.refresh()
    return kfac


def kronecker(kfac: KFAC) -> dict[str, KroneckerBlock]:
    blocks = {n: b for n, b in kfac.blocks.items() if isinstance(b, KroneckerBlock)}
    for block in blocks.values():  # as they are on a GPU
        assert block._inverse is not None
        block._inverse = torch.zeros_like(block.averages["A"]), torch.zeros_like(block._inverse[1])
    return blocks


def pools(device: torch.device) -> tuple[FactorPool, CompiledPool]:
    names = ("pool", "inverse", "product")
    modules = [importlib.import_module(f"ocar.curvature.{name}_kernels") for name in names]
    theirs, ours = (make_kfac(device) for _ in range(2))
    return (
        FactorPool(kronecker(theirs), head=theirs.head),
        CompiledPool(kronecker(ours), *modules, head=ours.head),
    )


def write_estimates(pool: FactorPool, *, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(5)
    for layer in pool._blocks:
        for place in pool.places(layer).values():
            rows = torch.randn(*place.shape, generator=generator).to(place)
            place.copy_(rows @ rows.mT * scale)


def inverses_of(pool: FactorPool) -> list[Tensor]:
    return [t for block in pool._blocks.values() for t in block._inverse or ()]


@pytest.mark.parametrize("accepted", [None, True, False])
def test_a_step_of_the_pool(device: torch.device, accepted: bool | None) -> None:
    both = pools(device)
    for pool in both:
        write_estimates(pool)
        verdict = None if accepted is None else torch.tensor(accepted, device=device)
        taken = pool.accept(verdict)
        infinite = pool.mix(EMA, HEAD_RATE, torch.tensor(TAU, device=device), accepted=taken)
        failed = pool.renew([job() for _, job in pool.inversions()], infinite)
        assert int(infinite) == int(failed) == 0
    theirs, ours = both
    assert_close(ours._values, theirs._values, rtol=1e-5, atol=1e-6)
    for found, true in zip(inverses_of(ours), inverses_of(theirs), strict=True):
        assert_close(found, true, rtol=1e-3, atol=1e-4)
    if accepted is False:
        assert_close(ours._values, pools(device)[1]._values, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("accepted", [None, True])
def test_what_is_not_finite(device: torch.device, accepted: bool | None) -> None:
    _, pool = pools(device)
    values, inverses = pool._values.clone(), pool._inverses.clone()
    write_estimates(pool, scale=1e38)
    verdict = None if accepted is None else torch.tensor(accepted, device=device)
    infinite = pool.mix(EMA, HEAD_RATE, TAU, accepted=pool.accept(verdict))
    pool.renew([job() for _, job in pool.inversions()], infinite)
    assert bool(infinite) == (accepted is None)
    if accepted is None:
        assert_close(pool._inverses, inverses, rtol=0, atol=0)
    else:
        assert_close(pool._values, values, rtol=0, atol=0)


def test_gradients(device: torch.device) -> None:
    both = pools(device)
    for pool in both:
        write_estimates(pool)
        infinite = pool.mix(EMA, HEAD_RATE, TAU, accepted=pool.accept(None))
        pool.renew([job() for _, job in pool.inversions()], infinite)
        generator = torch.Generator().manual_seed(7)
        for block in pool._blocks.values():
            for parameter in block.parameters:
                parameter.grad = torch.randn(*parameter.shape, generator=generator).to(device)
    theirs, ours = both
    assert not theirs.precondition_()
    assert ours.precondition_()
    for name, block in theirs._blocks.items():
        assert block._inverse is not None
        root, inverse = block._inverse
        true = inverse @ block.gradient() @ root.mT @ root
        assert_close(ours._blocks[name].gradient(), true, rtol=1e-3, atol=1e-4)
    for block in ours._blocks.values():
        for parameter in block.parameters:
            assert parameter.grad is not None
            assert parameter.grad.stride() == parameter.stride()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_which_pool_is_taken(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    kfac = make_kfac(device)
    blocks = kronecker(kfac)
    assert type(make_pool(blocks, head=kfac.head)) is CompiledPool
    monkeypatch.setattr(compiled_pool, "LARGEST", 16)
    assert type(make_pool(blocks, head=kfac.head)) is FactorPool


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_where_ours_cannot_be_compiled_the_library_is_taken(
    monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    def fail(self: CompiledPool) -> None:
        raise RuntimeError("no such instruction\nand more")

    kfac = make_kfac(device)  # which makes a pool by itself
    monkeypatch.setattr(CompiledPool, "_rehearse", fail)
    with pytest.warns(UserWarning, match="cannot compile ours: no such instruction$"):
        pool = make_pool(kronecker(kfac), head=kfac.head)
    assert type(pool) is FactorPool
    assert pool.fits(kronecker(kfac))

"""Cases of the operations on Kronecker factors: Gram matrices, averages, inverses, products."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from implementations import Case, Implementation, numbers
from torch import Tensor

from ocar.accel import FactorBuffer, LayerGradient, Pair, Rows, triangles

NAN, INF = float("nan"), float("inf")
TAU = 1e-2
LARGEST_TILE = 64
"""Rows of a tile of a Gram matrix, or a multiple of them."""


# --- gram ---------------------------------------------------------------------------------------


def channels_first(batch: int, size: int, area: int) -> Tensor:
    """Gradients of a convolution, ``(batch, 1, size, area)``."""
    return numbers(batch, 1, size, area)


def channels_last(batch: int, size: int, area: int) -> Tensor:
    """The same with the channels next to each other in memory."""
    return numbers(batch, area, 1, size).permute(0, 2, 3, 1)


def patch_rows(batch: int, size: int, area: int) -> Tensor:
    """Patches: all samples and locations of an input in a row."""
    return numbers(size, batch, area).permute(1, 0, 2).unsqueeze(1)


GRAMS: dict[str, list[Tensor]] = {
    "channels first": [channels_first(3, 20, 64), channels_first(2, 33, 32)],
    "channels last": [channels_last(3, 20, 9), channels_last(2, 36, 5)],
    "channels last, odd": [channels_last(3, 7, 5), channels_last(2, 10, 1)],
    "rows": [numbers(13, 1, 40, 1), numbers(5, 1, 3, 1)],
    "one sample": [channels_first(1, 5, 32), channels_last(1, 6, 7), numbers(1, 1, 9, 1)],
    "patches": [patch_rows(4, 27, 16), patch_rows(2, 5, 48)],
    "wide patches": [patch_rows(4, 70, 8)],
    "seven layers of patches": [patch_rows(2, 4 + i, 16 + 16 * i) for i in range(7)],
    "long sums": [channels_first(1, 5, 1056), channels_last(40, 6, 30)],
    "both layouts": [channels_first(2, 8, 32), channels_last(2, 9, 4), patch_rows(2, 6, 16)],
    # These have no kernel.
    "groups": [numbers(3, 2, 5, 32)],
    "not a multiple of a block": [channels_first(3, 6, 30), patch_rows(3, 6, 5)],
    "strided": [numbers(3, 1, 8, 128)[..., ::2], channels_last(6, 8, 4)[::2]],
}


def run_gram(operands: Sequence[Tensor], implementation: Implementation) -> list[Tensor]:
    """Into places of a buffer with gaps, which must stay."""
    sizes = [(t.shape[1], t.shape[2], t.shape[2]) for t in operands]
    flat = torch.full((sum(math.prod(size) + 3 for size in sizes),), 7.0, dtype=torch.float64)
    flat = implementation.given(flat)
    outs, start = [], 2
    for size in sizes:
        outs.append(flat[start : start + math.prod(size)].view(size))
        start += math.prod(size) + 3
    given = [implementation.given(t) for t in operands]
    scales = [1 / (number + 3) for number in range(len(given))]
    implementation["gram"]([partial(Tensor.clone, t) for t in given], scales, outs)
    if implementation.name == "triton":  # half of the tiles are made, the others are copies
        for out in outs:
            if out.isfinite().all():
                tile = torch.arange(out.shape[-1], device=out.device) // LARGEST_TILE
                apart = tile[:, None] != tile
                assert torch.equal(out[..., apart], out.mT[..., apart])
    gaps = flat.clone()
    for out, size in zip(outs, sizes, strict=True):
        at = out.storage_offset()
        gaps[at : at + math.prod(size)] = 7.0
    return [*outs, gaps]


def reference_gram(operands: Sequence[Tensor]) -> list[Tensor]:
    """Sample by sample, location by location."""
    results = []
    for number, t in enumerate(operands):
        _, groups, size, area = t.shape
        total = np.zeros((groups, size, size))
        for sample in t.numpy():
            for group in range(groups):
                for location in range(area):
                    total[group] += np.outer(sample[group, :, location], sample[group, :, location])
        results.append(torch.from_numpy(total / (number + 3)))
    count = sum(math.prod(result.shape) + 3 for result in results)
    return [*results, torch.full((count,), 7.0, dtype=torch.float64)]


def spoiled(t: Tensor, value: float) -> Tensor:
    """A copy with one number in it that is not finite."""
    t = t.clone()
    t[-1, 0, 1, -1] = value
    return t


def gram_cases() -> list[Case]:
    cases = [
        Case("gram", name, partial(run_gram, given), partial(reference_gram, given))
        for name, given in GRAMS.items()
    ]
    for value in (NAN, INF):
        given = [spoiled(channels_first(2, 5, 32), value), channels_last(2, 5, 3)]
        cases.append(Case("gram", f"with {value}", partial(run_gram, given)))
    return cases


# --- buffers of factors -------------------------------------------------------------------------

PAIRS = (
    Pair("grouped", 2, 5, 3),
    Pair("wide", 1, 66, 10, linear=True),
    Pair("one", 1, 1, 1, linear=True),
    Pair("parted", 1, 7, 4, parts=3),
    Pair("head", 1, 33, 34, linear=True),
)
FEW = (Pair("conv", 1, 2, 1), Pair("head", 1, 34, 3, linear=True))
"""Enough for what may fail: Triton's interpreter is slow."""


def shapes(pairs: Sequence[Pair]) -> dict[str, tuple[int, int, int]]:
    """The factors of some layers, as a buffer holds them."""
    found = {}
    for pair in pairs:
        a, g = pair.names
        found[a] = (pair.groups * pair.parts, pair.d_in, pair.d_in)
        found[g] = (pair.groups, pair.d_out, pair.d_out)
    return found


def positive(groups: int, size: int, *, seed: int, least: float = 0.1) -> Tensor:
    """Positive definite matrices with eigenvalues between ``least`` and 1."""
    vectors = torch.linalg.qr(numbers(groups, size, size, seed=seed)).Q
    values = torch.logspace(math.log10(least), 0, size, dtype=torch.float64)
    matrix = (vectors * values) @ vectors.mT
    return ((matrix + matrix.mT) / 2).float().double()


def make_buffer(implementation: Implementation, pairs: Sequence[Pair]) -> FactorBuffer:
    like = torch.empty(0, dtype=implementation.dtype, device=implementation.device)
    buffer = FactorBuffer(shapes(pairs), like=like)
    for number, (name, shape) in enumerate(buffer.shapes.items()):
        buffer.average(name).copy_(positive(*shape[:2], seed=number))
        buffer.estimate(name).copy_(positive(*shape[:2], seed=number + 100) * (1 + number))
    return buffer


Spoil = Callable[[FactorBuffer], None]


def nothing(buffer: FactorBuffer) -> None:
    """Leave a buffer as it is."""


def put(name: str, value: float, *, at: int = 0, what: str = "estimates") -> Spoil:
    """Write a number on the diagonal of a factor."""

    def spoil(buffer: FactorBuffer) -> None:
        buffer.view(getattr(buffer, what), name)[-1, at, at] = value

    return spoil


def zero(name: str) -> Spoil:
    """Make a factor zero, before and after."""

    def spoil(buffer: FactorBuffer) -> None:
        buffer.average(name).zero_()
        buffer.estimate(name).zero_()

    return spoil


# --- mix_and_damp -------------------------------------------------------------------------------


def mixing(pairs: Sequence[Pair]) -> tuple[Tensor, Tensor]:
    """Rates, one of them 1 and one 0, and dimensions, one of them less than the rows."""
    names = list(shapes(pairs))
    rates = torch.linspace(0.2, 0.9, len(names), dtype=torch.float64)
    rates[0], rates[-1] = 1.0, 0.0
    dims = torch.tensor([float(shape[-1]) for shape in shapes(pairs).values()])
    dims[-1] = 20.0
    return rates, dims.double()


def run_mix(
    pairs: tuple[Pair, ...], taken: tuple[Pair, ...], spoil: Spoil, implementation: Implementation
) -> list[Tensor]:
    buffer = make_buffer(implementation, pairs)
    spoil(buffer)
    rates, dims = mixing(pairs)
    rates, dims = rates.to(implementation.device), implementation.given(dims)
    damping = torch.tensor(TAU, dtype=torch.float64, device=implementation.device)
    before = buffer.averages.clone()
    ok = implementation["mix_and_damp"](buffer, taken, rates, dims, damping)
    assert ok.dtype == torch.bool
    assert ok.shape == ()
    if not ok:
        assert torch.equal(buffer.averages, before)
    names = [name for pair in taken for name in pair.names]
    return [ok, buffer.averages, *(buffer.estimate(name) for name in names)]


def reference_mix(pairs: tuple[Pair, ...], taken: tuple[Pair, ...], spoil: Spoil) -> list[Tensor]:
    """One matrix after another, in NumPy."""
    buffer = make_buffer(Implementation("plain", dtype=torch.float64), pairs)
    spoil(buffer)
    rates, dims = mixing(pairs)
    names = [name for pair in taken for name in pair.names]
    finite = all(bool(buffer.estimate(name).isfinite().all()) for name in names)
    means: dict[tuple[str, int], float] = {}
    for name in names:
        old, new = buffer.average(name).numpy(), buffer.estimate(name).numpy()
        rate, dim = float(rates[buffer.index(name)]), float(dims[buffer.index(name)])
        for group in range(len(old)):
            if finite:
                old[group] = (1 - rate) * old[group] + rate * new[group]
            means[name, group] = float(np.trace(old[group])) / dim
    damped = []
    for pair in taken:
        a, g = (buffer.average(name).clone().numpy() for name in pair.names)
        for group in range(pair.groups):
            own = range(group * pair.parts, (group + 1) * pair.parts)
            mean_a = sum(means[pair.names[0], part] for part in own) / pair.parts
            mean_g = means[pair.names[1], group]
            pi = math.sqrt(mean_a / mean_g) if mean_a > 0 and mean_g > 0 else 1.0
            a[list(own)] += pi * math.sqrt(TAU) * np.eye(pair.d_in)
            g[group] += math.sqrt(TAU) / pi * np.eye(pair.d_out)
        damped += [torch.from_numpy(a), torch.from_numpy(g)]
    return [torch.tensor(finite), buffer.averages, *damped]


MIXES: dict[str, tuple[tuple[Pair, ...], Spoil]] = {
    "all layers": (PAIRS, nothing),
    "some layers": (PAIRS[1:3], nothing),
    "A is zero": (PAIRS, zero("wide.A")),
    "G is zero": (PAIRS, zero("grouped.G")),
    "infinite": (PAIRS, put("one.A", INF)),
    "not a number": (PAIRS, put("grouped.A", NAN, at=2)),
    "infinite in the largest layer": (PAIRS, put("wide.A", INF, at=65)),
    "infinite in another layer": (PAIRS[1:], put("grouped.A", INF)),
}


def mix_cases() -> list[Case]:
    return [
        Case(
            "mix_and_damp", name, partial(run_mix, PAIRS, taken, spoil),
            partial(reference_mix, PAIRS, taken, spoil), rounded=1e-5,
        )
        for name, (taken, spoil) in MIXES.items()
    ]  # fmt: skip


# --- invert and precondition --------------------------------------------------------------------


def gradients(pairs: Sequence[Pair]) -> list[Tensor]:
    return [
        numbers(pair.groups * pair.parts, pair.d_out, pair.d_in, seed=pair.d_in) for pair in pairs
    ]


def lazily(
    pairs: Sequence[Pair], tensors: Sequence[Tensor], rows: Sequence[Rows | None] | None = None
) -> list[LayerGradient]:
    """The gradients of layers, made when they are needed."""
    makers = [partial(torch.Tensor.view_as, tensor, tensor) for tensor in tensors]
    return list(map(LayerGradient, pairs, makers, rows or [None] * len(pairs)))


def run_invert(
    pairs: tuple[Pair, ...], spoil: Spoil | None, implementation: Implementation
) -> list[Tensor]:
    """Invert; perhaps a second time, with matrices that have no inverse; then apply."""
    buffer = make_buffer(implementation, pairs)
    given = [implementation.given(t) for t in gradients(pairs)]
    failed = [implementation["invert"](buffer, pairs)]
    if spoil is not None:
        # An inversion may use the estimates as scratch memory.
        buffer.estimates.copy_(3 * make_buffer(implementation, pairs).estimates)
        spoil(buffer)
        failed.append(implementation["invert"](buffer, pairs))
    assert all(count.shape == () and count.dtype == torch.int64 for count in failed)
    results = implementation["precondition"](buffer, lazily(pairs, given))
    return [*failed, *results]


def reference_invert(pairs: tuple[Pair, ...], spoil: Spoil | None, failures: int) -> list[Tensor]:
    """The products with the dense inverses; the old ones where there were failures."""
    buffer = make_buffer(Implementation("plain", dtype=torch.float64), pairs)
    if spoil is not None and failures == 0:
        buffer.estimates.mul_(3)
    results = []
    for pair, gradient in zip(pairs, gradients(pairs), strict=True):
        a, g = (np.linalg.inv(buffer.estimate(name).numpy()) for name in pair.names)
        results.append(torch.from_numpy(g @ gradient.numpy() @ a))
    failed = [torch.tensor(0)] + ([] if spoil is None else [torch.tensor(failures)])
    return [*failed, *results]


def both(*spoils: Spoil) -> Spoil:
    """Spoil a buffer in several ways."""

    def spoil(buffer: FactorBuffer) -> None:
        for one in spoils:
            one(buffer)

    return spoil


INVERSIONS: dict[str, tuple[tuple[Pair, ...], Spoil | None, int]] = {
    "all layers": (PAIRS, None, 0),
    "again": (FEW, nothing, 0),
    "negative": (FEW, put("head.A", -3.0, at=33), 1),
    "zero": (FEW, put("conv.G", 0.0), 1),
    "not a number": (FEW, put("conv.A", NAN, at=1), 1),
    "infinite": (FEW, put("head.G", INF, at=2), 1),
    "two layers": (FEW, both(put("conv.G", -1.0), put("head.A", -1.0)), 2),
    "both factors of a layer": (FEW, both(put("head.G", -1.0), put("head.A", -1.0)), 2),
}


def invert_cases() -> list[Case]:
    return [
        Case(
            "invert", name, partial(run_invert, pairs, spoil),
            partial(reference_invert, pairs, spoil, failures), rounded=1e-4,
        )
        for name, (pairs, spoil, failures) in INVERSIONS.items()
    ]  # fmt: skip


def run_without_inverse(implementation: Implementation) -> list[Tensor]:
    """Nothing could be inverted yet."""
    buffer = make_buffer(implementation, FEW)
    put("conv.A", -1.0)(buffer)
    failed = implementation["invert"](buffer, FEW)
    given = [implementation.given(t) for t in gradients(FEW)]
    return [failed, *implementation["precondition"](buffer, lazily(FEW, given))]


def few_rows(pair: Pair) -> tuple[Tensor, Tensor]:
    """X and Δ of a batch of three samples."""
    return numbers(3, pair.d_in, seed=1), numbers(3, pair.d_out, seed=2)


def run_rows(implementation: Implementation) -> list[Tensor]:
    """Gradients that are products of few rows, which are given for linear layers."""
    buffer = make_buffer(implementation, FEW)
    implementation["invert"](buffer, FEW)
    given, rows = [], []
    for pair in FEW:
        x, g = few_rows(pair)
        rows.append((implementation.given(x), implementation.given(g)) if pair.linear else None)
        given.append(implementation.given((g.mT @ x).repeat(pair.groups, 1, 1)))
    return list(implementation["precondition"](buffer, lazily(FEW, given, rows)))


def reference_rows() -> list[Tensor]:
    """Products with the dense inverses."""
    buffer = make_buffer(Implementation("plain", dtype=torch.float64), FEW)
    results = []
    for pair in FEW:
        x, g = few_rows(pair)
        inverse_a, inverse_g = (torch.linalg.inv(buffer.estimate(name)) for name in pair.names)
        results.append(inverse_g @ g.mT @ x @ inverse_a)
    return results


def run_half(implementation: Implementation) -> list[Tensor]:
    """Gradients in half precision stay in half precision."""
    buffer = make_buffer(implementation, FEW)
    implementation["invert"](buffer, FEW)
    given = [t.to(implementation.device, torch.bfloat16) for t in gradients(FEW)]
    found = implementation["precondition"](buffer, lazily(FEW, given))
    assert [t.dtype for t in found] == [torch.bfloat16] * len(FEW)
    return list(found)


def precondition_cases() -> list[Case]:
    return [
        Case("precondition", "no inverse yet", run_without_inverse, close=0),
        Case("precondition", "rows", run_rows, reference_rows, rounded=1e-4),
        Case("precondition", "half precision", run_half, close=1e-2, rounded=1e-2),
    ]


# --- inverse_tensors ----------------------------------------------------------------------------

UNUSED = Pair("unused", 1, 300, 2, linear=True)
"""So wide that the host leaves out inputs that were always zero."""


def damped_buffer(implementation: Implementation) -> tuple[FactorBuffer, tuple[Pair, ...]]:
    """Damped factors of several layers; of one most inputs are unused."""
    pairs = (*PAIRS, UNUSED)
    buffer = make_buffer(implementation, pairs)
    for flat in (buffer.averages, buffer.estimates):
        a = buffer.view(flat, "unused.A")
        a[:, 9:] = 0.0
        a[:, :, 9:] = 0.0
    rates = torch.full((len(buffer.shapes),), 0.3, dtype=torch.float64)
    dims = torch.tensor([shape[-1] for shape in buffer.shapes.values()]).to(buffer.averages)
    assert implementation["mix_and_damp"](buffer, pairs, rates.to(dims.device), dims, 0.04)
    return buffer, pairs


def run_inverse_tensors(implementation: Implementation) -> list[Tensor]:
    """Apply inverses that were copied from a buffer to another, which did not invert."""
    source, pairs = damped_buffer(implementation)
    target, _ = damped_buffer(implementation)
    assert int(implementation["invert"](source, pairs)) == 0
    given, found = (
        implementation["inverse_tensors"](buffer, pairs, found=buffer is source)
        for buffer in (source, target)
    )
    for (one, symmetric), (other, same) in zip(given, found, strict=True):
        assert (one.shape, one.stride(), symmetric) == (other.shape, other.stride(), same)
        whole, lower = one.clone(), triangles.upper(one.mT)
        for matrix in (one, other):
            (triangles.mirror_ if symmetric else triangles.write_)(matrix.mT, lower)
            torch.testing.assert_close(matrix, whole, rtol=1e-4, atol=1e-4)
    results = [
        implementation["precondition"](
            buffer, lazily(pairs, [implementation.given(t) for t in gradients(pairs)])
        )
        for buffer in (source, target)
    ]
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
    return list(results[1])


def reference_inverse_tensors() -> list[Tensor]:
    """The products with the dense inverses."""
    buffer, pairs = damped_buffer(Implementation("plain", dtype=torch.float64))
    results = []
    for pair, gradient in zip(pairs, gradients(pairs), strict=True):
        a, g = (np.linalg.inv(buffer.estimate(name).numpy()) for name in pair.names)
        results.append(torch.from_numpy(g @ gradient.numpy() @ a))
    return results


def inverse_tensors_cases() -> list[Case]:
    return [
        Case(
            "inverse_tensors", "copied", run_inverse_tensors, reference_inverse_tensors,
            rounded=1e-4,
        )
    ]  # fmt: skip


# --- inverse ------------------------------------------------------------------------------------


def run_inverse(matrix: Tensor, implementation: Implementation) -> list[Tensor]:
    given = implementation.given(matrix)
    result, failed = implementation["inverse"](given)
    assert failed.shape == ()
    assert failed.dtype == torch.bool
    assert torch.equal(given, implementation.given(matrix)) or failed
    return [failed] if failed else [failed, result]


def reference_inverse(matrix: Tensor) -> list[Tensor]:
    finite = bool(matrix.isfinite().all())
    if not finite or np.linalg.eigvalsh(matrix.numpy()).min() <= 0:
        return [torch.tensor(True)]
    return [torch.tensor(False), torch.from_numpy(np.linalg.inv(matrix.numpy()))]


def with_entry(matrix: Tensor, value: float) -> Tensor:
    matrix = matrix.clone()
    matrix[-1, 2, 1] = matrix[-1, 1, 2] = value
    return matrix


INVERSES = {
    "one": positive(1, 5, seed=0),
    "a stack": positive(3, 7, seed=1),
    "a single number": positive(1, 1, seed=0),
    "joined blocks": positive(1, 128, seed=2),
    "large": 1e6 * positive(1, 5, seed=3),
    "small": 1e-6 * positive(1, 5, seed=3),
    "indefinite": with_entry(positive(1, 5, seed=0), 2.0),
    "one of a stack indefinite": with_entry(positive(3, 5, seed=0), 2.0),
    "singular": torch.zeros(1, 3, 3, dtype=torch.float64),
    "not a number": with_entry(positive(2, 5, seed=0), NAN),
    "infinite": with_entry(positive(2, 5, seed=0), INF),
}


def inverse_cases() -> list[Case]:
    return [
        Case("inverse", name, partial(run_inverse, m), partial(reference_inverse, m), rounded=1e-4)
        for name, m in INVERSES.items()
    ]


CASES = [
    *gram_cases(), *mix_cases(), *invert_cases(), *precondition_cases(),
    *inverse_tensors_cases(), *inverse_cases(),
]  # fmt: skip

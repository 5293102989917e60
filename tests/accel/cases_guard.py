"""Cases of the operations that copy, decide, restore and store."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from implementations import Case, Implementation, numbers
from tolerances import SINGLE_KERNEL
from torch import Tensor

from ocar.accel import Evidence, Tensors, Verdict

NAN, INF = float("nan"), float("inf")


# --- snapshot -----------------------------------------------------------------------------------


def tensors(implementation: Implementation) -> Tensors:
    """Weights, one channels last and one in several pieces; statistics; others of any type."""
    kernel = numbers(4, 3, 3, 3).abs().contiguous(memory_format=torch.channels_last)
    weights = [kernel, numbers(4, seed=1).abs(), numbers(300, 8, seed=2).abs()]
    statistics = [numbers(5, seed=3).abs(), numbers(2, 2, seed=4).abs()]
    others = [
        implementation.given(numbers(3, seed=5)),
        torch.arange(5, device=implementation.device),
        numbers(4, seed=6).to(implementation.device),
        torch.tensor([True, False], device=implementation.device),
        torch.tensor(3, device=implementation.device),
    ]
    return Tensors(
        weights=[implementation.given(t) for t in weights],
        statistics=[implementation.given(t) for t in statistics],
        others=others,
    )


def all_of(given: Tensors) -> list[Tensor]:
    return [*given.weights, *given.statistics, *given.others]


def move_(given: Tensors, seed: int = 9) -> None:
    """A step: every tensor changes, in the same way in every implementation."""
    for number, t in enumerate(all_of(given)):
        if t.is_floating_point():
            t.add_(numbers(*t.shape, seed=seed + number).abs().to(t))
        elif t.dtype == torch.bool:
            t.logical_not_()
        else:
            t.add_(1)


def run_snapshot(accepted: bool, share: float, bad: float, how: Implementation) -> list[Tensor]:
    given = tensors(how)
    before = how["snapshot"](given)
    move_(given)
    if bad:
        given.weights[2][-1, -1] = bad
    total = before.total()
    before.restore_(
        torch.tensor(accepted, device=how.device), torch.tensor(share, device=how.device)
    )
    return [total, *all_of(given)]


def reference_snapshot(accepted: bool, share: float, bad: float) -> list[Tensor]:
    """One tensor after another."""
    how = Implementation("plain", dtype=torch.float64)
    old, new = tensors(how), tensors(how)
    move_(new)
    if bad:
        new.weights[2][-1, -1] = bad
    total = sum(float(t.sum()) for t in (*new.weights, *new.statistics))
    pairs = list(zip(all_of(old), all_of(new), strict=True))
    after = [two if accepted else one for one, two in pairs]
    for index in range(len(old.weights)):
        if accepted:
            after[index] = pairs[index][0] + share * (pairs[index][1] - pairs[index][0])
    return [torch.tensor(total, dtype=torch.float64), *after]


def snapshot_cases() -> list[Case]:
    cases = []
    for accepted, share in product((True, False), (1.0, 0.75, 0.25, 0.0)):
        for bad in (0.0,) if accepted else (0.0, NAN, INF):
            name = f"{'accepted' if accepted else 'rolled back'}, share {share}, {bad}"
            given = accepted, share, bad
            run, reference = partial(run_snapshot, *given), partial(reference_snapshot, *given)
            cases.append(Case("snapshot", name, run, reference, rounded=1e-5))
    return cases


# --- commit_or_rollback -------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """What the guard knows of a batch."""

    loss: float = 1.0
    trusted: bool = True
    ok: bool = True
    divergences: tuple[float, ...] | None = (0.5, 1.0, 1.5)
    bad: float = 0.0
    """What a weight becomes; 0 for a usual step."""


BOUND = 2.0
SHORTENED = Batch(divergences=(3.0, 4.0, 5.0))
BATCHES: dict[str, Sequence[Batch]] = {
    "normal": [Batch()],
    "shortened": [SHORTENED],
    "shortened by less than half": [Batch(divergences=(2.0, 2.5, 3.0))],
    "at the bound": [Batch(divergences=(1.0, 2.0, 3.0))],
    "loss is not a number": [Batch(loss=NAN)],
    "loss is infinite": [Batch(loss=-INF)],
    "a weight is not a number": [Batch(bad=NAN)],
    "a weight is infinite": [Batch(bad=INF)],
    "infinite weights of both signs": [Batch(bad=-INF, loss=INF)],
    "the divergence is not a number": [Batch(divergences=(NAN, 1.0))],
    "the divergence is infinite": [Batch(divergences=(INF, 1.0))],
    "not ok": [Batch(ok=False)],
    "over scale": [Batch(trusted=False)],
    "over scale and infinite": [Batch(trusted=False, loss=NAN, bad=INF)],
    "over scale and far away": [Batch(trusted=False, divergences=(9.0, 9.0))],
    "nobody asked": [Batch(divergences=None)],
    "nobody asked, infinite": [Batch(divergences=None, loss=INF)],
    "twenty samples": [Batch(divergences=tuple(float(i) for i in range(20)))],
    "a sequence": [
        Batch(),
        Batch(divergences=(0.25, 1.0)),
        Batch(loss=INF),
        Batch(bad=NAN),
        Batch(trusted=False),
        Batch(divergences=(INF, 1.0)),
        SHORTENED,
        Batch(ok=False),
        Batch(trusted=False, loss=NAN),
        Batch(divergences=None),
        Batch(divergences=(0.5, 3.0)),
        SHORTENED,
        Batch(divergences=None, bad=INF),
    ],
}


def run_commit(
    batches: Sequence[Batch], bound: float | None, implementation: Implementation
) -> list[Tensor]:
    """The verdict after every batch, and all tensors in the end."""
    device = torch.device(implementation.device)

    def number(value: float | bool) -> Tensor:
        return torch.tensor(value, device=device)

    given, verdict, results = tensors(implementation), Verdict.on(device), []
    limit = None if bound is None else number(bound)
    for index, batch in enumerate(batches):
        before = implementation["snapshot"](given)
        move_(given, seed=index)
        if batch.bad:
            given.weights[0][0, 1, 2, 0] = batch.bad
        known = batch.divergences
        found = Evidence(
            total=before.total() + number(batch.loss),
            ok=number(batch.ok),
            trusted=number(batch.trusted),
            divergences=None if known is None else torch.tensor(known, device=device),
            bound=limit,
        )
        implementation["commit_or_rollback"](before, verdict, found)
        results += [verdict.accepted.clone(), verdict.counts.clone(), verdict.largest.clone()]
    return [*results, *all_of(given)]


def reference_commit(batches: Sequence[Batch], bound: float | None) -> list[Tensor]:
    """The rules of the guard, batch by batch."""
    how = Implementation("plain", dtype=torch.float64)
    given, results = tensors(how), []
    counts, largest = dict.fromkeys(("not_finite", "out_of_scale", "shortened", "row"), 0), 0.0
    for index, batch in enumerate(batches):
        old = [t.clone() for t in all_of(given)]
        move_(given, seed=index)
        kl = None
        if batch.divergences is not None and bound is not None:
            kl = sum(batch.divergences) / len(batch.divergences)
        finite = batch.ok and not batch.bad and math.isfinite(batch.loss + (kl or 0.0))
        accepted = finite and batch.trusted
        share = bound / kl if kl is not None and bound is not None and kl > bound else 1.0
        counts["not_finite"] += batch.trusted and not finite
        counts["out_of_scale"] += not batch.trusted
        counts["shortened"] += accepted and share < 1
        counts["row"] = 0 if accepted else counts["row"] + 1
        largest = max(largest, kl) if accepted and kl is not None else largest
        for position, (t, was) in enumerate(zip(all_of(given), old, strict=True)):
            if not accepted:
                t.copy_(was)
            elif position < len(given.weights):
                t.copy_(was + share * (t - was))
        first, second, third, row = counts.values()
        numbers_ = torch.tensor([first, second, third, 0, row])
        results += [torch.tensor(accepted), numbers_, torch.tensor(largest)]
    return [*results, *all_of(given)]


def commit_cases() -> list[Case]:
    bounds: dict[str, float | None] = {"": BOUND, " without a bound": None}
    return [
        Case(
            "commit_or_rollback", name + suffix, partial(run_commit, batches, bound),
            partial(reference_commit, batches, bound), rounded=1e-5, definition=SINGLE_KERNEL,
        )
        for name, batches in BATCHES.items()
        for suffix, bound in bounds.items()
        if bound is not None or name in ("normal", "shortened", "a sequence")
    ]  # fmt: skip


# --- write_rows ---------------------------------------------------------------------------------

TYPES = (torch.uint8, torch.int64, torch.float32, torch.float64)
PLACES: dict[str, dict[int, int]] = {
    "some": {6: 1, 0: 3, 3: 0},
    "one row twice": {2: 3, 5: 3},
    "one": {4: 0},
}


def columns_and_batch(
    types: Sequence[torch.dtype], size: int, device: str
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A memory with seven rows and a batch of four, whose rows are not next to each other."""
    columns, batch = {}, {}
    for dtype in types:
        name = str(dtype)
        columns[name] = torch.arange(7 * size, device=device).view(7, size).to(dtype)
        rows = (100 + torch.arange(4 * size, device=device)).view(size, 4).mT
        batch[name] = rows.to(dtype)
    columns["labels"] = torch.arange(7, device=device)
    batch["labels"] = 50 + torch.arange(4, device=device)
    columns["unused"] = torch.zeros(7, 2, device=device)
    return columns, batch


def run_write_rows(
    types: Sequence[torch.dtype],
    size: int,
    places: dict[int, int],
    accepted: bool | None,
    implementation: Implementation,
) -> list[Tensor]:
    columns, batch = columns_and_batch(types, size, implementation.device)
    verdict = None if accepted is None else torch.tensor(accepted, device=implementation.device)
    implementation["write_rows"](columns, batch, places, verdict)
    return list(columns.values())


def reference_write_rows(
    types: Sequence[torch.dtype],
    size: int,
    places: dict[int, int],
    accepted: bool | None,
) -> list[Tensor]:
    """Number by number."""
    columns, batch = columns_and_batch(types, size, "cpu")
    if accepted is not False:
        for slot, row in places.items():
            for name, given in batch.items():
                for index in range(size) if given.dim() > 1 else [...]:
                    place = slot if index is ... else (slot, index)
                    columns[name][place] = given[row if index is ... else (row, index)]
    return list(columns.values())


def write_rows_cases() -> list[Case]:
    cases = []
    for (name, places), accepted in product(PLACES.items(), (None, True, False)):
        for size in (1, 5) if name != "one" else (1500,):
            given = TYPES, size, places, accepted
            cases.append(
                Case(
                    "write_rows", f"{name}, {size} numbers, accepted {accepted}",
                    partial(run_write_rows, *given), partial(reference_write_rows, *given), close=0,
                )
            )  # fmt: skip
    given = (torch.bool, torch.float16), 5, PLACES["some"], True
    run, reference = partial(run_write_rows, *given), partial(reference_write_rows, *given)
    other = Case("write_rows", "other types", run, reference, close=0, only=("plain",))
    return [*cases, other]


CASES = [*snapshot_cases(), *commit_cases(), *write_rows_cases()]

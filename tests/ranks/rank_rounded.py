"""One rank of two that average factors with 16 bits, and with all, and say how they differ."""

from __future__ import annotations

import torch
from torch import nn

import ocar
from ocar.accel import FactorBuffer, SharedModel

ROWS = 10
SCALES = {"huge": 1e30, "large": 1e6, "tiny": 1e-30, "zero": 0.0}
"""By layer; float16 ends at 65504 and at 6e-8."""


def averages(ranks: ocar.Ranks, *, spoiled: bool = False) -> FactorBuffer:
    """The means over ranks of factors that each rank estimates from rows of its own."""
    names = [f"{layer}.A" for layer in SCALES]
    shapes = {"loose.F": (5,), **dict.fromkeys(names, (2, 6, 6))}
    like = torch.empty(0, device=ranks.device)
    buffer = FactorBuffer(shapes, like=like, symmetric={*names})
    generator = torch.Generator().manual_seed(ranks.rank)
    for name, scale in zip(names, SCALES.values(), strict=True):
        x = torch.randn(2, 4, 6, generator=generator) * scale**0.5
        buffer.estimate(name).copy_(x.mT @ x / 4)
    buffer.estimate("loose.F").copy_(torch.randn(5, generator=generator))
    if spoiled and ranks.rank == 1:
        buffer.estimate("large.A")[0, 0, 0] = float("inf")
    SharedModel(ranks, nn.Linear(1, 1).to(like)).start_average_(buffer, [*shapes], ROWS)()
    return buffer


def errors() -> dict[str, float]:
    """The largest error of each statistic that was rounded, by its largest number."""
    full = ocar.Ranks(timeout=100)
    rounded = ocar.Ranks(timeout=100, factor_dtype="float16")
    exact, found = averages(full), averages(rounded)
    errors = {}
    for name in exact.shapes:
        wanted, own = exact.estimate(name), found.estimate(name)
        largest = max(float(wanted.abs().max()), 1e-38)
        errors[name] = float((own - wanted).abs().max()) / largest
        rounded.require_same(name, [own])
    return errors


def main() -> None:
    torch.set_num_threads(1)
    for name, error in errors().items():
        print(f"{name} {error}", flush=True)
    spoiled = averages(ocar.Ranks(timeout=100, factor_dtype="float16"), spoiled=True)
    finite = [name for name in spoiled.shapes if bool(spoiled.estimate(name).isfinite().all())]
    print("finite", *finite, flush=True)


if __name__ == "__main__":
    main()

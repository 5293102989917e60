"""The factors of all layers in one buffer, with kernels of our own that take all of them at once.

What a :class:`~ocar.curvature.pool.FactorPool` does in a thousand of PyTorch's kernels takes a
hundred here: each does one step for all factors, whatever their sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import ModuleType

import torch
from torch import Tensor

from ocar.accel.compiled import compiles, kernels, run_side_by_side
from ocar.accel.invert import ManyInverses
from ocar.accel.precondition import ManyProducts, Place
from ocar.curvature.blocks import KroneckerBlock
from ocar.curvature.pool import FactorPool

LARGEST = 2048
"""Rows of a factor up to which our kernels are taken; a library is made for larger ones."""

_CHUNK = 4096  # numbers of a factor that one program averages


def make_pool(blocks: Mapping[str, KroneckerBlock], *, head: str | None) -> FactorPool:
    """A pool of the factors of some blocks, with kernels of our own where they can be compiled.

    Args:
        blocks: Blocks that have averages and inverses, with factored damping, by name.
        head: The name of the one whose G may start again, if any.
    """
    averages = [average for block in blocks.values() for average in block.averages.values()]
    if not all(a.is_cuda and a.dtype == torch.float32 for a in averages):
        return FactorPool(blocks, head=head)
    if max(average.shape[-1] for average in averages) > LARGEST:
        return FactorPool(blocks, head=head)
    modules = [kernels(f"ocar.curvature.{name}_kernels") for name in ("pool", "inverse", "product")]
    found = [module for module in modules if module is not None]
    if not found:
        return FactorPool(blocks, head=head)
    made: list[FactorPool] = []
    if compiles(lambda: made.append(CompiledPool(blocks, *found, head=head)), "Inverses"):
        return made[0]
    return FactorPool(blocks, head=head)


class CompiledPool(FactorPool):
    """A pool whose steps are kernels of our own.

    Args:
        blocks: Blocks that have averages and inverses, with factored damping, by name.
        mixing: The kernels of :mod:`ocar.accel.triton.average`.
        inverting: Those of :mod:`ocar.accel.triton.invert`.
        multiplying: Those of :mod:`ocar.accel.triton.precondition`.
        head: The name of the one whose G may start again, if any.
    """

    def __init__(
        self,
        blocks: Mapping[str, KroneckerBlock],
        mixing: ModuleType,
        inverting: ModuleType,
        multiplying: ModuleType,
        *,
        head: str | None,
    ) -> None:
        super().__init__(blocks, head=head)
        device = self._values.device
        self._kernels = mixing
        slots, sizes = self._slots, self._sizes
        starts = [
            slot.start + group * slot.size**2 for slot in slots for group in range(slot.groups)
        ]
        halves = [slot.key == "A" for slot in slots for _ in range(slot.groups)]
        self._many_inverses = ManyInverses(starts, sizes, halves, kernels=inverting, device=device)
        self._many_products = ManyProducts(list(self._places()), kernels=multiplying, device=device)
        chunks = [
            (matrix, first)
            for matrix, size in enumerate(sizes)
            for first in range(0, size**2, _CHUNK)
        ]
        self._starts_of, self._sizes_of, self._chunks, self._others = (
            torch.tensor(table, dtype=torch.int32, device=device)
            for table in (starts, sizes, chunks, self._partners.tolist())
        )
        self._traces = torch.zeros(2, len(sizes), device=device)
        self._infinite = torch.zeros(len(sizes), dtype=torch.int32, device=device)
        self._yes = torch.ones((), dtype=torch.bool, device=device)
        self._rehearse()

    def _places(self) -> Iterator[Place]:
        """Where the gradients lie that :meth:`precondition_` puts in a row, and their inverses."""
        at = 0
        by_key = {(slot.layer, slot.key): slot for slot in self._slots}
        for layer, block in self._blocks.items():
            a, g = by_key[layer, "A"], by_key[layer, "G"]
            for group in range(block.groups):
                root, inverse = a.start + group * a.size**2, g.start + group * g.size**2
                yield Place(at, root, inverse, rows=g.size, columns=a.size)
                at += g.size * a.size

    def _rehearse(self) -> None:
        """Have all kernels compiled, side by side: while a graph is recorded it cannot be done.

        The averages are mixed with nothing, and no inverse is taken.
        """
        refused = torch.ones_like(self._infinite)
        count = sum(block.gradient_size for block in self._blocks.values())
        zeros = torch.zeros(count, device=self._values.device)
        jobs: list[Callable[[], object]] = [
            lambda: self._many_inverses.invert(self._scratch, self._inverses, unless=refused),
            lambda: self.mix(0.0, 0.0, 1.0, accepted=self.accept(self._yes)),
            lambda: self._many_products.multiply(zeros, self._inverses),
        ]
        run_side_by_side(jobs, self._values.device)

    def accept(self, accepted: Tensor | None) -> Tensor | None:
        """As of any pool; the traces that :meth:`mix` needs are summed up by the way."""
        block = 1 << (max(self._sizes) - 1).bit_length()
        self._kernels.trace[(len(self._sizes),)](
            *(self._values, self._scratch, self._starts_of, self._sizes_of, self._traces),
            len(self._sizes),
            BLOCK=block,
        )
        # The diagonals bound the rest.
        return None if accepted is None else accepted & self._traces[1].sum().isfinite()

    def mix(
        self,
        ema: Tensor | float,
        head_rate: Tensor | float,
        damping: Tensor | float,
        *,
        accepted: Tensor | None,
    ) -> Tensor:
        """As of any pool, in one kernel."""
        self._count_outputs()
        head = len(self._sizes) - 1 if self._head is not None else -1
        self._kernels.mix[(len(self._chunks),)](
            *(self._values, self._scratch, self._starts_of, self._sizes_of, self._traces),
            *(self._dims, self._others, *map(self._on_device, (ema, head_rate, damping))),
            *(self._yes if accepted is None else accepted, self._infinite, self._chunks),
            *(len(self._sizes), head),
            BLOCK=_CHUNK,
        )
        return self._infinite.sum()

    def _on_device(self, number: Tensor | float) -> Tensor:
        if isinstance(number, Tensor):
            return number.double()
        return torch.full((), number, dtype=torch.float64, device=self._values.device)

    def inversions(self) -> Iterator[tuple[int, Callable[[], Tensor]]]:
        """One job that inverts all damped averages."""
        yield 1, self._invert_all

    def _invert_all(self) -> Tensor:
        return self._many_inverses.invert(self._scratch, self._inverses, unless=self._infinite)

    def renew(self, reports: list[Tensor], infinite: Tensor) -> Tensor:
        """As of any pool; the inverses are there already if all of them are good."""
        (bad,) = reports
        return bad.count_nonzero()

    def precondition_(self) -> bool:
        """Rewrite the gradients of all blocks together, if that can be done, and say so."""
        grads = [p.grad for block in self._blocks.values() for p in block.parameters]
        if any(grad is None or grad.dtype != torch.float32 for grad in grads):
            return False
        blocks = list(self._blocks.values())
        matrices = [block.gradient() for block in blocks]
        flat = torch.cat([matrix.reshape(-1) for matrix in matrices])
        product = self._many_products.multiply(flat, self._inverses)
        parts = product.split([matrix.numel() for matrix in matrices])
        for block, matrix, part in zip(blocks, matrices, parts, strict=True):
            block.replace_gradient(part.view_as(matrix))
        return True

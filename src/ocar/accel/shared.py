"""A model that several ranks run together: each takes some rows of a batch.

All ranks know the whole batch. For a forward pass each takes its rows, and all get the outputs of
all rows; so a loss is computed on the whole batch everywhere, and is the same to the bit. Of its
gradient a rank has the part of its own rows: the outputs of the others are constants. The sum over
ranks is the gradient of the loss.

A rank needs at least two rows, since layers tell by them what is a sample. A batch that is too
small for this is rank 0's alone. The others compute it too, but their part does not count.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ocar.accel.buffer import FactorBuffer
from ocar.accel.draws import OwnDraws
from ocar.accel.ranks import Ranks, bounds
from ocar.accel.shared_norm import synchronized_norms
from ocar.structure import Inputs

LEAST_ROWS = 2
"""Rows of a batch for each rank; a batch with fewer is not shared out."""


@dataclass(frozen=True)
class Share:
    """The rows of a batch that each rank has, and this one in particular."""

    counts: tuple[int, ...]  #: How many rows each rank has.
    first: int  #: The first row of this rank.
    count: int  #: How many rows this rank has.
    computed: slice  #: The rows that this rank computes: its own, or all if it has none.

    @property
    def rows(self) -> int:
        """Rows of the whole batch."""
        return sum(self.counts)

    @property
    def weight(self) -> float:
        """The fraction of the rows that this rank has."""
        return self.count / self.rows


class SharedModel:
    """Shares the forward and backward passes of a model out over ranks.

    Args:
        ranks: The ranks.
        model: The model; all ranks get the weights of rank 0.

    Attributes:
        draws: The generators that its layers draw from; None if it has none.
    """

    def __init__(self, ranks: Ranks, model: nn.Module) -> None:
        self.ranks = ranks
        self.draws: OwnDraws | None = None
        self._model = model
        self._norms = [m for m in model.modules() if isinstance(m, _BatchNorm)]
        shapes = [(n, tuple(t.shape), str(t.dtype)) for n, t in model.state_dict().items()]
        kind = zlib.crc32(repr(shapes).encode())
        ranks.require_equal("models", f"{type(model).__name__} with tensors of checksum {kind:x}")
        for tensor in [*model.parameters(), *model.buffers()]:
            held = tensor.detach().contiguous()
            ranks.broadcast_(held.flatten().view(torch.uint8))  # gloo does not know every type
            tensor.detach().copy_(held)

    def share(self, rows: int) -> Share:
        """The share of this rank in a batch of so many rows."""
        size, rank = self.ranks.size, self.ranks.rank
        limits = bounds(rows, size)
        if rows < LEAST_ROWS * size:
            limits = [(0, rows), *[(rows, rows)] * (size - 1)]
        first, last = limits[rank]
        computed = slice(first, last) if last > first else slice(0, rows)
        return Share(tuple(b - a for a, b in limits), first, last - first, computed)

    def call(self, function: Callable[[Inputs], Tensor], x: Inputs) -> Tensor:
        """``function(x)``, ``(n, ...)``, of which each rank computes some rows.

        The inputs ``(n, ...)`` are the same on all ranks.
        """
        share = self.share(len(x))
        with self._running(share):
            own = function(x[share.computed])[: share.count]
        whole = self.ranks.all_gather(own, share.counts)
        if not own.requires_grad:
            return whole
        last = share.first + share.count
        return torch.cat([whole[: share.first], own, whole[last:]])

    @contextmanager
    def _running(self, share: Share) -> Iterator[None]:
        """Layers that look at the batch, or draw, do so for the share of this rank."""
        alone = share.counts[0] == share.rows
        with ExitStack() as stack:
            if self.ranks.batchnorm == "synchronized" and not alone:
                stack.enter_context(synchronized_norms(self._norms, self.ranks))
            if self.draws is not None:
                stack.enter_context(self.draws.part(self.ranks.rank))
            yield

    @torch.no_grad()
    def average_statistics_(self) -> None:
        """Give all ranks the mean of the running statistics, if each has moved its own.

        Call it after the backward pass, which needs them as they are.
        """
        own = self.ranks.batchnorm == "own"
        moved = [n for n in self._norms if own and n.training and n.track_running_stats]
        tensors = [t for n in moved for t in (n.running_mean, n.running_var) if t is not None]
        if tensors:
            flat = torch.cat([t.flatten() for t in tensors])
            self._spread(self.ranks.sum_(flat) / self.ranks.size, tensors)

    @torch.no_grad()
    def sum_gradients_(self, parameters: Sequence[nn.Parameter]) -> None:
        """Replace the gradients by their sums over ranks, in one message a type.

        A parameter has no gradient if it has none on any rank.
        """
        for dtype in dict.fromkeys(p.dtype for p in parameters):
            own = [p for p in parameters if p.dtype == dtype]
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in own]
            known = grads[0].new_tensor([p.grad is not None for p in own])
            flat = self.ranks.sum_(torch.cat([*(g.flatten() for g in grads), known]))
            self._spread(flat[: -len(own)], grads)
            if all(p.grad is not None for p in own):
                continue
            for parameter, grad, count in zip(own, grads, flat[-len(own) :].tolist(), strict=True):
                parameter.grad = grad if count else None

    def start_average_(
        self, buffer: FactorBuffer, names: Sequence[str], rows: int
    ) -> Callable[[], None]:
        """Begin to replace estimates, means over this rank's rows, by means over all rows.

        The result waits for the other ranks and writes the means. The estimates must not be used
        until it was called.
        """
        packed = buffer.pack(names).mul_(self.share(rows).weight)
        if self.ranks.factor_dtype == "float16":
            wait = self._start_rounded_sum_(packed, buffer.packed_sizes(names))
        else:
            wait = self.ranks.start_sum_(packed)
        return lambda: buffer.unpack_(wait(), names)

    def _start_rounded_sum_(self, packed: Tensor, sizes: Sequence[int]) -> Callable[[], Tensor]:
        """Begin to replace statistics by their sums over ranks, which travel with 16 bits.

        Each is divided by the sum of its largest numbers on each rank. So no sum over some ranks
        exceeds 1, and nothing overflows.
        """
        parts = packed.split([*sizes])
        largest = self.ranks.sum_(torch.stack(torch._foreach_norm(parts, torch.inf)))
        scales = largest.clamp_min(torch.finfo(packed.dtype).tiny).unbind()
        torch._foreach_div_(parts, scales)
        wait = self.ranks.start_sum_(packed.to(torch.float16))

        def restore() -> Tensor:
            packed.copy_(wait())
            torch._foreach_mul_(parts, scales)
            return packed

        return restore

    def _spread(self, flat: Tensor, tensors: Sequence[Tensor]) -> None:
        parts = flat.split([t.numel() for t in tensors])
        torch._foreach_copy_(
            list(tensors), [p.view_as(t) for p, t in zip(parts, tensors, strict=True)]
        )

"""An update of K-FAC in a step that is being recorded as a CUDA graph.

Nothing waits for more than it needs. The A of a convolution is estimated beside the rest of the
forward pass and its G beside the rest of the backward pass of the Fisher's root. As soon as that
has come to all layers of a part of the pool, these are averaged, damped and inverted beside what is
left of it and beside the backward pass of the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ocar.curvature.blocks import Block, KroneckerBlock
from ocar.curvature.lanes import Lanes
from ocar.curvature.pool import FactorPool, Part


@dataclass(frozen=True, eq=False)
class Rates:
    """What an update is done with; scalars on the device."""

    ema: Tensor | float
    damping: Tensor | float

    accepted: Tensor | None
    """Whether the averages may change; None if they do in any case."""

    input_weights: Tensor | None
    """Weights of the samples in A, if any."""

    head_rate: Tensor | float
    """Weight of a new G of the head, in place of ``ema``."""

    active: Tensor | None
    """How many outputs of the head there are; None for all."""


class RecordedUpdate:
    """One update, from the forward pass to the new inverses.

    Args:
        blocks: All blocks, by name.
        pool: What some of their factors lie in, if any do.
        device: A CUDA device.
    """

    def __init__(
        self, blocks: Mapping[str, Block], pool: FactorPool | None, device: torch.device
    ) -> None:
        self._blocks = blocks
        self._pool = pool
        self._estimating, self._inverting = Lanes(device, half=0), Lanes(device, half=1)
        self.samples = 0
        """How many the batch has, once it has begun."""
        self._rates: Rates | None = None
        self._begun: set[str] = set()  # layers whose A is being estimated
        self._part_of = {n: part for part in self._parts for n in part.layers}
        self._awaited = {part: set(part.layers) for part in self._parts}
        self._taken: list[Tensor] = []
        self._infinite: list[Tensor] = []
        self._failed: list[Tensor] = []
        self._reports: list[Tensor] = []

    @property
    def _parts(self) -> tuple[Part, ...]:
        return () if self._pool is None else self._pool.parts

    def _pooled(self, name: str) -> tuple[KroneckerBlock, dict[str, Tensor]]:
        assert self._pool is not None
        block = self._blocks[name]
        assert isinstance(block, KroneckerBlock)
        return block, self._pool.places(name)

    def see_input(self, name: str, x: Tensor, weights: Tensor | None = None) -> None:
        """The input of a layer is there, samples first: estimate A, if it is in the pool."""
        if name in self._part_of and name not in self._begun:
            block, places = self._pooled(name)
            job = partial(block.estimate_inputs, x, weights, out=places["A"])
            self._estimating.start(block.cost, job, keep=(x, weights))
            self._begun.add(name)

    def begin(self, inputs: Mapping[str, Tensor], rates: Rates, *, samples: int) -> None:
        """All inputs are there, and the gradients of the root come next.

        Args:
            inputs: Of each layer, samples first.
            rates: How they will be used.
            samples: How many there are.
        """
        self._rates, self.samples = rates, samples
        for name, x in inputs.items():
            self.see_input(name, x, rates.input_weights)

    def see_gradients(self, name: str, gradients: Tensor) -> None:
        """The gradients of the root at the output of a layer are there: estimate G.

        Args:
            name: Whose.
            gradients: Shape ``(columns, samples, *of the output)``.
        """
        part = self._part_of.get(name)
        if part is None or name not in self._awaited[part]:
            return
        block, places = self._pooled(name)
        job = partial(block.estimate_gradients, gradients, out=places["G"])
        self._estimating.start(gradients.numel(), job, keep=gradients)
        self._awaited[part].remove(name)
        if not self._awaited[part]:
            assert self._pool is not None
            jobs = [(cost, partial(self._report, job)) for cost, job in self._pool.inversions(part)]
            self._inverting.run_in_turn(partial(self._average, part), jobs, after=self._estimating)

    def _average(self, part: Part) -> None:
        pool, rates = self._pool, self._rates
        assert pool is not None
        assert rates is not None
        taken, active = None, rates.active
        if rates.accepted is not None:
            taken = pool.accept(part, rates.accepted)
            self._taken.append(taken)
            if part.head is not None and active is not None:
                known = part.head.active_outputs
                active = active if known is None else torch.where(taken, active, known)
        pool.average(part, rates.ema, rates.head_rate, accepted=taken)
        self._infinite.append(pool.damp(part, rates.damping, active))

    def _report(self, job: Callable[[], Tensor]) -> None:
        self._reports.append(job())

    def end(self, layers: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        """The backward pass of the root is done.

        Args:
            layers: Input and gradients of each layer that it came to, samples first.
        """
        for name, (_, gradients) in layers.items():
            self.see_gradients(name, gradients)
        if any(self._awaited.values()):
            raise NotImplementedError("The layers in use have changed.")
        jobs = [
            (self._blocks[name].cost, partial(self._take_alone, name, *xg))
            for name, xg in layers.items()
            if name not in self._part_of
        ]
        if jobs:
            self._estimating.run(jobs, keep=layers)

    def _take_alone(self, name: str, x: Tensor, g: Tensor) -> None:
        """All of it for a block that is not in the pool."""
        block, rates = self._blocks[name], self._rates
        assert rates is not None
        estimate = block.estimate(x, g, rates.input_weights)
        finite, rate = total(estimate).isfinite(), rates.ema
        if rates.accepted is not None:
            estimate = {key: value.nan_to_num() for key, value in estimate.items()}
            rate = (rates.accepted & finite).double() * rate
            finite = torch.ones_like(finite)
        block.average(estimate, dict.fromkeys(estimate, rate))
        self._infinite.append((~finite).long())
        self._failed.append(block.renew_inverse_(rates.damping).long())

    def finish(self) -> Tensor:
        """Wait for everything and take the inverses, if all of them are good.

        Returns:
            How many averages were not finite and how many factors had no inverse.
        """
        self._estimating.join()
        self._inverting.join()
        if self._pool is not None:
            self._failed.append(self._pool.failures(self._reports))
        trouble = torch.stack([torch.stack(self._infinite).sum(), torch.stack(self._failed).sum()])
        if self._pool is not None:
            good = trouble.sum() == 0
            if len(self._taken) > 1:  # some may have been taken before another was not
                taken = torch.stack(self._taken)
                good &= taken.all() == taken.any()
            self._pool.renew(good)
        return trouble

    def take(self) -> None:
        """Let the averages last; after :meth:`finish`, in any order with what uses the inverses."""
        if self._pool is None:
            return
        taken = torch.stack(self._taken).all() if self._taken else None
        self._pool.take(taken)
        head = next((part.head for part in self._parts if part.head is not None), None)
        assert self._rates is not None
        if head is not None and head.active_outputs is not None and self._rates.active is not None:
            known, count = head.active_outputs, self._rates.active
            known.copy_(count if taken is None else torch.where(taken, count, known))


def total(estimate: Mapping[str, Tensor]) -> Tensor:
    """A number that is finite only if all statistics of a layer are.

    A factor has sums of squares on its diagonal, so a number that is not finite
    anywhere shows there.
    """
    parts = [
        (value if key == "F" else value.diagonal(dim1=-2, dim2=-1)).sum()
        for key, value in estimate.items()
    ]
    return torch.stack(parts).sum()

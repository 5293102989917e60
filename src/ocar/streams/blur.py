"""Blurry task boundaries: tasks exchange part of their samples."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ocar.config import require


def exchanged(sizes: Sequence[int], fraction: float) -> list[int]:
    """How many samples tasks of some sizes each give away, and get.

    This is the fraction of its samples, rounded, but no more than all other tasks take together.
    """
    counts = [round(fraction * size) for size in sizes]
    largest = max(range(len(counts)), key=counts.__getitem__)
    others = sum(counts) - counts[largest]
    counts[largest] = min(counts[largest], others)
    return counts


def blur(tasks: Sequence[Tensor], *, fraction: float, generator: torch.Generator) -> list[Tensor]:
    """Exchange a fraction of the samples of each task with other tasks.

    A random fraction is taken out of each task and dealt at random to the free places, so that no
    sample returns to its own task. The other samples keep their places. With a fraction f, a task
    has 1 − f of its own samples and f of the others', as in the blurry streams of Bang et al.,
    "Rainbow Memory" (2021).

    Args:
        tasks: The samples of each task in order, ``(n_t,)`` each; several if any is exchanged.
        fraction: In [0, 1).
        generator: Draws on the host.

    Returns:
        Tasks of the same sizes, with the same samples in all.
    """
    require("blurry", fraction, 0 <= fraction < 1, "in [0, 1)")
    if fraction == 0:
        return list(tasks)
    require("blurry", fraction, len(tasks) > 1, "0 where there is one task only")
    counts = exchanged([len(task) for task in tasks], fraction)
    places = [
        torch.randperm(len(task), generator=generator)[:count]
        for task, count in zip(tasks, counts, strict=True)
    ]
    pool = torch.cat([task[free] for task, free in zip(tasks, places, strict=True)])
    home = torch.repeat_interleave(torch.arange(len(tasks)), torch.tensor(counts))
    dealt = _derange(home, generator)
    mixed = []
    for task, free, mine in zip(tasks, places, pool[dealt].split(counts), strict=True):
        task = task.clone()
        task[free] = mine
        mixed.append(task)
    return mixed


def _derange(home: Tensor, generator: torch.Generator) -> Tensor:
    """A random permutation that returns nothing to its own group.

    ``home`` is the group of each place, ``(n,)``; none is larger than the others together. The
    result, ``(n,)``, has ``home[result] != home`` everywhere.
    """
    dealt = torch.randperm(len(home), generator=generator)
    for place in torch.nonzero(home[dealt] == home).flatten().tolist():
        group = home[place]
        if home[dealt[place]] != group:
            continue  # an earlier swap has mended it
        # After such a swap both places are right. A partner exists: of the places of other
        # groups, fewer than the group's size hold one of the group.
        partners = torch.nonzero((home != group) & (home[dealt] != group)).flatten()
        chosen = partners[torch.randint(len(partners), (), generator=generator)]
        dealt[place], dealt[chosen] = dealt[chosen].clone(), dealt[place].clone()
    return dealt

"""Blurry task boundaries: part of each task's samples change places with other tasks'."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ocar.errors import ConfigError


def exchanged(sizes: Sequence[int], fraction: float) -> list[int]:
    """How many samples each task gives away, and gets.

    It is the fraction of its samples, rounded; but no task can give more than all the others
    together take.

    Args:
        sizes: Samples of each task.
        fraction: Part of them to give away, in 0..1.
    """
    counts = [round(fraction * size) for size in sizes]
    largest = max(range(len(counts)), key=counts.__getitem__)
    others = sum(counts) - counts[largest]
    counts[largest] = min(counts[largest], others)
    return counts


def blur(tasks: Sequence[Tensor], *, fraction: float, generator: torch.Generator) -> list[Tensor]:
    """Tasks of the same sizes, a fraction of whose samples are other tasks'.

    Of each task a random fraction is taken out, and what was taken out is dealt at random to the
    places left free, so that none comes back to its own task. The other samples stay where they
    are. With a fraction f, a task is made of 1 − f of its own samples and f of the others', as in
    the blurry streams of Bang et al., "Rainbow Memory" (2021).

    Args:
        tasks: The samples of each task in order, ``(n_t,)`` each.
        fraction: In [0, 1).
        generator: Draws on the host.

    Returns:
        As ``tasks``; together they hold the same samples.

    Raises:
        ConfigError: The fraction is out of range, or there is one task only.
    """
    if not 0 <= fraction < 1:
        raise ConfigError(f"Invalid blurry={fraction}. Must be in [0, 1).")
    if fraction == 0:
        return list(tasks)
    if len(tasks) < 2:
        raise ConfigError(f"Invalid blurry={fraction}. Must be 0 where there is one task only.")
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
    """A random permutation that puts nothing where its own group was.

    Args:
        home: The group of each place, ``(n,)``; none larger than the others together.
        generator: Draws on the host.

    Returns:
        ``(n,)``: what comes to each place; ``home[result] != home`` throughout.
    """
    dealt = torch.randperm(len(home), generator=generator)
    for place in torch.nonzero(home[dealt] == home).flatten().tolist():
        group = home[place]
        if home[dealt[place]] != group:
            continue  # mended by an earlier swap
        # Both ends of such a swap are right afterwards. There is one: of the places of other
        # groups, fewer than the group's size hold one of the group.
        partners = torch.nonzero((home != group) & (home[dealt] != group)).flatten()
        chosen = partners[torch.randint(len(partners), (), generator=generator)]
        dealt[place], dealt[chosen] = dealt[chosen].clone(), dealt[place].clone()
    return dealt

"""Random numbers of layers: Dropout and its kin draw from PyTorch's global generators only.

A learner with such layers has generators of its own. They take the place of the global ones while
it works, so that its draws follow its seed and can be saved, and the user's are left alone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

_lock = threading.RLock()  # the global generators belong to the process


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()  # the thread that held it is not part of a forked process


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


class OwnDraws:
    """Generators that can take the place of PyTorch's global ones, if they are ``enabled``.

    While they do, other threads that draw from the global generators draw from these. There is at
    most one for each device.
    """

    def __init__(self, generators: Sequence[torch.Generator], *, enabled: bool = True) -> None:
        self._own = tuple(generators)
        self._enabled = enabled
        self._inside = False

    @property
    def generators(self) -> tuple[torch.Generator, ...]:
        """What holds their state now: inside a call the global generators."""
        return tuple(map(_global, self._own)) if self._inside else self._own

    @contextmanager
    def __call__(self, *, keep: bool = True) -> Iterator[None]:
        """Inside it layers draw from these generators; without ``keep`` they are then set back."""
        if not self._enabled:
            yield
            return
        with _lock:
            before = None if self._inside else [_replace(own) for own in self._own]
            self._inside = True
            states = None if keep else [g.get_state() for g in self.generators]
            try:
                yield
            finally:
                for generator, state in zip(self.generators, states or (), strict=False):
                    generator.set_state(state)
                if before is not None:
                    self._inside = False
                    for own, theirs in zip(self._own, before, strict=True):
                        _put_back(own, theirs)

    @contextmanager
    def part(self, number: int) -> Iterator[None]:
        """Inside it layers draw the numbers of one part of a batch, others than those of another.

        Afterwards the generators have moved by one draw, whatever was drawn.
        """
        if not self._enabled:
            yield
            return
        host = next(g for g in self.generators if g.device.type == "cpu")
        seed = int(torch.randint(2**62, (), generator=host))
        states = [generator.get_state() for generator in self.generators]
        try:
            for generator in self.generators:
                generator.manual_seed(seed + number)
            yield
        finally:
            for generator, state in zip(self.generators, states, strict=True):
                generator.set_state(state)


def host_and(device: torch.device) -> list[torch.device]:
    """The devices on which the layers of a model may draw: the host and the model's own."""
    host = torch.device("cpu")
    return [host] if device == host else [host, device]


def _global(own: torch.Generator) -> torch.Generator:
    """The global generator of the device of another."""
    if own.device.type != "cuda":
        return torch.default_generator
    index = own.device.index
    return torch.cuda.default_generators[torch.cuda.current_device() if index is None else index]


def _replace(own: torch.Generator) -> torch.Generator | torch.Tensor:
    """Let the global generator go on as another; returns what puts it back.

    On a GPU both then share one state. A recorded graph draws from the state that it was recorded
    with, and needs no replacement.
    """
    replaced = _global(own)
    if own.device.type == "cuda":
        before = replaced.graphsafe_get_state()
        replaced.graphsafe_set_state(own)
        return before
    state = replaced.get_state()
    replaced.set_state(own.get_state())
    return state


def _put_back(own: torch.Generator, before: torch.Generator | torch.Tensor) -> None:
    replaced = _global(own)
    if isinstance(before, torch.Generator):
        own.graphsafe_set_state(replaced)  # a failed recording has replaced its state
        replaced.graphsafe_set_state(before)
    else:
        own.set_state(replaced.get_state())
        replaced.set_state(before)

"""One seed, many named generators.

Nothing in the package touches the global random state. Each part asks for a generator by name. Name
and seed decide its draws, so a new part never changes the draws of another.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive_seed(seed: int, name: str) -> int:
    """A 63-bit seed for the part called ``name``, the same on every machine."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def make_generator(seed: int, name: str, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator on ``device`` for the part called ``name``, for example ``"memory"``."""
    generator = torch.Generator(device=device)
    generator.manual_seed(derive_seed(seed, name))
    return generator


@contextmanager
def random_kept() -> Iterator[None]:
    """Restore Python's global random state afterwards.

    For imports: some packages, scikit-learn through rich, draw from it when they are loaded.
    """
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)

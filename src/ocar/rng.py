"""One seed, many named generators.

No part of the package touches the global random state. Each part asks for a
generator by name; the name and the seed together decide its stream, so that
adding a part never changes the draws of another.
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
    """A generator on ``device`` for the part called ``name``.

    Args:
        seed: The seed of the whole experiment.
        name: What the generator is for, for example ``"memory"``.
        device: Where the random numbers are needed.
    """
    generator = torch.Generator(device=device)
    generator.manual_seed(derive_seed(seed, name))
    return generator


@contextmanager
def random_kept() -> Iterator[None]:
    """Put Python's global random state back afterwards.

    For imports: some packages, scikit-learn's through rich, draw from it as they are loaded.
    """
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)

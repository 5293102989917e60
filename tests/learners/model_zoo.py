"""Models of every kind that a learner may be given, and what becomes of each.

``ZOO`` has one entry a model: how it is made, what it is fed, the settings that it needs, and what
ER and OCAR do with it: they learn, or refuse it with a message. ``test_model_zoo.py`` tries them,
and the documentation lists them.
"""

from __future__ import annotations

from zoo import (
    devices,
    heads,
    images,
    normalisation,
    outputs,
    plain,
    random_numbers,
    sequences,
    weights,
    wrappers,
)
from zoo.parts import LEARNS, Entry, stream

__all__ = ["LEARNS", "ZOO", "Entry", "stream"]

KINDS = (
    *(plain, normalisation, random_numbers, images, sequences),
    *(heads, weights, wrappers, outputs, devices),
)
ZOO: dict[str, Entry] = {name: entry for kind in KINDS for name, entry in kind.zoo.items()}
assert len(ZOO) == sum(len(kind.zoo) for kind in KINDS)

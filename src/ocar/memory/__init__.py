"""Replay memories: a fixed number of slots, and a policy for which samples stay in them."""

from ocar.memory.class_balanced import ClassBalancedMemory
from ocar.memory.exponential import ExponentialMemory
from ocar.memory.memory import Batch, Memory, Offer, Placement
from ocar.memory.reservoir import ReservoirMemory
from ocar.memory.window import WindowMemory
from ocar.registry import Registry

MEMORIES: Registry[type[Memory]] = Registry(
    "memory",
    {
        "class-balanced": ClassBalancedMemory,
        "exponential": ExponentialMemory,
        "reservoir": ReservoirMemory,
        "window": WindowMemory,
    },
)
"""Memory policies by name."""

__all__ = [
    "MEMORIES",
    "Batch",
    "ClassBalancedMemory",
    "ExponentialMemory",
    "Memory",
    "Offer",
    "Placement",
    "ReservoirMemory",
    "WindowMemory",
]

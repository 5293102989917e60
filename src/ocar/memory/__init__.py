"""Replay memories: a fixed number of slots, and a rule for which samples stay in them."""

from ocar.memory.memory import MEMORIES, Batch, ClassBalancedMemory, Memory, ReservoirMemory

__all__ = ["MEMORIES", "Batch", "ClassBalancedMemory", "Memory", "ReservoirMemory"]

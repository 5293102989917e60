"""Kernels for Triton; imported by the other modules of :mod:`ocar.accel` where they are used."""

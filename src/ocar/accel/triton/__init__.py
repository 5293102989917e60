"""Kernels for Triton."""

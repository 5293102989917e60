"""How close is close: every tolerance of the tests, by what it stands for.

Each is the keyword arguments of :func:`torch.testing.assert_close` unless it says otherwise.
"""

from __future__ import annotations

from torch import Tensor

EXACT = {"rtol": 1e-8, "atol": 1e-10}
"""Two ways to compute the same number in float64."""

BITWISE = {"rtol": 0.0, "atol": 0.0}
"""The same computation twice."""

SINGLE = {"rtol": 1e-3, "atol": 1e-5}
"""float32 against float64, through a small network and a damped inverse."""

BFLOAT16 = 0.05
"""Relative error of a factor (Frobenius norm) under bf16 autocast, against float32."""

SINGLE_INVERSE_AT_1E7 = 0.2
"""Relative error (Frobenius norm) of a float32 inverse at condition number 1e7.

Perturbation theory allows condition · ε ≈ 1e7 · 6e-8 = 0.6 in the worst case.
"""

DEVIATIONS = 5.0
"""Standard errors that the mean of random draws with a fixed seed may be off."""

DOUBLE_KERNEL = 1e-10
"""Relative error, by norms, of an operation in float64 against its definition."""

SINGLE_KERNEL = 1e-5
"""Relative error, by norms, of an operation in float32 against its definition in float64."""

TF32_KERNEL = 5e-3
"""The same where a GPU rounds what it multiplies to eleven bits."""

FLOAT16_NETWORK = 0.02
"""Relative error of the logits of a network of twenty layers in float16; its rounding is 5e-4."""


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """The norm of the difference, by that of what is expected."""
    return float((actual.double() - expected.double()).norm() / expected.double().norm())

"""The cases of all operations."""

from __future__ import annotations

import cases_convolution
import cases_guard
import cases_kronecker
from implementations import Case

CASES: list[Case] = [*cases_kronecker.CASES, *cases_convolution.CASES, *cases_guard.CASES]

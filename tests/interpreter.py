"""Kernels for Triton are tested on a GPU, or on a CPU by Triton's interpreter.

For the second, install Triton and set TRITON_INTERPRET=1 in the environment.
"""

from __future__ import annotations

import importlib.util
import os
from types import ModuleType

import pytest
import torch
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and bool(importlib.util.find_spec("triton"))
NEEDS_TRITON = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not (torch.cuda.is_available() or INTERPRETED), reason="needs CUDA, or Triton's interpreter"
    ),
]
"""Marks of a module of such tests."""


def device_of_kernels(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> torch.device:
    """Where the kernels run; in the interpreter the tensors of a CPU pass for those of a GPU.

    Args:
        monkeypatch: Of the test.
        *modules: Those that ask for kernels, and get them there though there is no compiler.
    """
    if not INTERPRETED:
        return torch.device("cuda")
    monkeypatch.setattr(Tensor, "is_cuda", True)
    for module in modules:
        monkeypatch.setattr(module, "kernels", importlib.import_module)
    return torch.device("cpu")

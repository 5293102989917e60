"""What a GPU needs of libraries, loaded while the data of a run is read.

A first convolution on a GPU waits for libraries of hundreds of megabytes. Python is not needed for
that, so a thread can see to it while another reads the data.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
from torch.nn import functional

from ocar.compiled import kernels
from ocar.learners.captured import ALONE


@contextmanager
def loading_libraries(device: torch.device) -> Iterator[None]:
    """Inside it libraries for a GPU are loaded, the first time; after it they are there.

    Args:
        device: Where the run is; for a CPU nothing happens.
    """
    if device.type != "cuda":
        yield
        return
    loader = threading.Thread(target=_load, args=(device,), name="ocar-libraries", daemon=True)
    loader.start()
    try:
        yield
    finally:
        loader.join()


@functools.cache
def _load(device: torch.device) -> None:
    """Convolve, multiply and compile once; whatever is wrong shows in the run itself."""
    with suppress(RuntimeError), ALONE, torch.enable_grad():
        for dtype in (torch.float32, torch.float16):
            image = torch.zeros(1, 8, 8, 8, device=device, dtype=dtype)
            weight = torch.zeros(8, 8, 3, 3, device=device, dtype=dtype, requires_grad=True)
            functional.conv2d(image, weight, padding=1).flatten(1).mm(image.new_zeros(512, 1))
        output = functional.conv2d(image.float(), weight.float(), padding=1)
        torch.autograd.grad(output.sum(), weight)
        kernels("ocar.models.norm_kernels")

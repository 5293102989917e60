"""Names inside the library that measurements depend on: methods to time and kernels to recognise.

A change of the library that renames one of these changes this file and no other measurement.
"""

from __future__ import annotations

from typing import Any

from ocar.curvature import KFAC
from ocar.learner import Learner
from ocar.methods.ocar import OCARTransform

FORWARD, BACKWARD, PULL_BACK = "forward and loss", "backward", "pull-back of the Fisher's root"
FACTORS, INVERSES, PRECONDITIONING = "factors", "inverses", "preconditioning"
UPDATE, MEMORY, REST = "update", "memory", "augmentation and the rest"

FAMILIES: dict[str, tuple[str, ...]] = {
    "batch norm": ("batch_norm", "batchnorm", "bn_fw", "bn_bw", "bnorm", "welford"),
    "factorization": (
        "potrf", "getrf", "xxtrf", "potrs", "potri", "trsm", "trsv", "cholesky", "syrk", "lauum",
    ),
    "convolution": (
        "conv", "fprop", "dgrad", "wgrad", "cudnn", "implicit", "winograd", "im2col", "col2im",
        "nchwtonhwc", "nhwctonchw",
    ),
    "products": ("gemm", "gemv", "cutlass", "cublas", "splitk", "matmul", "nvjet", "dot_kernel"),
    "copies": ("memcpy", "memset", "copy_kernel", "catarray", "index", "gather", "scatter"),
    "elementwise and sums": (
        "elementwise", "multi_tensor", "foreach", "reduce", "softmax", "pool", "fill", "tri",
        "distribution", "random", "scan", "sort", "where", "arange",
    ),
}  # fmt: skip
"""Parts of the names of PyTorch's kernels, by family; the first family that matches counts."""

OWN: dict[str, tuple[str, ...]] = {
    "batch norm": ("forward", "backward", "join"),
    "factorization": ("begin", "divide", "subtract", "finish"),
    "convolution": (
        "multiply_channels_first", "multiply_channels_last", "convolve", "convolution",
    ),
    "products": ("multiply", "square_channels_first", "square_channels_last", "add_up"),
    "copies": ("channels_first", "channels_last", "copy", "write_rows", "restore"),
    "elementwise and sums": ("answer", "sum_up", "decide", "mix", "trace", "fill"),
}  # fmt: skip
"""Whole names of the library's Triton kernels, by family."""

OTHER = "other"


def family(kernel: str) -> str:
    """The family of a kernel, from its name."""
    for name, kernels in OWN.items():
        if kernel in kernels:
            return name
    low = kernel.lower()
    matching = (name for name, marks in FAMILIES.items() if any(mark in low for mark in marks))
    return next(matching, OTHER)


def timed_calls(learner: Learner) -> list[tuple[Any, str, str, str | None]]:
    """The calls inside an OCAR batch that begin another part of the work.

    Returns:
        Owner and name of each method, the part during a call, and the part after it: None for
        the part before the call.
    """
    transform = learner.transform
    assert isinstance(transform, OCARTransform)
    curvature = transform.curvature
    assert isinstance(curvature, KFAC)
    return [
        (learner, "learn", REST, None),
        *((learner.memory, method, MEMORY, REST) for method in ("draw", "gather", "add")),
        (learner.model, "forward", FORWARD, FORWARD),
        (transform, "observe", FACTORS, BACKWARD),
        (curvature.record(), "pull_back", PULL_BACK, None),
        (transform, "prepare", INVERSES, None),
        *((block, "estimate", FACTORS, None) for block in curvature.blocks),
        (transform, "rewrite_", PRECONDITIONING, UPDATE),
    ]

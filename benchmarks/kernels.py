"""Where the time of a captured OCAR batch goes on a GPU, by kind of kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

import torch

from benchmarks.results import Result, take_apart
from benchmarks.setup import Setup, slim_learner, stream_batch
from benchmarks.timing import Side, take_turns, wait_for, warm_up_calls

CLASSES = 100

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
"""What the name of a kernel holds, by kind; the first kind that fits counts."""

OWN = {
    "forward": "batch norm",
    "backward": "batch norm",
    "begin": "factorization",
    "divide": "factorization",
    "subtract": "factorization",
    "finish": "factorization",
    "multiply": "products",
    "multiply_rows": "convolution",
    "multiply_pixels": "convolution",
    "square_channels": "products",
    "square_pixels": "products",
    "add_up": "products",
    "by_channel": "copies",
    "by_pixel": "copies",
    "begin_and_turn": "convolution",
    "convolve": "convolution",
    "join": "batch norm",
    "answer": "elementwise and sums",
    "keep": "copies",
    "write_rows": "copies",
    "put_back": "copies",
    "sum_up": "elementwise and sums",
    "decide": "elementwise and sums",
    "look_for_copies": "elementwise and sums",
    "mix": "elementwise and sums",
    "trace": "elementwise and sums",
}
"""Kinds of our own kernels, by their whole names."""

OTHER = "other"


def family(kernel: str) -> str:
    """The kind of a kernel, from its name."""
    if kernel in OWN:
        return OWN[kernel]
    low = kernel.lower()
    fitting = (kind for kind, marks in FAMILIES.items() if any(mark in low for mark in marks))
    return next(fitting, OTHER)


def by_family(kernels: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Time of each kind of kernel.

    Args:
        kernels: Name and time of each.
    """
    totals: dict[str, float] = {}
    for name, duration in kernels:
        kind = family(name)
        totals[kind] = totals.get(kind, 0.0) + duration
    return totals


def measure_kernels(setup: Setup) -> Iterator[Result]:
    """Time of all kernels of one captured OCAR batch, by kind.

    Kernels that run side by side count each, so that the sum may be longer than the batch.
    """
    learner = slim_learner("ocar", classes=CLASSES, setup=setup)
    batch = Side("batch", stream_batch(learner, classes=CLASSES))
    times = take_turns([batch], turns=setup.turns, least=setup.least, device=setup.device)
    kernels = profile(batch, setup.device)
    yield take_apart(
        f"kernels of an OCAR batch, {setup.network}",
        by_family(kernels),
        unit="s of kernels a stream batch",
        note=(
            f"{len(kernels)} kernels and copies, some side by side, in a batch of "
            f"{1e3 * median(times[batch.name]):.2f} ms; {CLASSES} classes, captured"
        ),
    )


def profile(side: Side, device: torch.device) -> list[tuple[str, float]]:
    """Name and seconds of each kernel and copy of one call, which is not the first."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    for _ in range(warm_up_calls(device)):
        side.call()
    wait_for(device)
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with torch_profile(activities=activities, acc_events=True) as found:
        side.call()
        wait_for(device)
    return [
        (event.name, 1e-6 * event.time_range.elapsed_us())
        for event in found.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]

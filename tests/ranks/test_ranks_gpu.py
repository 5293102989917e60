"""One rank on a GPU sends by NCCL, and learns as a learner without ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rank_cases import finish, start_ranks

WORKER = Path(__file__).with_name("rank_gpu.py")
CASES = ("er mlp", "ocar groupnorm", "ocar batchnorm", "der++ mlp", "ocar transformer")


def check(batches: int, cases: tuple[str, ...], backend: str) -> None:
    (text,) = finish(start_ranks(1, [str(batches), *cases], WORKER))
    for case in cases:
        for memory in ("replicated", "sharded"):
            assert f"{case}: same with memory {memory}" in text
    assert "batchnorm: same" in text
    assert "factors: rounded" in text
    assert f"backend: {backend}" in text


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_one_rank_on_a_gpu_learns_by_nccl_as_without_ranks():
    check(12, CASES, "nccl")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU is used then")
def test_one_rank_on_a_cpu_learns_by_gloo_as_without_ranks():
    check(3, ("ocar batchnorm",), "gloo")

"""The measurements that need CUDA run, small."""

from __future__ import annotations

import pytest
import torch
from benchmarks import GROUPS, Breakdown, Ratio, Setup, Skipped, measure
from benchmarks.inside import OTHER

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),
]


@pytest.mark.parametrize("group", sorted(set(GROUPS) - {"mlp", "nngeometry", "serving", "wide"}))
def test_a_group_runs_on_cuda(group: str) -> None:
    results = list(measure(Setup.quick(torch.device("cuda")), [group]))
    assert results
    for result in results:
        if isinstance(result, Skipped) and "MNIST" in result.reason:
            pytest.skip(result.reason)
        assert not isinstance(result, Skipped)
        if isinstance(result, Ratio):
            assert result.ratio > 0


def test_kernels_of_a_recorded_batch_are_mostly_known() -> None:
    (found,) = measure(Setup.quick(torch.device("cuda")), ["parts"])
    assert isinstance(found, Breakdown)
    shares = {part.name: part.share for part in found.parts}
    assert {"convolution", "batch norm", "products", "factorization"} <= set(shares)
    assert shares.get(OTHER, 0.0) < 0.2


def test_the_small_stream_is_left_to_the_cpu() -> None:
    (found,) = measure(Setup.quick(torch.device("cuda")), ["mlp"])
    assert isinstance(found, Skipped)

"""`python -m benchmarks --only mlp` compares with Avalanche where it imports."""

from __future__ import annotations

import pytest
import torch
from benchmarks import Ratio, Setup, measure

pytestmark = pytest.mark.usefixtures("avalanche", "quiet")


def test_avalanches_replay_over_ours() -> None:
    setup = Setup.quick(torch.device("cpu"))
    results = {result.name: result for result in measure(setup, ["mlp"])}
    ratio = results["mlp, Avalanche"]
    assert isinstance(ratio, Ratio)
    assert (ratio.above, ratio.below) == ("Avalanche's replay", "ER")
    assert 0 < ratio.smallest <= ratio.ratio <= ratio.largest < float("inf")

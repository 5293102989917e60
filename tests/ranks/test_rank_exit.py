"""A rank that ends leaves the process group that ``Ranks`` has started, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest
from rank_cases import finish, start_ranks

WORKER = Path(__file__).with_name("rank_exit.py")


@pytest.mark.parametrize(("starter", "connected"), [("ranks", False), ("user", True)])
def test_a_rank_leaves_the_group_that_it_has_joined_itself(starter, connected):
    texts = finish(start_ranks(2, [starter], WORKER), timeout=100)
    assert texts == [f"connected {connected}\n"] * 2

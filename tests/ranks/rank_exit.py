"""One rank that ends without destroying the process group, which it or ``Ranks`` has started.

Argument: who starts the group, ``"ranks"`` or ``"user"``.
"""

from __future__ import annotations

import atexit
import sys
import time

import torch
from torch import distributed

import ocar


def main() -> None:
    # What is registered first runs last.
    atexit.register(lambda: print("connected", distributed.is_initialized(), flush=True))
    if sys.argv[1] == "user":
        distributed.init_process_group("gloo")
    ranks = ocar.Ranks(timeout=100)
    ranks.sum_(torch.ones(3))
    time.sleep(1.0 - ranks.rank)  # the first has the store, and leaves last


if __name__ == "__main__":
    main()

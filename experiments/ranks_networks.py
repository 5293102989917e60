"""What the scripts on ranks share: two small networks, operators that are called, torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ocar.models.resnet import SlimResNet18

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "MLP, 2 x 400 units": lambda: nn.Sequential(
        *(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(768, 400), nn.ReLU()),
        *(nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 10)),
    ),
    "ResNet18, width 8": lambda: SlimResNet18(width=8, classes=10),
}


class _Operators(TorchDispatchMode):
    """Counts calls of operators."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def operators(action: Callable[[], object]) -> int:
    """Operators that an action calls; most launch a kernel on a GPU."""
    with _Operators() as mode:
        action()
    return mode.count


def on_ranks(script: str, ranks: int, *words: str) -> Any:
    """The JSON that a script writes to its ``--rank-out`` if torchrun starts so many of it."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "measured.json"
        start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        command = [sys.executable, *start, script, "--rank-out", str(out), *words]
        subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        return json.loads(out.read_text())

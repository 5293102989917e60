"""What several ranks and one process learn alike: models, streams, methods."""

from __future__ import annotations

import ast
import os
import socket
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import ocar
from ocar.accel.ranks import bounds
from ocar.guard import GuardWarning
from ocar.learner import Learner

WORKER = Path(__file__).with_name("rank_worker.py")

Batches = list[tuple[Tensor, Tensor]]


class Attention(nn.Module):
    """Tokens, positions, one layer of attention, the mean over places."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(20, 8)
        self.positions = nn.Parameter(torch.randn(1, 6, 8) * 0.1)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(8, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.encoder(self.tokens(ids) + self.positions).mean(1))


class Recurrent(nn.Module):
    """A GRU of two directions; the head sees its outputs at the last time."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(3, 4, batch_first=True, bidirectional=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x)[0][:, -1])


def convolutional(norm: str) -> nn.Module:
    """A small network of two convolutions, with normalisation layers between."""
    make = {"group": lambda: nn.GroupNorm(2, 4), "batch": lambda: nn.BatchNorm2d(4)}[norm]
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, bias=False), make(), nn.ReLU(inplace=True)),
        *(nn.Conv2d(4, 4, 3, stride=2), make(), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(16, 2)),
    )


MODELS = {
    "mlp": lambda: nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2)),
    "groupnorm": lambda: convolutional("group"),
    "batchnorm": lambda: convolutional("batch"),
    "transformer": Attention,
    "recurrent": Recurrent,
    "evaluated": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 2)
    ),
    "dropout": lambda: nn.Sequential(nn.Linear(6, 12), nn.Dropout(0.3), nn.Linear(12, 2)),
}


METHODS: dict[str, dict[str, Any]] = {
    "er": {"lr": 0.05},
    "er-ace": {"lr": 0.05},
    "der++": {"lr": 0.03},
    "ocar": {},
    "ocar-ace": {},
    "ocar-der++": {},
    "ocar-slow": {},
}


def make_model(name: str) -> nn.Module:
    """A model in float64, the same for everybody who calls this."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return MODELS[name]().double()


def make_learner(
    method: str,
    model: str,
    ranks: ocar.Ranks | None,
    *,
    device: torch.device | str = "cpu",
    **settings: Any,
) -> Learner:
    """A learner with a small memory."""
    own = {"memory": 60, "replay_batch": 13, "passes": 2, "seed": 5} | METHODS.get(method, {})
    network = make_model(model).to(device)
    return ocar.make_learner(method, network, ranks=ranks, **(own | settings))


def make_stream(model: str, count: int, *, size: int = 10) -> Batches:
    """Batches of two classes at a time; later ones bring labels that are new."""
    generator = torch.Generator().manual_seed(1)
    labels = 6
    shapes = {"mlp": (6,), "dropout": (6,), "transformer": (6,), "recurrent": (4, 3)}
    shape = shapes.get(model, (1, 8, 8))
    centres = torch.randn(labels, *shape, generator=generator, dtype=torch.float64) * 2
    words = torch.randint(0, 20, (labels, *shape), generator=generator)
    found = []
    for index in range(count):
        first = 2 * (index * (labels // 2) // count)
        y = torch.randint(first, first + 2, (size,), generator=generator)
        if model == "transformer":
            noise = torch.randint(0, 20, (size, *shape), generator=generator)
            keep = torch.rand(size, *shape, generator=generator) < 0.6
            x = torch.where(keep, words[y], noise)
        else:
            x = centres[y] + torch.randn(size, *shape, generator=generator, dtype=torch.float64)
        found.append((x, y * 7 + 2))
    return found


def parse(case: str) -> tuple[str, str, dict[str, Any]]:
    """Method, model and settings of a case such as ``"ocar mlp replay_batch=3"``."""
    method, model, *options = case.split()
    settings: dict[str, Any] = {}
    for name, _, text in (option.partition("=") for option in options):
        try:
            settings[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            settings[name] = text
    return method, model, settings


FORGETS_AFTER = 9
"""Batches after which :func:`learn` forgets a class and two samples on request."""


SPOILED_AFTER = 9
"""Batches after which :func:`learn` spoils a factor, so that all other batches are refused."""


def learn(
    learner: Learner,
    stream: Batches,
    *,
    uneven: bool = False,
    forget: bool = False,
    spoil: bool = False,
) -> Learner:
    """Learn a stream, of each batch this rank's share.

    Uneven shares are all samples but two for the last rank, and one for each of two others.
    """
    ranks = learner.ranks
    for x, y in stream:
        rows = slice(None)
        if ranks is not None:
            first, last = bounds(len(x), ranks.size)[ranks.rank]
            if uneven:
                first = min(ranks.rank, 1 if ranks.size == 2 else 2)
                last = len(x) if ranks.rank == ranks.size - 1 else min(first + 1, 2)
            rows = slice(first, last)
        learner.learn(x[rows], y[rows])
        if spoil and learner.batches == SPOILED_AFTER:
            buffer = learner.transform.curvature.blocks[0].buffer
            buffer.average(next(iter(buffer.shapes))).diagonal(dim1=1, dim2=2).sub_(1e6)
            warnings.simplefilter("ignore", GuardWarning)
        if forget and learner.batches == FORGETS_AFTER:
            assert learner.forget(label=int(y[0])) > 0
            assert learner.forget(x[y != y[0]][:2]) > 0
            assert torch.equal(learner.memory.find(x), learner.memory.find(x[y != y[0]][2:]))
    return learner


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


def start_ranks(size: int, arguments: Sequence[str], script: Path = WORKER) -> list[Any]:
    """Start a script on some ranks, as torchrun does."""
    here, tests, root = Path(__file__).parents[:3]
    paths = [str(root / "src"), str(here), str(tests), os.environ.get("PYTHONPATH", "")]
    common = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(paths),
    }
    command = [sys.executable, "-W", "error::UserWarning", str(script), *arguments]
    return [
        subprocess.Popen(
            command,
            env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]


def finish(processes: Sequence[Any], *, timeout: float = 3000.0) -> list[str]:
    """Wait for ranks; raises with what they wrote if one fails."""
    texts = []
    try:
        texts = [process.communicate(timeout=timeout)[0] for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
    for rank, (process, text) in enumerate(zip(processes, texts, strict=True)):
        assert process.returncode == 0, f"Rank {rank} failed:\n{text}"
    return texts

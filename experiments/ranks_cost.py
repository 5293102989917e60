"""Time a batch of several ranks, by a model of latency and bandwidth that gloo checks here.

    python experiments/ranks_cost.py

The model is in ``ranks_messages.py``.

1. The check. torchrun starts 2 and 4 processes on this machine. They fit latency and bandwidth to
   messages of a few sizes. In turn with these they learn, and send the messages of one batch
   again without learning. The predicted time of a batch is that of its messages, and that of
   ranks that send nothing, each of which computes its share.
2. The prediction for GPUs, on paper: the messages of a batch; operations from shapes; the rates in
   ``ASSUMED``.

The result is ``results/ranks/cost.json``. With ``--predict`` only the prediction is made again.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch
from ranks_messages import (  # type: ignore[import-not-found]
    Link,
    Load,
    Message,
    by_rank,
    messages,
    triangles,
)
from ranks_networks import NETWORKS, on_ranks, operators  # type: ignore[import-not-found]
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import ocar
from ocar.accel import Pair
from ocar.accel.ranks import FactorType, Inverses, Ranks
from ocar.curvature.cost import Work, find_parts
from ocar.curvature.found import find_layers
from ocar.curvature.layers import DiagonalLayer, MatrixLayer
from ocar.methods.ocar import OCARSettings
from ocar.models.check import may_draw
from ocar.models.resnet import SlimResNet18
from ocar_lab.runs.provenance import describe_process

RESULT = Path("results/ranks/cost.json")
BENCH = Path("results/bench/h200.json")
SIZES = (64, 4096, 65536, 1 << 20, 1 << 22)
"""Bytes of the messages to which latency and bandwidth are fitted."""

NEW, REPLAYED, PASSES, COLUMNS = 256, 256, 3, 2
"""The batch of the prediction; columns of the Fisher, as OCAR has by default."""

MAX_COST = OCARSettings().max_cost or math.inf

ASSUMED: dict[str, Any] = {
    "gpu": "H200, float32 and TF32",
    "products": 60e12,  # operations a second
    "factorizations": 5e12,
    "links": {
        "8": {"about": "one node, NVLink", "latency": 5e-6, "bandwidth": 300e9},
        "64": {"about": "8 nodes, 400 Gb/s a GPU", "latency": 10e-6, "bandwidth": 40e9},
    },
    "host": {"about": "sizes and labels, by TCP", "latency": 50e-6, "bandwidth": 1e9},
}


# The check against gloo


class Noted(Ranks):
    """Ranks that keep a list of their messages."""

    noted: list[Message]

    def _send(self, kind: str, sent: Tensor, collective: Callable[[], Any]) -> Any:
        self.noted.append(Message(kind, sent.nbytes))
        return super()._send(kind, sent, collective)


class Silent(Ranks):
    """Ranks that compute their share and take the others' to be the same."""

    def all_gather(self, own: Tensor, counts: Sequence[int]) -> Tensor:
        """This rank's rows in place of those of each."""
        own = own.detach()
        return torch.cat([own[torch.arange(count) % max(1, len(own))] for count in counts])

    def start_sum_(self, tensor: Tensor) -> Callable[[], Tensor]:
        """As many times this rank's."""
        return partial(tensor.mul_, self.size)


def time_in_turn(
    actions: Mapping[Any, Callable[[], object]], ranks: Ranks, rounds: int
) -> dict[Any, float]:
    """Mean seconds of each action, which all ranks begin together, one after another in turn.

    Others may use the machine too. Means add up, and in turn all actions are disturbed alike.
    """
    found: dict[Any, list[float]] = {key: [] for key in actions}
    for _ in range(rounds):
        for key, action in actions.items():
            ranks.sum_(torch.zeros(1))
            start = time.perf_counter()
            action()
            found[key].append(time.perf_counter() - start)
    return {key: statistics.fmean(seconds) for key, seconds in found.items()}


def sender(message: Message, ranks: Ranks) -> Callable[[], object]:
    """Sends a message of that kind and size again."""
    tensor = torch.zeros(1, message.size, dtype=torch.uint8)
    if message.kind == "sum":
        numbers = torch.zeros(-(-message.size // 4))
        return lambda: ranks.sum_(numbers)
    return lambda: ranks.all_gather(tensor, [1] * ranks.size)


def call_all(actions: Sequence[Callable[[], object]]) -> None:
    """Call one after another."""
    for action in actions:
        action()


def fit(samples: Sequence[tuple[str, int, float]], ranks: int) -> Link:
    """Latency and bandwidth with the least relative errors."""
    way = Link(latency=1.0, bandwidth=1.0).way
    rows = torch.tensor([[*way(kind, size, ranks)] for kind, size, _ in samples]).double()
    seconds = torch.tensor([[s] for _, _, s in samples]).double()
    latency, pace = torch.linalg.lstsq(rows / seconds, torch.ones_like(seconds)).solution.flatten()
    return Link(latency=float(latency), bandwidth=1 / float(pace))


def measure(out: Path, rounds: int) -> None:
    """One rank of the check; the first writes what was measured."""
    torch.set_num_threads(1)
    ranks, silent, rounded = Noted(), Silent(), Noted(factor_dtype="float16")
    ranks.noted, rounded.noted = [], []
    probes = [Message(kind, size) for kind in ("sum", "gather") for size in SIZES]
    actions: dict[Any, Callable[[], object]] = {m: sender(m, ranks) for m in probes}
    sent: dict[str, list[Message]] = {}
    rounded_bytes: dict[str, int] = {}
    x, y = torch.randint(0, 256, (10, 3, 32, 32), dtype=torch.uint8), torch.arange(10)
    own = ranks.share(x), ranks.share(y)
    for name, make in NETWORKS.items():
        for kind, group in (("batch", ranks), ("computing", silent), ("rounded", rounded)):
            learner = ocar.OCAR(make(), memory=100, replay_batch=10, passes=PASSES, ranks=group)
            for _ in range(4):
                ranks.noted.clear()
                rounded.noted.clear()
                learner.learn(*own)
            if group is rounded:
                rounded_bytes[name] = sum(m.size for m in rounded.noted)
                continue
            actions[name, kind] = partial(learner.learn, *own)
            if group is ranks:
                sent[name] = list(ranks.noted)
        actions[name, "sending"] = partial(call_all, [sender(m, ranks) for m in sent[name]])
    seconds = time_in_turn(actions, ranks, rounds)
    link = fit([(m.kind, m.size, seconds[m]) for m in probes], ranks.size)
    found = []
    for name, noted in sent.items():
        sending = sum(link.seconds(m.kind, m.size, ranks.size) for m in noted)
        computing = seconds[name, "computing"]
        found.append(
            {
                "network": name,
                "messages": len(noted),
                "bytes": sum(m.size for m in noted),
                "bytes with float16": rounded_bytes[name],
                "sending": {"measured": seconds[name, "sending"], "predicted": sending},
                "computing": computing,
                "batch": {
                    "measured": seconds[name, "batch"],
                    "predicted": computing + sending,
                },
            }
        )
    if ranks.rank == 0:
        sizes = [[m.kind, m.size, seconds[m]] for m in probes]
        record = {"ranks": ranks.size, "link": asdict(link), "sizes": sizes, "networks": found}
        out.write_text(json.dumps(record))


def check_gloo(size: int, rounds: int) -> dict[str, Any]:
    """What :func:`measure` finds with so many processes."""
    found: dict[str, Any] = on_ranks(__file__, size, "--rounds", str(rounds))
    return found


# The prediction for GPUs


class VisionTransformer(nn.Module):
    """ViT-base with patches of 16 pixels, or a narrower one of the same layers."""

    def __init__(self, width: int = 768) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, stride=16)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, 197, width))
        layer = nn.TransformerEncoderLayer(
            width, 12, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(
            layer, 12, nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.head = nn.Linear(width, 100)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.positions
        return self.head(self.encoder(x)[:, 0])


PREDICTED: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module], int]] = {
    "ResNet18, 32 px": (
        lambda: SlimResNet18(width=64, classes=100),
        lambda: SlimResNet18(width=4, classes=100),
        32,
    ),
    "ViT-base, 224 px": (VisionTransformer, lambda: VisionTransformer(24), 224),
}
"""Networks, narrow ones of the same layers, pixels of an image side."""


def operators_of(make: Callable[[], nn.Module], pixels: int) -> int:
    """Operators of one OCAR batch, eager."""
    learner = ocar.OCAR(make(), memory=100, replay_batch=4, passes=PASSES)
    x = torch.randint(0, 256, (4, 3, pixels, pixels), dtype=torch.uint8)

    def learn() -> None:
        learner.learn(x, torch.arange(4))

    for _ in range(2):
        learn()
    return operators(learn)


class Operations(NamedTuple):
    """Operations of an OCAR batch."""

    shared: int  # passes and estimates of the factors
    products: dict[str, int]  # of each layer's gradients with its inverses
    factorizations: dict[str, int]  # of each layer

    def unshared(self, load: Load, ranks: int) -> float:
        """Seconds of what is not split by samples, on the rank that takes longest."""

        def seconds(numbers: Mapping[str, int], *, split: bool, pace: float) -> float:
            shares = by_rank(load.pairs, ranks if split else 1)
            return max(sum(numbers[pair.layer] for pair in own) for own in shares) / pace

        how, paces = load.inverses, (ASSUMED["products"], ASSUMED["factorizations"])
        applied = seconds(self.products, split=how == "sharded", pace=paces[0])
        return applied + seconds(self.factorizations, split=how != "replicated", pace=paces[1])


def on_meta(make: Callable[[], nn.Module], pixels: int) -> tuple[Load, Operations]:
    """What decides the messages of a batch, and its operations, from shapes."""
    with torch.device("meta"):
        model, x = make(), torch.empty(1, 3, pixels, pixels)
    draws = may_draw(model)
    locations: dict[nn.Module, int] = {}
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(
                lambda m, _, y: locations.__setitem__(m, y.shape[2] * y.shape[3])
            )
    with FlopCounterMode(display=False) as counter:
        model(x)
    tokens = 197 if isinstance(model, VisionTransformer) else 1
    layers = find_layers(model, set(model.parameters()))
    matrices = {layer.name: layer for layer in layers if isinstance(layer, MatrixLayer)}
    *_, head = matrices
    places = {name: locations.get(own.module, tokens) for name, own in matrices.items()}
    places[head] = 1
    rows = NEW + REPLAYED
    parts, _ = find_parts(matrices, places, Work(rows, PASSES), max_cost=MAX_COST)
    shared = counter.get_total_flops() * rows * (3 * PASSES + COLUMNS)
    products, factorizations = dict[str, int](), dict[str, int]()
    for name, layer in matrices.items():
        layer.parts = parts.get(name, 1)
        k, d, groups = layer.d_in, layer.d_out, layer.groups
        shared += rows * places[name] * (groups * k**2 + COLUMNS * d**2)
        products[name] = 2 * PASSES * groups * k * d * (k + d)
        factorizations[name] = groups * k**3 // 3 + d**3
    parameters = list(model.parameters())
    others = [own for own in layers if isinstance(own, DiagonalLayer)]
    sizes = [
        sum(triangles(own.shapes().values()) for own in matrices.values()),
        sum(sum(map(math.prod, own.shapes().values())) for own in others),
    ]
    counts = [sum(len(own.shapes()) for own in group) for group in (matrices.values(), others)]
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    load = Load(
        new=NEW,
        replayed=REPLAYED,
        passes=PASSES,
        sample=3 * pixels**2,
        outputs=100,
        columns=COLUMNS,
        parameters=sum(p.numel() for p in parameters),
        tensors=len(parameters),
        factors=tuple(size for size in sizes if size),
        statistics=tuple(count for count in counts if count),
        pairs=tuple(
            Pair(name, own.own_groups, own.d_in, own.d_out, parts=own.parts)
            for name, own in matrices.items()
        ),
        channels=tuple(m.num_features for m in norms),
        draws=draws,
    )
    return load, Operations(shared, products, factorizations)


def predict() -> list[dict[str, Any]]:
    """Time a batch on 1, 8 and 64 GPUs."""
    bench = {r["name"]: r for r in json.loads(BENCH.read_text())["results"]}
    eager = bench["recorded OCAR"]["time_above"]
    each = eager / operators_of(PREDICTED["ResNet18, 32 px"][1], 32)
    found = []
    for name, (make, narrow, pixels) in PREDICTED.items():
        load, work = on_meta(make, pixels)
        launching = each * operators_of(narrow, pixels)
        shared = work.shared / ASSUMED["products"]
        one = shared + work.unshared(load, 1)
        kinds = product((8, 64), get_args(Inverses), get_args(FactorType))
        for ranks, inverses, factor_dtype in kinds:
            load = replace(load, inverses=inverses, factor_dtype=factor_dtype)
            unshared = work.unshared(load, ranks)
            about = ASSUMED["links"][str(ranks)]
            link = Link(latency=about["latency"], bandwidth=about["bandwidth"], trees=True)
            host = Link(latency=ASSUMED["host"]["latency"], bandwidth=ASSUMED["host"]["bandwidth"])
            sent = list(messages(load, ranks))
            times = [(host if m.host else link).seconds(m.kind, m.size, ranks) for m in sent]
            sending, computing = sum(times), shared / ranks + unshared
            found.append(
                {
                    "network": name,
                    "ranks": ranks,
                    "inverses": inverses,
                    "factor_dtype": factor_dtype,
                    "messages": len(sent),
                    "bytes": sum(m.size for m in sent),
                    "sending": sending,
                    "computing": computing,
                    "unshared": unshared,
                    "launching": launching,
                    "batch": max(launching, computing + sending),
                    "share": sending / (computing + sending),
                    "one": one,
                }
            )
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=25, help="times that each is measured")
    parser.add_argument("--predict", action="store_true", help="leave what was measured before")
    parser.add_argument("--rank-out", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank_out is not None:
        measure(given.rank_out, given.rounds)
        return
    prediction = {
        "batch": {"new": NEW, "replayed": REPLAYED, "passes": PASSES},
        "assumed": ASSUMED,
        "predicted": predict(),
    }
    if given.predict:
        record = json.loads(RESULT.read_text()) | prediction
    else:
        about = describe_process(torch.device("cpu"))
        gloo = [check_gloo(size, given.rounds) for size in (2, 4)]
        record = {**about, **prediction, "gloo": gloo}
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(record, indent=1) + "\n")
    for row in [*record["predicted"], *(n for g in record["gloo"] for n in g["networks"])]:
        print(row)


if __name__ == "__main__":
    main()

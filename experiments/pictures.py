"""The runs behind the pictures of the documentation, on digits that need no download.

    python experiments/pictures.py      some minutes on one core

It writes ``results/pictures/digits.json``: the accuracy on the first two digits over time for ER
and OCAR, the spectrum of OCAR's curvature at the end of the stream, and what the learning rate α,
the damping τ and the weight λ of replayed samples do. Accuracies are on test data.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import ocar
from ocar.errors import NumericalError
from ocar.evaluate.loop import take_batch
from ocar.evaluate.measure import hits
from ocar.methods.registry import preset_settings
from ocar_lab.runs import describe_process

BENCHMARK = "split-digits"
OUT = Path("results/pictures/digits.json")
SEEDS = (0, 1, 2, 3, 4)
FACTORS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8)
N_NEW = (10, 5, 2, 1)


def run(method: str, seed: int, **settings: Any) -> tuple[ocar.Learner, list[list[float]]]:
    """One pass over the stream.

    Returns:
        The learner, and its accuracy on every task so far after each batch.
    """
    stream = ocar.make_stream(BENCHMARK, seed=seed)
    model = ocar.make_model("mlp", image_shape=(1, 8, 8), seed=seed)
    learner = ocar.make_learner(method, model, preset=BENCHMARK, seed=seed, **settings)
    history = []
    for batch in stream:
        take_batch(learner, stream, batch)
        tests = [stream.test(task) for task in range(batch.task + 1)]
        history.append([float(hits(learner, *test).double().mean()) for test in tests])
    return learner, history


def measure(history: Sequence[Sequence[float]]) -> dict[str, float]:
    """How well a run learned what was new, and what it kept of the old."""
    tasks = len(history[-1])
    ends = [max(i for i, row in enumerate(history) if len(row) == t + 1) for t in range(tasks)]
    lowest = [min(row[t] for row in history[ends[t] :]) for t in range(tasks - 1)]
    return {
        "new": statistics.fmean(history[end][task] for task, end in enumerate(ends)),
        "old": statistics.fmean(history[-1][:-1]),
        "lowest": statistics.fmean(lowest),
    }


def spectrum(learner: ocar.Learner) -> list[tuple[int, float]]:
    """Some eigenvalues of the averaged K-FAC curvature, without damping: rank and value."""
    tensors, _ = learner.state()
    prefix = "transform.curvature.averages."
    factors = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    values = []
    for name in {key.rpartition(".")[0] for key in factors if key.endswith(".A")}:
        a, g = (torch.linalg.eigvalsh(factors[f"{name}.{side}"].double()) for side in "AG")
        values.append(torch.outer(a.flatten(), g.flatten()).flatten())
    ordered = torch.cat(values).clamp(min=0).sort(descending=True).values
    ranks = torch.logspace(0, math.log10(len(ordered)), 200).round().long().unique().tolist()
    return [(rank, float(f"{ordered[rank - 1]:.3e}")) for rank in ranks]


def spread(rows: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Mean and standard deviation over seeds of each measure."""
    return {
        name: {
            "mean": round(statistics.fmean(row[name] for row in rows), 4),
            "std": round(statistics.stdev(row[name] for row in rows), 4),
        }
        for name in rows[0]
    }


def sweep(name: str, values: Sequence[float], **fixed: Any) -> list[dict[str, Any]]:
    """OCAR with several values of one setting.

    It has no guard here, which would keep a run from diverging and not from being of no use.
    """
    rows: list[dict[str, Any]] = []
    for value in values:
        found, diverged = [], 0
        for seed in SEEDS:
            try:
                found.append(measure(run("ocar", seed, guard=None, **{name: value}, **fixed)[1]))
            except NumericalError:
                diverged += 1
        rows.append({name: value, "diverged": diverged})
        rows[-1] |= spread(found) if len(found) > 1 else {}
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Run all, and write it down."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.parse_args()
    torch.set_num_threads(1)
    curves: dict[str, Any] = {}
    measured: dict[str, Any] = {}
    spectra: list[list[tuple[int, float]]] = []
    for method in ("er", "ocar"):
        histories = []
        for seed in SEEDS:
            learner, history = run(method, seed)
            histories.append(history)
            if method == "ocar" and seed == 0:
                spectra.append(spectrum(learner))
        length = min(map(len, histories))
        curves[method] = {
            "first": [
                round(statistics.fmean(h[i][0] for h in histories), 4) for i in range(length)
            ],
            "first_lowest": [round(min(h[i][0] for h in histories), 4) for i in range(length)],
            "first_highest": [round(max(h[i][0] for h in histories), 4) for i in range(length)],
            "task": [len(histories[0][i]) - 1 for i in range(length)],
        }
        measured[method] = spread([measure(history) for history in histories])
        print(method, measured[method])
    preset = preset_settings(BENCHMARK, "ocar")
    lr = float(preset["lr"])
    document = {
        "benchmark": BENCHMARK,
        "command": "python experiments/pictures.py",
        "seeds": list(SEEDS),
        "preset": {name: preset[name] for name in ("lr", "tau_step", "ema", "n_new")},
        "process": {
            k: v for k, v in describe_process(torch.device("cpu")).items() if k != "command"
        },
        "curves": curves,
        "measured": measured,
        "spectrum": spectra[0],
        "alpha": sweep("lr", [lr * factor for factor in FACTORS], tau=lr),
        "tau": sweep("tau", [lr * factor for factor in FACTORS]),
        "lambda": sweep("n_new", N_NEW),
    }
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(document, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

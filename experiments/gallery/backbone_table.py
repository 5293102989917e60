"""The tables and the picture of ``results/gallery/backbone.json``, for its page."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

SEEDS = (0, 1, 2)
FIRST = 5
"""Tasks of Split-CIFAR100 that the network from scratch learns: a batch trains all of it."""
NAMES = {
    "split-cifar100": "Split-CIFAR100",
    f"split-cifar100/{FIRST}": f"Split-CIFAR100, its first {FIRST} tasks",
    "pacs": "PACS",
}
ROWS = {
    "latent/lda": "frozen, streaming LDA",
    "latent/ncm": "frozen, nearest class mean",
    "latent/ocar": "frozen, OCAR, no settings",
    "latent/er": "frozen, ER, best rate",
    "latent/er-adam": "frozen, Adam with replay, best rate",
    "scratch/ocar": "from scratch, OCAR, no settings",
    "scratch/er": "from scratch, ER, best rate",
}
MEASURES = {"acc": "Acc", "aaa": "AAA", "wc_acc": "WC-Acc"}


def run_key(part: str, name: str, method: str, lr: float | None, seed: int) -> str:
    """Name of a run in the results file."""
    rate = "" if lr is None else f" lr={lr:g}"
    return f"{name}/{part}/{method}{rate}/{seed}"


def chosen_rate(data: dict[str, Any], name: str, row: str) -> float | None:
    """The learning rate of a row; the first tasks have that of the benchmark."""
    rate: float | None = data["chosen"].get(f"{name.split('/')[0]}/{row}")
    return rate


def scores(data: dict[str, Any], name: str, row: str) -> dict[str, list[float]]:
    """The measures of all seeds of a row, in per cent; empty if a seed is missing."""
    chosen = chosen_rate(data, name, row)
    part, method = row.split("/")
    runs = [data["runs"].get(run_key(part, name, method, chosen, seed)) for seed in SEEDS]
    if None in runs:
        return {}
    return {measure: [100 * (run[measure] or 0.0) for run in runs] for measure in MEASURES}


def table(data: dict[str, Any], name: str) -> str:
    """The rows of one benchmark as Markdown."""
    lines = [f"| | {' | '.join(MEASURES.values())} |", "|---|" + "---:|" * len(MEASURES)]
    for row, title in ROWS.items():
        found = scores(data, name, row)
        if found:
            chosen = chosen_rate(data, name, row)
            shown = title if chosen is None else title.replace("best rate", f"lr {chosen:g}")
            cells = (
                f"{statistics.mean(v):.1f} ± {statistics.stdev(v):.1f}" for v in found.values()
            )
            lines.append(f"| {shown} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def measured(data: dict[str, Any]) -> dict[str, str]:
    """The benchmarks that have a row, with their titles."""
    return {n: title for n, title in NAMES.items() if any(scores(data, n, row) for row in ROWS)}


def tables(data: dict[str, Any]) -> str:
    """Accuracy on each benchmark, then the time of a batch, as Markdown."""
    parts = [f"**{title}**\n\n{table(data, name)}" for name, title in measured(data).items()]
    return "\n".join([*parts, f"**Time of a batch**\n\n{times(data)}"])


def times(data: dict[str, Any]) -> str:
    """Milliseconds a batch on each device, and the cost of OCAR over ER."""
    lines = ["| | ER | Adam | OCAR | OCAR / ER |", "|---|" + "---:|" * 4]
    for place in dict.fromkeys(key.rsplit("/", 1)[0] for key in sorted(data["timing"])):
        device, part = place.split("/")
        name = data["made"][f"timing/{place}/er"]["device"]["name"]
        er, adam, ocar = (data["timing"].get(f"{place}/{m}") for m in ("er", "er-adam", "ocar"))
        cells = ["" if ms is None else f"{ms:.1f} ms" for ms in (er, adam, ocar)]
        title = f"{'frozen' if part == 'latent' else 'from scratch'}, {device}: {name}"
        lines.append(f"| {title} | {' | '.join(cells)} | {ocar / er:.1f} |")
    return "\n".join(lines) + "\n"


def draw(data: dict[str, Any], path: Path) -> None:
    """A bar for each row: the mean final accuracy, with a mark for each seed."""
    from matplotlib import pyplot

    names = measured(data)
    size = 4.5 * len(names), 2.8
    figure, axes = pyplot.subplots(1, len(names), figsize=size, sharex=True, squeeze=False)
    places = {row: place for place, row in enumerate(reversed(ROWS))}  # the same in all parts
    for axis, (name, title) in zip(axes[0], names.items(), strict=True):
        found = {row: place for row, place in places.items() if scores(data, name, row)}
        for row, place in found.items():
            values = scores(data, name, row)["acc"]
            colour = {"ocar": "#c0392b", "er": "#2471a3"}.get(row.split("/")[1], "#7f8c8d")
            faded = 0.5 if row.startswith("scratch") else 1.0
            axis.barh(place, statistics.mean(values), color=colour, alpha=faded)
            axis.plot(values, [place] * len(values), "k|", markersize=8)
        labels = [", ".join(ROWS[row].split(", ")[:2]) for row in found]
        axis.set_yticks(list(found.values()), labels, fontsize=8)
        axis.set_ylim(-0.6, len(ROWS) - 0.4)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("test accuracy at the end, %")
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=100)

"""The first page and the page on when to use it quote what is stored."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from docs_pages import DOCS, ROOT

MEASURES = ("acc", "aaa", "wc_acc")
OCAR = "OCAR, default settings"


def kept(benchmark: str, method: str) -> list[Mapping[str, float]]:
    """Metrics of the whole runs that ``ocar keep`` stored: of OCAR with its defaults."""
    defaults = " --defaults" if method == "ocar" else ""
    command = rf"ocar run \S+ {method} --seeds [\d ]+{defaults}( --splits own)?( --no-probe)? --dev"
    stored = [json.loads(path.read_text()) for path in ROOT.glob(f"results/{benchmark}/*-*.json")]
    found = [one for one in stored if re.match(command, str(one.get("command", "")))]
    found = [one for one in found if one["config"].get("splits") != "published"]
    return [run["metrics"] for one in found for run in one["runs"]]


def gallery(name: str, key: str) -> list[Mapping[str, float]]:
    """Runs of the gallery with seeds 0 to 2, by a regular expression of their names."""
    runs = json.loads((ROOT / f"results/gallery/{name}.json").read_text())["runs"]
    return [run for one, run in runs.items() if re.fullmatch(f"{key}/[012]", one)]


def classes() -> dict[tuple[str, str], Sequence[Mapping[str, float]]]:
    """The runs of each row of the table on classes and domains."""
    found: dict[tuple[str, str], Sequence[Mapping[str, float]]] = {}
    for title, name in (("MNIST", "split-mnist"), ("CIFAR100", "split-cifar100")):
        found[f"Split-{title}", OCAR] = kept(name, "ocar")
        found[f"Split-{title}", "ER, searched settings"] = kept(name, "er")
    found["Split-CIFAR100", "LPR, searched settings"] = kept("split-cifar100", "lpr")
    for method in ("ocar", "er", "lpr"):
        who = OCAR if method == "ocar" else f"{method.upper()}, searched settings"
        found["PACS", who] = kept("pacs", method)
    for title, name in (("embeddings", "text-embedding"), ("transformer", "text-tokens")):
        for who, method in ((OCAR, "ocar"), ("ER", "er"), ("Adam", "er-adam")):
            found[f"CLINC150, {title}", rate(who)] = gallery(name, method)
    found["CLINC150, embeddings", "streaming LDA"] = gallery("text-embedding", "lda")
    for title, name in (("Split-CIFAR100", "split-cifar100"), ("PACS", "pacs")):
        rivals = {"ER": r"er lr=\S+", "Adam": r"er-adam lr=\S+", "streaming LDA": "lda"}
        for who, method in {OCAR: "ocar", **rivals}.items():
            found[f"{title}, frozen features", rate(who)] = gallery(
                "backbone", f"{name}/latent/{method}"
            )
    return found


def rate(who: str) -> str:
    return {"ER": "ER, best rate", "Adam": "Adam with replay, best rate"}.get(who, who)


def cell(values: Sequence[float], digits: int = 1) -> str:
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{deviation}"


def tables(page: str) -> list[list[list[str]]]:
    """The cells of the tables of a page, without their heads and marks."""
    text = (DOCS / page).read_text(encoding="utf-8").replace("**", "")
    found = re.findall(r"(?m)(?:^\|.*\n)+", text)
    rows = [[line.strip("|").split("|") for line in one.splitlines()[2:]] for one in found]
    return [[[part.strip() for part in row] for row in one] for one in rows]


def test_classes_and_domains() -> None:
    stored, stream = classes(), ""
    first = tables("guides/when-to-use.md")[1]
    assert len(first) >= 15
    for title, who, *cells in first:
        stream = title or stream
        runs = stored[stream, who]
        assert cells == [cell([100 * run[name] for run in runs]) for name in MEASURES], who


def test_tables_that_drift() -> None:
    from tabular_pages import read_rows

    for name, ours, theirs, who in tables("guides/when-to-use.md")[2]:
        rows = read_rows(name)
        scores = [rows["OCAR, no settings"]["scores"], rows[who]["scores"]]
        rivals = {one: statistics.mean(row["scores"]) for one, row in rows.items()}
        rivals = {one: v for one, v in rivals.items() if not re.search("(?i)ocar|window", one)}
        best = min if name == "trump-approval" else max
        assert who == best(rivals, key=rivals.__getitem__)
        scale, digits = (1, 3) if name == "trump-approval" else (100, 1)
        assert [ours, theirs] == [cell([scale * one for one in of], digits) for of in scores], name


def test_forecasts() -> None:
    stored: dict[str, Any] = json.loads((ROOT / "results/gallery/series.json").read_text())
    for hours, *rest in tables("guides/when-to-use.md")[3]:
        rows = stored[hours.split()[0]]["rows"]
        who = ("OCAR, Student-t", "least squares", "seasonal persistence")
        means = [statistics.mean(run["mase"] for run in rows[one]["runs"]) for one in who]
        assert rest == [f"{mean:.3f}" for mean in means]


def bench(file: str, name: str) -> float:
    results = json.loads((ROOT / f"results/bench/{file}.json").read_text())["results"]
    return next(float(one["ratio"]) for one in results if one["name"] == name)


def test_costs() -> None:
    def stored(name: str) -> dict[str, Any]:
        return json.loads((ROOT / f"results/gallery/{name}.json").read_text())

    backbone, rows = stored("backbone")["timing"], stored("series")["24"]["rows"]
    text = [stored(f"text-{name}")["timing"]["milliseconds"] for name in ("tokens", "embedding")]
    day = [
        statistics.mean(run["ms"] for run in rows[who]["runs"]) for who in ("OCAR, Student-t", "ER")
    ]
    ratios = [
        backbone["cpu/latent/ocar"] / backbone["cpu/latent/er"],
        bench("cpu-1-thread", "step, 100 classes"),
        bench("h200", "step, 100 classes"),
        text[0]["ocar"] / text[0]["er"],
        day[0] / day[1],
        text[1]["ocar"] / text[1]["er"],
        bench("cpu-1-thread", "mlp, OCAR"),
    ]
    costs = tables("guides/when-to-use.md")[4]
    assert [row[-1] for row in costs] == [f"{ratio:.1f}" for ratio in ratios]
    page = (DOCS / "guides" / "when-to-use.md").read_text(encoding="utf-8")
    assert f"[{min(ratios):.1f} to {max(ratios):.1f} times]" in page


def test_rates() -> None:
    for row, name in zip(tables("guides/when-to-use.md")[5], ("embedding", "tokens"), strict=True):
        search = json.loads((ROOT / f"results/gallery/text-{name}.json").read_text())["search"]
        found = [100 * aaa for key, aaa in search.items() if key.startswith("er/")]
        assert row[1:] == [f"{min(found):.1f}", f"{max(found):.1f}"]
        assert {5: "five rates", 6: "six rates"}[len(found)] in row[0]


@pytest.mark.parametrize("method", ["er", "ocar"])
def test_the_first_page(method: str) -> None:
    streams = {"Split-MNIST": "split-mnist", "Split-CIFAR100": "split-cifar100", "PACS": "pacs"}
    for stream, *cells in tables("index.md")[0]:
        runs = kept(streams[re.split(r"[ ,]", stream)[0]], method)
        assert f"{len(runs)} seeds" in stream
        means = [statistics.mean(100 * run[name] for run in runs) for name in MEASURES]
        assert cells[method == "er"] == " / ".join(f"{mean:.1f}" for mean in means)

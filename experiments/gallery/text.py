"""Intents of CLINC150, domain after domain, and what is out of scope: OCAR and its rivals.

    pip install wordllama scikit-learn
    OCAR_DATA=FOLDER python experiments/gallery/text.py embedding
    OCAR_DATA=FOLDER python experiments/gallery/text.py tokens
    python experiments/gallery/text.py draw

``embedding`` learns an MLP on wordllama's static embeddings, ``tokens`` a transformer from scratch
on hashed words. OCAR has its defaults. The rates of ER and of Adam are those of the best AAA on the
stream of seed 100. The penalty of the offline classifier is chosen on the validation data. The
results are added to ``results/gallery/`` after each run; the same command goes on where it was
left. ``draw`` makes the picture, and the part of ``docs/gallery/text.md`` that has numbers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import normalize
from torch import Tensor, nn

import ocar
from ocar.config import to_plain
from ocar.datasets.texts import HashedWords
from ocar.evaluate import Evaluated, Finished, TaskEnded, detect_unknown
from ocar.learner import Report
from ocar.methods.er import ERSettings
from ocar.streams import get_benchmark
from ocar.streams.base import Labelled, concatenate
from ocar_lab import drawing
from ocar_lab.runs.provenance import describe_process

FOLDER, PAGE = Path("results/gallery"), Path("docs/gallery/text.md")
SEEDS, SEARCH_SEED = (0, 1, 2), 100
BENCHMARKS = {"embedding": "clinc150", "tokens": "clinc150-tokens"}
RATES = {
    ("embedding", "er"): (0.01, 0.03, 0.1, 0.3, 1.0),
    ("embedding", "er-adam"): (0.0001, 0.0003, 0.001, 0.003, 0.01),
    ("tokens", "er"): (0.03, 0.1, 0.2, 0.3, 0.5, 1.0),
    ("tokens", "er-adam"): (0.0003, 0.001, 0.003, 0.01),
}
EVERY = {"embedding": 10, "tokens": 25}
PER_DOMAIN = 3  # tasks of a domain
PENALTIES = (1.0, 10.0, 100.0)  # scikit-learn's C
ROWS = {
    "ocar": "OCAR, no settings", "er": "ER, best rate", "er-adam": "Adam with replay, best rate",
    "ncm": "nearest class mean", "lda": "streaming LDA", "offline": "logistic regression, offline",
}  # fmt: skip
TIMED = ("ocar", "er", "er-adam")
START, END = "<!-- made by experiments/gallery/text.py draw -->", "<!-- end -->"
TITLES = {"embedding": "static embeddings, MLP", "tokens": "hashed words, transformer"}


@dataclass(frozen=True, kw_only=True)
class AdamSettings(ERSettings):
    """Experience replay with Adam."""

    def make_optimizer(self, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        """Adam with the learning rate of the settings."""
        return torch.optim.Adam(parameters, lr=self.given_lr)


class Statistics:
    """Nearest class mean, or LDA, from the statistics of all samples so far; no memory.

    Hayes and Kanan, Lifelong Machine Learning with Deep Streaming Linear Discriminant Analysis,
    CVPR Workshops 2020, with the exact covariance and their shrinkage of 1e-4.
    """

    def __init__(self, width: int, *, lda: bool) -> None:
        self.lda = lda
        self.classes: tuple[int, ...] = ()
        self.sums = torch.zeros(0, width, dtype=torch.float64)
        self.counts = torch.zeros(0, 1, dtype=torch.float64)
        self.products = torch.zeros(width, width, dtype=torch.float64)

    def learn(self, x: Tensor, y: Tensor) -> Report:
        """Take a batch into the statistics; there is no loss."""
        self.classes += tuple(c for c in dict.fromkeys(y.tolist()) if c not in self.classes)
        grown = len(self.classes) - len(self.counts)
        self.sums, self.counts = (
            torch.cat([t, t.new_zeros(grown, t.shape[1])]) for t in (self.sums, self.counts)
        )
        units = torch.tensor([self.classes.index(label) for label in y.tolist()])
        self.sums.index_add_(0, units, x.double())
        self.counts.index_add_(0, units, torch.ones(len(x), 1, dtype=torch.float64))
        self.products += x.double().T @ x.double()
        return Report(loss=torch.zeros(()), classes=len(self.classes), values={})

    remember = learn

    def predict(self, x: Tensor) -> Tensor:
        """Logits ``(n, classes)`` of Gaussian classes with one covariance, that of NCM the unit."""
        means = self.sums / self.counts
        weights = means
        if self.lda:
            within = self.products - means.T @ (self.counts * means)
            within = (1 - 1e-4) * within / self.counts.sum() + 1e-4 * torch.eye(len(within))
            weights = torch.linalg.solve(within, means.T).T
        return x.double() @ weights.T - (weights * means).sum(1) / 2


def learner_of(part: str, method: str, seed: int, lr: float | None) -> Any:
    """A new learner by the name of its row."""
    benchmark = get_benchmark(BENCHMARKS[part])
    if method in ("ncm", "lda"):
        return Statistics(benchmark.image_shape[2], lda=method == "lda")
    model = ocar.make_model(**benchmark.model_settings(), seed=seed)
    settings = benchmark.learner_settings() | ({} if lr is None else {"lr": lr})
    if method == "er-adam":
        return ocar.Learner(model, AdamSettings(seed=seed, **settings))
    return ocar.make_learner(method, model, seed=seed, **settings)


def streamed(part: str, method: str, seed: int, lr: float | None) -> dict[str, Any]:
    """One run: the metrics, accuracy over time, and the detection after each domain."""
    stream: Any = ocar.make_stream(BENCHMARKS[part], seed=seed)
    learner = learner_of(part, method, seed, lr)
    accuracy: list[tuple[int, float]] = []
    detection: list[dict[str, Any]] = []
    for event in ocar.evaluate(learner, stream, every=EVERY[part]):
        if isinstance(event, Evaluated):
            accuracy.append((event.index + 1, round(event.accuracy, 4)))
        elif isinstance(event, TaskEnded) and (event.task + 1) % PER_DOMAIN == 0:
            known = torch.cat([stream.test(task)[0] for task in range(event.task + 1)])
            detection.append(scores(learner, known, stream.arrays.x_unknown))
        elif isinstance(event, Finished):
            summary = event.summary
            found = {"acc": summary.acc, "aaa": summary.aaa, "wc_acc": summary.wc_acc}
            return {**found, "unknown": detection, "accuracy": accuracy}
    raise AssertionError("a stream ends with Finished")


def scores(learner: Any, known: Tensor, unknown: Tensor) -> dict[str, Any]:
    """AUROC and FPR at 95 % TPR of each score."""
    found = detect_unknown(learner, known, unknown)
    return {name: {k: round(v, 4) for k, v in asdict(one).items()} for name, one in found.items()}


class Offline:
    """Logistic regression of scikit-learn on all training data: what a stream does not allow."""

    def __init__(self, part: str, train: Labelled, validation: Labelled) -> None:
        self.part = part
        best = 0.0
        for penalty in PENALTIES:
            fitted = LogisticRegression(C=penalty, max_iter=300)
            fitted.fit(self.features(train[0]), train[1].numpy())
            found = fitted.score(self.features(validation[0]), validation[1].numpy())
            if found > best:
                best, self.penalty, self.fitted = found, penalty, fitted
        self.classes = tuple(self.fitted.classes_.tolist())

    def features(self, x: Any) -> Any:
        """Embeddings of unit length, or counts of hashed words."""
        if self.part == "embedding":
            return normalize(x.numpy())
        rows = torch.arange(len(x))[:, None].expand_as(x)
        values, shape = (x > 0).double().flatten(), (len(x), HashedWords().buckets)
        places = (rows.flatten().numpy(), x.flatten().numpy())
        return normalize(csr_matrix((values.numpy(), places), shape=shape))

    def predict(self, x: Tensor) -> Tensor:
        """Log-probabilities ``(n, classes)``."""
        return torch.from_numpy(self.fitted.predict_log_proba(self.features(x)))


def offline(part: str, seed: int) -> dict[str, Any]:
    """The ceiling."""
    stream: Any = ocar.make_stream(BENCHMARKS[part], seed=seed)
    train, validation, (x, y) = (
        concatenate([get(task) for task in range(get_benchmark(BENCHMARKS[part]).tasks)])
        for get in (stream.training, stream.validation, stream.test)
    )
    fitted = Offline(part, train, validation)
    right = torch.tensor(fitted.classes)[fitted.predict(x).argmax(1)] == y
    found = scores(fitted, x, stream.arrays.x_unknown)
    return {"acc": float(right.double().mean()), "C": fitted.penalty, "unknown": [found]}


class Store:
    """The results file of a part: written after each run, so that nothing is measured twice."""

    def __init__(self, part: str) -> None:
        self.path = FOLDER / f"text-{part}.json"
        self.part = part
        self.data: dict[str, Any] = {"search": {}, "chosen": {}, "runs": {}, "timing": {}}
        if self.path.is_file():
            self.data = json.loads(self.path.read_text())

    def keep(self, group: str, name: str, make: Callable[..., Any], *arguments: Any) -> Any:
        """The stored result of a name; made now if there is none."""
        if name not in self.data[group]:
            started = time.monotonic()
            self.data[group][name] = make(*arguments)
            benchmark = to_plain(get_benchmark(BENCHMARKS[self.part]))
            about = describe_process(torch.device("cpu"))
            self.data |= {"benchmark": benchmark, "every": EVERY[self.part], **about}
            FOLDER.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(self.data) + "\n")
            print(f"{group} {name}: {time.monotonic() - started:.0f} s", flush=True)
        return self.data[group][name]


def measure(part: str) -> None:
    """All runs of a part that are not stored yet."""
    store = Store(part)
    store.keep("runs", "offline/0", offline, part, 0)  # all data: the seed changes nothing
    others = ("ncm", "lda") if part == "embedding" else ()
    for method in ("ocar", "er", "er-adam", *others):
        for seed in SEEDS:
            lr = best_rate(store, method)
            store.keep("runs", f"{method}/{seed}", streamed, part, method, seed, lr)
    rates = {method: store.data["chosen"].get(method) for method in TIMED}
    store.keep("timing", "milliseconds", timing, part, rates)


def best_rate(store: Store, method: str) -> float | None:
    """The learning rate of the best AAA on the search stream; None if there is none to choose."""
    rates = RATES.get((store.part, method))
    if rates is None:
        return None
    found = {
        lr: store.keep("search", f"{method}/{lr:g}", searched, store.part, method, SEARCH_SEED, lr)
        for lr in rates
    }
    return float(store.keep("chosen", method, lambda: max(found, key=lambda lr: found[lr])))


def searched(part: str, method: str, seed: int, lr: float) -> float:
    """AAA of a run of the search."""
    return float(streamed(part, method, seed, lr)["aaa"])


def timing(part: str, rates: dict[str, float | None]) -> dict[str, float]:
    """Median milliseconds of CPU a batch; the learners take turns, so all are slowed alike."""
    batches = list(itertools.islice(ocar.make_stream(BENCHMARKS[part], seed=0), 150))
    learners = {method: learner_of(part, method, 0, lr) for method, lr in rates.items()}
    taken: dict[str, list[float]] = {method: [] for method in learners}
    for batch in batches:
        for method, learner in learners.items():
            started = time.process_time()
            learner.learn(batch.x, batch.y)
            taken[method].append(1000 * (time.process_time() - started))
    return {method: statistics.median(times[50:]) for method, times in taken.items()}


def table(part: str, data: dict[str, Any]) -> list[str]:
    """The lines of the page's table of one part."""
    lines = [
        "| learner | Acc | AAA | WC-Acc | AUROC, entropy | AUROC, max-softmax | FPR95, entropy | "
        "FPR95, max-softmax | ms a batch |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for method, title in ROWS.items():
        runs = [run for name, run in data["runs"].items() if name.partition("/")[0] == method]
        if not runs:
            continue
        cells = [_cell([run.get(name) for run in runs]) for name in ("acc", "aaa", "wc_acc")]
        for name, score in itertools.product(("auroc", "fpr95"), ("entropy", "max-softmax")):
            cells.append(_cell([run["unknown"][-1][score][name] for run in runs]))
        took = data["timing"]["milliseconds"].get(method)
        if method in data["chosen"]:
            title = title.replace("best rate", f"lr {data['chosen'][method]:g}")
        if method == "offline" and part == "tokens":
            title = title.replace("offline", "offline, on counts of hashed words")
        lines.append(f"| {title} | {' | '.join(cells)} | {f'{took:.1f}' if took else '–'} |")
    return lines


def _cell(values: list[float | None]) -> str:
    """Mean ± standard deviation over seeds in per cent."""
    known = [100 * value for value in values if value is not None]
    if not known:
        return "–"
    spread = f" ± {statistics.stdev(known):.1f}" if len(known) > 1 else ""
    return f"{statistics.mean(known):.1f}{spread}"


def page_part(parts: dict[str, dict[str, Any]]) -> str:
    """The part of the page that has numbers."""
    lines = []
    for part, data in parts.items():
        took = data["timing"]["milliseconds"]
        lines += [f"**{TITLES[part][0].upper()}{TITLES[part][1:]}**", "", *table(part, data), ""]
        lines += [
            f"OCAR takes {took['ocar'] / took['er']:.1f} times as long a batch as ER "
            f"({took['ocar']:.1f} and {took['er']:.1f} ms of one CPU core).",
            "",
        ]
    return "\n".join(lines)


def with_numbers(page: str, parts: dict[str, dict[str, Any]]) -> str:
    """The page with the stored numbers between its two marks."""
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    return f"{before}{start}\n\n{page_part(parts)}\n{end}{after}"


def draw(parts: dict[str, dict[str, Any]]) -> None:
    """The picture: accuracy over time, and AUROC of the entropy after each domain."""
    figure = drawing.new_figure(9, 3.2)
    axes = figure.subplots(1, 3)
    shown = {"ocar": drawing.BLUE, "er": drawing.RED, "er-adam": drawing.GREEN, "ncm": "0.5"}
    for ax, (part, data) in zip(axes, parts.items(), strict=False):
        for method, colour in shown.items():
            runs = [data["runs"].get(f"{method}/{seed}") for seed in SEEDS]
            if None in runs:
                continue
            times = [index for index, _ in runs[0]["accuracy"]]
            values = [[100 * value for _, value in run["accuracy"]] for run in runs]
            mean = [statistics.mean(v) for v in zip(*values, strict=True)]
            label = ROWS[method].partition(",")[0]
            ax.plot(times, mean, color=colour, linewidth=1.2, label=label)
        offline_runs = [run for name, run in data["runs"].items() if name.startswith("offline/")]
        ceiling = 100 * statistics.mean(run["acc"] for run in offline_runs)
        ax.axhline(ceiling, color="0.3", linestyle=":", linewidth=1, label="offline")
        title = TITLES[part]
        drawing.clean(ax, title=title, x="batch", y="accuracy on intents so far, %")
    for method, colour in shown.items():
        for data, dashes in zip(parts.values(), ("-", "--"), strict=True):
            runs = [data["runs"].get(f"{method}/{seed}") for seed in SEEDS]
            if None in runs or method == "ncm":
                continue
            values = [[100 * u["entropy"]["auroc"] for u in run["unknown"]] for run in runs]
            mean = [statistics.mean(v) for v in zip(*values, strict=True)]
            axes[2].plot(range(1, len(mean) + 1), mean, dashes, color=colour, linewidth=1.2)
    drawing.clean(axes[2], title="out of scope", x="domains learned", y="AUROC of the entropy, %")
    axes[1].set_ylim(bottom=40)  # room for the legend
    axes[1].legend(*axes[0].get_legend_handles_labels(), loc="lower left", **drawing.LEGEND)
    for path in drawing.save(figure, PAGE.with_suffix(""), dpi=110)[1:]:
        path.unlink()  # the page shows the PNG


def main() -> None:
    """Parse, call."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("action", choices=(*BENCHMARKS, "draw"))
    action = parser.parse_args().action
    if action != "draw":
        torch.set_num_threads(1)
        measure(action)
        return
    parts = {part: Store(part).data for part in BENCHMARKS}
    draw(parts)
    PAGE.write_text(with_numbers(PAGE.read_text(), parts))


if __name__ == "__main__":
    main()

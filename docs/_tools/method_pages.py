"""One page a method, from the registry, the presets and the kept results."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence
from typing import Any

from docstrings import to_markdown
from tables import plus_minus, table, value

from ocar.methods.presets import PRESETS
from ocar.methods.registry import METHODS, Method
from ocar.methods.settings import LearnerSettings
from ocar.streams.benchmarks import BENCHMARKS, Benchmark
from ocar_lab.cli.arguments import field_docs
from ocar_lab.published import PUBLISHED, published
from ocar_lab.runs import Group, Result, groups

METRICS = {"acc": "Acc", "aaa": "AAA", "wc_acc": "WC-Acc", "probe": "Probed"}
"""Columns of a method's measured rows."""

FIXED = ("memory", "replay_batch", "passes")
"""What a benchmark fixes and a reader wants to know."""

HOME = "ocar.methods."


def slug(method: str) -> str:
    """The name of a method's page."""
    return method.replace("++", "-plus-plus")


def methods_index() -> str:
    """The list of all methods."""
    rows = [
        [f"[{name}]({slug(name)}.md)", method.about, _loss(method), _transform(method)]
        for name, method in METHODS.items()
    ]
    pages = "\n".join(map(slug, METHODS))
    return (
        "# Methods\n\n"
        "A method is a loss with what it draws from memory, and for some a transform of the "
        "gradient. One page each, with its formula, its settings and what was measured; all of it "
        "is made from the code and from `results/` when this site is built.\n\n"
        + table(["method", "in a line", "loss", "transform"], rows)
        + "\nAny loss that has predictions goes with the transforms `ocar`, `lpr`, `ewc` and `ngd`:"
        " `ocar run split-digits er-ace --transform lpr --lr 0.1`, or"
        ' `ocar.make_learner("er-ace", model, transform="lpr", ...)`.'
        " What makes no sense is refused with the reason.\n\n"
        f"```{{toctree}}\n:hidden:\n\n{pages}\n```\n"
    )


def _loss(method: Method) -> str:
    return f"`{method.settings.__name__.removesuffix('Settings')}`"


def _transform(method: Method) -> str:
    kind = method.transform
    return "" if kind is None else f"`{kind.__name__.removesuffix('Settings')}`"


def method_page(name: str, results: Sequence[Result]) -> str:
    """The page of one method.

    Args:
        name: Its name.
        results: All kept results.
    """
    method = METHODS[name]
    parts = [f"# {name}\n", f"{method.about}\n", *_explanations(method), _use(name)]
    parts += [_settings(name, method), _measured(name, results)]
    return "\n".join(parts)


def _explanations(method: Method) -> list[str]:
    """What the docstrings of its modules say, the transform's first."""
    kinds = [kind for kind in (method.transform, method.settings) if kind is not None]
    modules = dict.fromkeys(kind.__module__ for kind in kinds)
    if len(modules) > 1:  # replay as such is explained on its own page
        modules.pop(f"{HOME}er", None)
    texts = []
    for module in modules:
        title, _, rest = (importlib.import_module(module).__doc__ or "").partition("\n")
        source = f"`{module}`"
        texts.append(
            f"## {title.rstrip('.')}\n\n{to_markdown(rest)}\n*From the docstring of {source}.*\n"
        )
    return texts


def _use(name: str) -> str:
    known = [benchmark for benchmark, methods in PRESETS.items() if name in methods]
    shown = "split-digits" if "split-digits" in known else known[0]
    shape = BENCHMARKS[shown].image_shape
    return (
        "## Use it\n\n"
        "```python\n"
        "import torch\n"
        "import ocar\n\n"
        f'model = ocar.make_model("{BENCHMARKS[shown].model}", image_shape={shape})\n'
        f'learner = ocar.make_learner("{name}", model, preset="{shown}")\n'
        f"x = torch.randint(0, 256, (10, {shape[0]}, {shape[1]}, {shape[2]}), dtype=torch.uint8)\n"
        "learner.learn(x, torch.tensor([0, 1] * 5))\n"
        "```\n\n"
        "```sh\n" + "\n".join(f"ocar run {b} {name} --seeds 0 1 2 3 4" for b in known) + "\n```\n"
    )


def _settings(name: str, method: Method) -> str:
    """The values of each preset, then what can be set: default and meaning."""
    known = [benchmark for benchmark, methods in PRESETS.items() if name in methods]
    chosen = {b: {**_fixed(BENCHMARKS[b]), **PRESETS[b][name]} for b in known}
    names = dict.fromkeys(setting for values in chosen.values() for setting in values)
    presets = [
        [f"`{n}`", *(value(chosen[b][n]) if n in chosen[b] else "" for b in known)] for n in names
    ]
    return (
        "## Presets\n\n"
        "What was selected for a benchmark, and what the benchmark fixes; where a column is empty "
        "the default holds. Where the values come from: {py:mod}`ocar.methods.presets`.\n\n"
        + table(["", *known], presets)
        + "\n## Settings\n\n"
        "On the command line `tau_step` is `--tau-step`. Every learner has more settings, see "
        "{py:class}`~ocar.methods.settings.LearnerSettings`.\n\n"
        + table(["setting", "default", "what it is"], _own_settings(method))
    )


def _own_settings(method: Method) -> list[list[str]]:
    """Name, default and meaning of what the method and its transform add, and of α."""
    common = {field.name: field.default for field in dataclasses.fields(LearnerSettings)}
    del common["lr"]
    rows: dict[str, list[str]] = {}
    for kind in (method.settings, method.transform):
        about = {} if kind is None else field_docs(kind)
        for field in () if kind is None else dataclasses.fields(kind):
            if field.name in common and common[field.name] == field.default:
                continue
            default = "needed" if field.default is dataclasses.MISSING else value(field.default)
            rows.setdefault(field.name, [f"`{field.name}`", default, about.get(field.name, "")])
    return list(rows.values())


def _fixed(benchmark: Benchmark) -> dict[str, Any]:
    settings = benchmark.learner_settings()
    return {name: settings[name] for name in FIXED}


def _measured(name: str, results: Sequence[Result]) -> str:
    """Our rows beside the paper's."""
    labels = (name, f"{name}-iid")
    mine = [result for result in results if result.runs[0].label in labels]
    there = [result.runs[0].benchmark for result in mine]
    printed = [b for b in PUBLISHED if any(published(b, label) for label in labels)]
    parts = ["## Measured\n"]
    if not there and not printed:
        parts.append("Nothing is kept under `results/` yet, and the paper has no row.\n")
    else:
        parts.append(
            "In per cent, mean ± sample standard deviation over seeds; see "
            "[the metrics](../protocol.md#metrics) and [all results](../results.md).\n"
        )
    parts += [_measured_on(b, labels, mine) for b in dict.fromkeys([*there, *printed])]
    return "\n".join(parts)


def _measured_on(benchmark: str, labels: Sequence[str], results: Sequence[Result]) -> str:
    rows, commands = [], []
    for label in labels:
        here = [r for r in results if (r.runs[0].benchmark, r.runs[0].label) == (benchmark, label)]
        shown = f"{label}, " if label != labels[0] else ""
        for result in here:
            (group,) = groups(result.runs)
            rows.append([_who(shown, group), *_ours(group), ", ".join(group.devices)])
            if result.command:
                commands.append(result.command)
        paper = published(benchmark, label)
        if paper:
            cells = [plus_minus(paper[m].mean, paper[m].std) if m in paper else "" for m in METRICS]
            rows.append([f"{shown}paper", *cells, ""])
            if not here and label == labels[0]:
                rows[-1][0] += " (ours: not yet)"
    text = f"### {benchmark}\n\n" + table(["", *METRICS.values(), "device"], rows, numbers=4)
    if commands:
        text += "\nMade by\n\n```sh\n" + "\n".join(commands) + "\n```\n"
    return text


def _who(shown: str, group: Group) -> str:
    changes = "".join(f", {name}={value(given)}" for name, given in group.changed.items())
    return f"{shown}ours, {len(group.seeds)} seeds{changes}"


def _ours(group: Group) -> list[str]:
    return [
        plus_minus(100 * spread.mean, None if spread.std is None else 100 * spread.std)
        if (spread := group.metrics.get(metric)) is not None
        else ""
        for metric in METRICS
    ]

"""The numbers that the paper printed, for comparison with ours.

Urettini & Carta, "Online Curvature-Aware Replay: Leveraging 2nd Order Information for Online
Continual Learning" (ICML 2025): Table 1 (Split-CIFAR100 and Split-TinyImageNet), the table of
Online CLEAR and that of training times. Rows are in the paper's order, under the names that the
methods have here. Accuracies are in per cent, mean ± standard deviation over five seeds (LPR: ten).
The authors ran OCAR, OnPro and OCM; they took the other rows from Soutif-Cormerais et al. (2023)
and, for LPR, from Yoo et al. (2024).
"""

from __future__ import annotations

from typing import NamedTuple

SOURCE = "Urettini & Carta, Online Curvature-Aware Replay, ICML 2025"

METRICS = ("acc", "aaa", "wc_acc", "probe")
"""The metrics of the tables, under their names in ``ocar.evaluate.Summary``."""

SPLITS = ("split-cifar100", "split-tinyimagenet")
"""Benchmarks whose class orders and validation data are published too."""


class Published(NamedTuple):
    """A printed number, in per cent."""

    mean: float
    std: float


_CIFAR100 = """
er-iid      35.3 1.5  -    -    -    -    45.8 0.6
er          28.2 1.2  36.6 2.0  12.5 0.6  44.9 0.9
gdumb       18.5 0.5  -    -    -    -    -    -
agem        3.1  0.2  10.4 0.6  2.9  0.3  18.7 0.8
er-lwf      30.4 0.8  39.2 2.0  15.3 0.9  44.4 0.8
mir         29.4 1.9  33.1 3.2  11.6 1.6  43.4 0.7
rar         28.2 1.4  38.2 1.6  14.9 0.7  42.3 0.9
der++       29.3 0.9  37.5 2.5  13.4 0.7  44.0 0.8
er-ace      29.9 0.6  38.5 1.8  14.9 0.9  42.4 0.6
scr         28.3 0.8  42.1 2.1  20.3 0.4  37.0 0.3
onpro       31.7 1.2  36.6 2.5  12.2 1.1  -    -
ocm         30.9 0.7  33.3 1.9  14.9 0.4  -    -
lpr         33.3 0.6  42.5 0.5  19.3 0.3  -    -
ocar        34.9 0.6  48.2 1.2  25.0 1.1  46.2 0.6
ocar-der++  34.3 1.1  46.8 1.7  25.4 0.8  46.0 0.8
ocar-ace    35.6 1.2  48.7 1.7  26.5 0.4  44.1 0.7
"""

_TINYIMAGENET = """
er-iid      26.5 0.6  -    -    -    -    34.3 0.5
er          21.2 0.6  33.9 1.7  15.2 0.5  35.6 0.6
gdumb       13.1 0.4  -    -    -    -    -    -
agem        2.6  0.2  7.3  0.5  2.6  0.2  23.3 0.6
er-lwf      22.7 1.1  34.4 2.4  17.0 0.7  33.8 0.9
mir         21.3 0.8  31.0 1.8  15.2 0.5  33.0 0.4
rar         15.7 0.9  27.8 2.8  10.1 0.9  29.8 0.9
der++       22.9 0.5  34.2 4.0  16.3 0.3  31.5 0.9
er-ace      23.6 0.7  35.0 1.5  16.8 0.7  34.2 0.3
scr         16.9 0.4  30.7 1.5  12.3 0.5  22.5 0.4
onpro       17.1 1.5  24.2 0.4  8.0  0.8  -    -
ocm         20.6 0.6  24.8 1.1  10.9 0.5  -    -
lpr         23.1 0.2  34.9 0.4  16.2 0.2  -    -
ocar        21.7 1.0  38.3 1.4  17.4 0.6  38.3 0.6
ocar-der++  -    -    -    -    -    -    -    -
ocar-ace    25.6 0.4  39.8 2.0  21.5 0.9  34.7 0.3
"""

_CLEAR = """
er          63.1 0.7  58.9 0.8  47.7 1.6  -    -
lpr         65.2 0.9  63.5 1.0  62.6 0.7  -    -
ocar        75.3 0.8  73.9 0.5  70.3 0.5  -    -
"""


def _parse(table: str) -> dict[str, dict[str, Published]]:
    rows = {}
    for line in table.split("\n")[1:-1]:
        method, *numbers = line.split()
        pairs = zip(METRICS, numbers[::2], numbers[1::2], strict=True)
        rows[method] = {
            metric: Published(float(mean), float(std)) for metric, mean, std in pairs if mean != "-"
        }
    return rows


PUBLISHED = {
    "split-cifar100": _parse(_CIFAR100),
    "split-tinyimagenet": _parse(_TINYIMAGENET),
    "clear": _parse(_CLEAR),
}
"""By benchmark, method and metric; an empty row of the paper is empty here."""

SEEDS = 5
"""Number of seeds of a row that the authors ran."""

FIRST_TASK_SECONDS = {
    "er": 14.0,
    "er-lwf": 15.0,
    "mir": 31.0,
    "er-ace": 17.0,
    "der++": 17.0,
    "rar": 72.0,
    "scr": 131.0,
    "lpr": 213.0,
    "ocar": 38.0,
}
"""Seconds of training on the first task of Split-CIFAR100, without evaluation, on a V100. The row
DER of the paper is assumed to be DER++, the only one of the two in Table 1."""


def published(benchmark: str, method: str) -> dict[str, Published]:
    """The printed numbers of a method, or ``er-iid``, by metric; empty if there are none."""
    return PUBLISHED.get(benchmark, {}).get(method, {})

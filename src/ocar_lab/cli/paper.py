"""``ocar paper NAME``: the paper's tables and figures.

To add a table or a figure: a line in ``NAMES``, and a module with a ``main`` like a command's.
"""

from __future__ import annotations

import importlib
import sys

from ocar.errors import ConfigError

NAMES = {
    "table1": ("paper_tables", "Table 1: all methods on Split-CIFAR100 or Split-TinyImageNet"),
    "clear": ("paper_tables", "Table 2: Online CLEAR, and PACS as a stand-in"),
    "times": ("paper_tables", "Table 3: training time for the first task"),
    "convex": ("paper_figures", "ER, EWC, NGD and OCAR on the convex stream: L_p and L_s"),
    "landscape": ("paper_figures", "paths through the loss landscape, and learning curves"),
    "grid": ("paper_figures", "accuracy, forgetting and plasticity over α and α/τ"),
    "steps": ("paper_figures", "effective step size against eigenvalue"),
    "spectrum": ("paper_figures", "eigenvalues of the damped curvature on a run"),
    "ratio": ("paper_figures", "ratio of gradient norms over the stream, with a small τ"),
    "curves": ("paper_curves", "validation accuracy over time, with the spread over seeds"),
}
"""The module of each table or figure, and what it is."""

ALIASES = {"table2": "clear", "table3": "times"}
"""Other names of the same."""


def usage() -> str:
    """What ``ocar paper --help`` says."""
    width = max(map(len, NAMES))
    names = "\n".join(f"  ocar paper {name:{width}}  {about}" for name, (_, about) in NAMES.items())
    return (
        "usage: ocar paper NAME [OPTIONS]\n\n"
        "The paper's numbers, ours from stored runs, and how far they are apart; which of the\n"
        "paper's claims hold in ours; how to make what is missing. A figure makes what it lacks,\n"
        "and writes its numbers and pictures under results/figures.\n\n"
        f"{names}\n\n"
        "  --help     this text; after a name, its options\n"
    )


def main(command: str, arguments: list[str], *, debug: bool) -> int:
    """Show a table of the paper, or make a figure.

    Returns:
        0, or 1 if a run cannot be read or failed.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(usage())
        return 0 if arguments else 2
    given, *rest = arguments
    name = ALIASES.get(given, given)
    if name not in NAMES:
        raise ConfigError(f"Unknown name {given!r}. There are {', '.join([*NAMES, *ALIASES])}.")
    module = importlib.import_module(f"ocar_lab.cli.{NAMES[name][0]}")
    code: int = module.main(name, rest, debug=debug)
    return code

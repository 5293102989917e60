"""What WC-Acc would stored runs have, had they been evaluated less often?

    python experiments/seldom_evaluated.py runs/split-cifar100/onpro --save FILE

WC-Acc takes the lowest accuracy of a task over all evaluations since it ended, so that who looks
less often sees less. Of runs that were evaluated after every batch, every n-th evaluation and the
last of each task are taken, for several n; n = 0 is the last of each task only.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from ocar.events import Evaluated
from ocar.metrics import WorstCaseAccuracy
from ocar_lab.runs import Run, find_runs

INTERVALS = (1, 2, 5, 10, 20, 50, 100, 0)


def worst_case(history: Sequence[Evaluated], every: int) -> float:
    """WC-Acc from every so many-th evaluation, 0 for the ends of tasks."""
    metric = WorstCaseAccuracy()
    for place, event in enumerate(history):
        ends = place + 1 == len(history) or history[place + 1].task > event.task
        if ends or (every and place % every == 0):
            metric.update(event.accuracies)
    return metric.compute()


def measure(runs: Sequence[Run]) -> dict[str, dict[str, float]]:
    """WC-Acc in per cent by label and interval, the mean over seeds."""
    found: dict[str, dict[str, float]] = {}
    for label in sorted({run.label for run in runs}):
        histories = [run.history for run in runs if run.label == label]
        found[label] = {
            str(n): round(100 * mean(worst_case(h, n) for h in histories), 1) for n in INTERVALS
        }
    return found


def main() -> None:
    """Print or save the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, help="a folder with runs in it, at any depth")
    parser.add_argument("--save", type=Path, help="where to write them; by default they are shown")
    options = parser.parse_args()
    runs = find_runs(options.runs)
    text = json.dumps(
        {
            "what": "WC-Acc in per cent by batches from one evaluation to the next",
            "command": "python experiments/seldom_evaluated.py runs --save FILE",
            "runs": sorted(f"{run.benchmark} {run.label} {run.hash} {run.seed}" for run in runs),
            "worst_case_accuracy": measure(runs),
        },
        indent=1,
    )
    if options.save is None:
        print(text)
    else:
        options.save.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

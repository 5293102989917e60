"""OCAR and ER on handwritten digits that arrive two classes at a time.

    python examples/digits.py [--seeds 0 1 2]

The digits ship with scikit-learn. They come as a stream of batches of ten: first
zeros and ones in some order, then two other classes, and so on, five stretches
in all. Neither learner gets to know where one ends.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import ocar
from ocar.evaluate import Evaluated, Finished, Summary

BENCHMARK = "split-digits"


def run(method: str, seed: int) -> Summary:
    """One pass over the stream with an evaluation after every batch."""
    stream = ocar.make_stream(BENCHMARK, seed=seed)
    model = ocar.make_model("mlp", image_shape=(1, 8, 8), seed=seed)
    learner = ocar.make_learner(method, model, preset=BENCHMARK, seed=seed)
    start = time.perf_counter()
    for event in ocar.evaluate(learner, stream):
        if isinstance(event, Evaluated) and event.index % 20 == 0 and sys.stdout.isatty():
            print(
                f"\r{method:5} seed {seed}  batch {event.index + 1:3}  "
                f"task {event.task + 1}  accuracy so far {event.accuracy:6.1%}",
                end="",
                flush=True,
            )
        elif isinstance(event, Finished):
            seconds = time.perf_counter() - start
            start_of_line = "\r" if sys.stdout.isatty() else ""
            print(f"{start_of_line}{method:5} seed {seed}  done in {seconds:.1f} s".ljust(70))
            return event.summary
    raise AssertionError("a stream ends with Finished")


def row(method: str, runs: list[Summary]) -> str:
    """Mean ± standard deviation over seeds, in per cent."""
    cells = []
    for metric in ("acc", "aaa", "wc_acc"):
        values = [100 * getattr(summary, metric) for summary in runs]
        spread = f" ± {statistics.stdev(values):3.1f}" if len(values) > 1 else ""
        cells.append(f"{statistics.mean(values):5.1f}{spread}".ljust(14))
    return f"{method.upper():8}{''.join(cells)}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    seeds = parser.parse_args().seeds
    rows = [row(method, [run(method, seed) for seed in seeds]) for method in ("er", "ocar")]
    heads = ("final", "anytime", "worst case")
    print(f"\n{BENCHMARK}: accuracy in per cent, mean over {len(seeds)} seed(s)")
    print(" " * 8 + "".join(head.ljust(14) for head in heads))
    print("\n".join(rows))


if __name__ == "__main__":
    main()

"""The progress of runs: a bar each in a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from ocar.errors import MissingPackageError
from ocar_lab.experiment import Ended, Message, Progress

LINE_SECONDS = 60.0
"""Without a terminal, the least time between two lines about one run."""

MOST_BARS = 12
"""With more runs than this, the bars of ended runs disappear."""

LIVE = {
    "l_p": "L_p {:.4g}",
    "l_s": "L_s {:.4g}",
    "loss": "loss {:.3f}",
    "tau": "τ {:.3g}",
    "replay_weight": "λ {:.3g}",
    "classes": "{:.0f} classes",
}
"""Values that the learner reports and how to print them, the most interesting first."""


class Lines:
    """A line when a run begins, when it ends, and now and then between.

    Args:
        labels: Names of the runs.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = labels
        self._said: dict[int, float] = {}

    def show(self, message: Message) -> None:
        """Show a message."""
        label = self.labels[message.job]
        if isinstance(message, Ended):
            state = f"{message.state}  " if message.metrics else ""
            self.note(f"{label}: {state}{end_text(message)}")
        elif message.job not in self._said:
            self._said[message.job] = time.monotonic()
            begun = f"resumes at batch {message.resumed}" if message.resumed else "begins"
            self.note(f"{label}: {begun}, {message.batches or '?'} batches")
        elif time.monotonic() - self._said[message.job] >= LINE_SECONDS:
            self._said[message.job] = time.monotonic()
            self.note(f"{label}: {message.done}/{message.batches or '?'}  {live_text(message)}")

    def note(self, text: str) -> None:
        """Print a line."""
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class Bars(Lines):
    """A bar for each run, with rate, time left and live metrics."""

    def __init__(self, labels: Sequence[str]) -> None:
        super().__init__(labels)
        rich = import_rich()
        self._console = rich.console.Console(stderr=True, highlight=False)
        bar = max(8, min(24, self._console.width - 95))
        # Left of the live metrics: label, bar, "4740/4760", "100/s", "1:02:03" and spaces.
        self._room = self._console.width - max(map(len, labels)) - bar - 27
        self._bars = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(bar_width=bar),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TextColumn("{task.fields[rate]}", justify="right"),
            rich.progress.TimeRemainingColumn(compact=True),
            rich.progress.TextColumn("{task.fields[live]}"),
            console=self._console,
        )
        self._tasks: dict[int, Any] = {}
        self._began: dict[int, tuple[float, int]] = {}

    def __enter__(self) -> Bars:
        self._bars.start()
        if len(self.labels) <= MOST_BARS:  # now, since a worker takes seconds to begin
            for job in range(len(self.labels)):
                self._task(job)
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def show(self, message: Message) -> None:
        """Show a message."""
        task = self._task(message.job)
        if isinstance(message, Ended):
            if message.state in ("finished", "already finished"):
                total = self._bars.tasks[self._bars.task_ids.index(task)].total or 1
                self._bars.update(task, completed=total, total=total)
            visible = len(self.labels) <= MOST_BARS
            self._bars.update(task, live=end_text(message), visible=visible)
            self._bars.stop_task(task)
            return
        now, begun = self._began.setdefault(message.job, (time.monotonic(), message.done))
        passed = time.monotonic() - now
        self._bars.update(
            task,
            completed=message.done,
            total=message.batches or None,
            rate=f"{(message.done - begun) / passed:.0f}/s" if passed > 0.5 else "",
            live=live_text(message, width=self._room),
        )

    def note(self, text: str) -> None:
        """Print a line above the bars."""
        self._console.print(text, markup=False)

    def _task(self, job: int) -> Any:
        if job not in self._tasks:
            label = self.labels[job]
            self._tasks[job] = self._bars.add_task(label, total=None, rate="", live="waiting")
        return self._tasks[job]


def make_display(labels: Sequence[str]) -> Lines:
    """Bars if standard error is a terminal, else lines."""
    return Bars(labels) if sys.stderr.isatty() else Lines(labels)


def import_rich() -> Any:
    """The package rich, with consoles and progress bars.

    Raises:
        MissingPackageError: rich is not installed.
    """
    try:
        import rich.console
        import rich.progress
    except ImportError as error:
        raise MissingPackageError(
            'The command line needs tyro and rich: pip install "ocar[cli]"'
        ) from error
    return rich


def live_text(message: Progress, *, width: int = 1000) -> str:
    """The live metrics, as many as fit into ``width`` characters."""
    parts = []
    if message.accuracy is not None:
        parts.append(f"acc {message.accuracy:.1%}")
    if message.aaa is not None:
        parts.append(f"AAA {message.aaa:.1%}")
    reported = message.reported
    parts += [text.format(reported[name]) for name, text in LIVE.items() if name in reported]
    while parts and len("  ".join(parts)) > width:
        parts.pop()
    return "  ".join(parts)


def end_text(message: Ended) -> str:
    """How a run ended, in a line."""
    known = {"acc": "Acc {:.1%}", "aaa": "AAA {:.1%}", "wc_acc": "WC-Acc {:.1%}"}
    known |= {"l_p": LIVE["l_p"], "l_s": LIVE["l_s"]}
    found = {name: number for name, number in message.metrics.items() if number is not None}
    parts = [text.format(found[name]) for name, text in known.items() if name in found]
    return "  ".join(parts) or message.state

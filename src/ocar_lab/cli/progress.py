"""The progress of runs: a bar each in a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, TypeVar

from ocar.files import printable
from ocar_lab.cli.time_left import TimeLeft
from ocar_lab.experiment import Ended, Message, Progress
from ocar_lab.runs.texts import time_text

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

D = TypeVar("D", bound="Display")


class Display:
    """Bars or lines on standard error; used in a ``with`` statement.

    Args:
        columns: Columns of the bars after label, bar and count: names of fields of a bar.
        terminal: Whether to draw bars; by default if standard error is a terminal.

    Attributes:
        bars: rich's progress bars; None without a terminal.
        room: Characters to the right of label, bar and count; 0 without a terminal.
    """

    def __init__(self, *columns: str, terminal: bool | None = None) -> None:
        self.bars: Any = None
        self.room = 0
        if not (sys.stderr.isatty() if terminal is None else terminal):
            return
        from rich import progress
        from rich.console import Console

        console = Console(stderr=True, highlight=False)
        bar = max(8, min(24, console.width - 95))
        self.room = console.width - bar - 12
        self.bars = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=bar),
            progress.MofNCompleteColumn(),
            *(
                progress.TextColumn(f"{{task.fields[{column}]}}", markup=False)
                for column in columns
            ),
            console=console,
        )

    def __enter__(self: D) -> D:
        if self.bars is not None:
            self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bars is not None:
            self.bars.stop()

    def note(self, text: str) -> None:
        """Print a line, above the bars if there are any."""
        text = printable(text, lines=True)
        if self.bars is not None:
            self.bars.console.print(text, markup=False, emoji=False)
        else:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


class RunDisplay(Display):
    """A bar for each run with rate, time left and live metrics, or a line now and then.

    Args:
        labels: The name of each run.
        left: What estimates the time left; it has followed each message that is shown.
        terminal: Whether to draw bars; by default if standard error is a terminal.
    """

    def __init__(
        self, labels: Sequence[str], left: TimeLeft, *, terminal: bool | None = None
    ) -> None:
        super().__init__("rate", "left", "live", terminal=terminal)
        self.labels, self.left = labels, left
        self._began: dict[int, tuple[float, int]] = {}
        self._said: dict[int, float] = {}
        self._finished = 0
        self._room = self.room - max(map(len, labels)) - 20  # "100/s", "1:02:03 left" and spaces
        for label in labels if self.bars is not None else ():
            # All at once, since a worker takes seconds to begin.
            self.bars.add_task(
                label,
                total=None,
                rate="",
                left="",
                live="waiting",
                visible=len(labels) <= MOST_BARS,
            )
        if self.bars is not None and len(labels) > 1:
            self._all = self.bars.add_task("all runs", total=len(labels), rate="", left="", live="")

    def show(self, message: Message) -> None:
        """Show a message."""
        if self.bars is None:
            self._show_line(message)
            return
        if isinstance(message, Ended):
            self._finished += message.finished
        if len(self.labels) > 1:
            left = self._left_text(self.left.of_all())
            self.bars.update(self._all, completed=self._finished, left=left)
        if isinstance(message, Ended):
            bar = self.bars.tasks[message.job]
            if message.finished:
                self.bars.update(bar.id, completed=bar.total or 1, total=bar.total or 1)
            visible = len(self.labels) <= MOST_BARS
            self.bars.update(bar.id, left="", live=end_text(message), visible=visible)
            self.bars.stop_task(bar.id)
        else:
            now, begun = self._began.setdefault(message.job, (time.monotonic(), message.done))
            passed = time.monotonic() - now
            self.bars.update(
                self.bars.tasks[message.job].id,
                completed=message.done,
                total=message.batches or None,
                rate=f"{(message.done - begun) / passed:.0f}/s" if passed > 0.5 else "",
                left=self._left_text(self.left.of_run(message.job)),
                live=live_text(message, width=self._room),
                visible=True,
            )

    def _show_line(self, message: Message) -> None:
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
            left = {"": self.left.of_run(message.job), "all runs ": self.left.of_all()}
            if len(self.labels) == 1:
                del left["all runs "]
            times = [f"{of}{self._left_text(s)}" for of, s in left.items() if s is not None]
            texts = [f"{message.done}/{message.batches or '?'}", ", ".join(times)]
            self.note(f"{label}: {'  '.join([*filter(None, texts), live_text(message)])}")

    @staticmethod
    def _left_text(seconds: float | None) -> str:
        return "" if seconds is None else f"{time_text(seconds)} left"


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

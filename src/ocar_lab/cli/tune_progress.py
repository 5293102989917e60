"""The progress of a search: one bar in a terminal, a line a minute elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from ocar_lab.cli.progress import LINE_SECONDS, import_rich
from ocar_lab.tune import Ended, SearchEvent, Study, TuneConfig


class TuneLines:
    """A line at the start, and one a minute.

    Args:
        study: The study.
        trials: Number of trials at the end.
        clock: Returns the time in seconds.
    """

    def __init__(
        self, study: Study, *, trials: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.config = study.config
        self.label = f"{study.config.benchmark} {study.config.name}"
        self.trials, self.clock = trials, clock
        self.best = next(iter(study.ranking()), None)
        self.before = self.done = len(study.trials())
        self.running: dict[int, str] = {}
        self._began = self._said = clock()

    def __enter__(self) -> TuneLines:
        begun = f"resumes at trial {self.before}" if self.before else "begins"
        self.note(f"{self.label}: {begun}, {self.trials} trials, {self.config.objective}")
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def show(self, event: SearchEvent) -> None:
        """Show an event."""
        if isinstance(event, Ended):
            self.running.pop(event.trial.number, None)
            self.done += 1
            self.best = event.best
        else:
            self.running[event.number] = f"{event.done}/{event.batches or '?'}"
        self.refresh(event)

    def refresh(self, event: SearchEvent) -> None:
        """Print a line, if the last one is a minute old."""
        if isinstance(event, Ended) and self.clock() - self._said >= LINE_SECONDS:
            self._said = self.clock()
            parts = [f"{self.done}/{self.trials}", self.left_text(), self.best_text()]
            self.note(f"{self.label}: {', '.join(part for part in parts if part)}")

    def note(self, text: str) -> None:
        """Print a line."""
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def left_text(self) -> str:
        """The time left, if trials take as long as before; empty if unknown."""
        done, left = self.done - self.before, max(0, self.trials - self.done)
        return f"{time_text((self.clock() - self._began) / done * left)} left" if done else ""

    def best_text(self) -> str:
        """The best trial so far with its settings."""
        if self.best is None:
            return "none finished"
        value, settings = self.best.value, settings_text(self.best.settings)
        return f"best {value_text(self.config, value)} (trial {self.best.number}: {settings})"

    def running_text(self) -> str:
        """The running trials with their batches."""
        shown = [f"{number} at {at}" for number, at in self.running.items()]
        return f"trial {', '.join(shown[:4])}{' ...' if len(shown) > 4 else ''}" if shown else ""


class TuneBar(TuneLines):
    """A bar of trials, with the time left, the running trials and the best one."""

    def __init__(
        self, study: Study, *, trials: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(study, trials=trials, clock=clock)
        rich = import_rich()
        self._console = rich.console.Console(stderr=True, highlight=False)
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(bar_width=24),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TextColumn("{task.fields[live]}", markup=False),
            console=self._console,
        )
        self._task = self._bar.add_task(
            self.label, total=trials, completed=self.done, live="waiting"
        )

    def __enter__(self) -> TuneBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def refresh(self, event: SearchEvent) -> None:
        """Move the bar."""
        parts = [self.left_text(), self.running_text(), self.best_text()]
        room = max(10, self._console.width - len(self.label) - 40)
        live = "  ".join(part for part in parts if part)
        self._bar.update(self._task, completed=self.done, live=live[:room])

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(text, markup=False)


def make_display(study: Study, *, trials: int) -> TuneLines:
    """A bar if standard error is a terminal, else lines."""
    return (TuneBar if sys.stderr.isatty() else TuneLines)(study, trials=trials)


def value_text(config: TuneConfig, value: float | None) -> str:
    """The value of a trial; empty if it has none."""
    if value is None:
        return ""
    return f"{value:.5g}" if config.regression else f"{value:.1%}"


def settings_text(settings: Mapping[str, Any], *, bare: bool = False) -> str:
    """Settings in a line, perhaps without their names."""
    texts = {n: f"{v:.3g}" if isinstance(v, float) else str(v) for n, v in settings.items()}
    return "  ".join(text if bare else f"{name} {text}" for name, text in texts.items())


def time_text(seconds: float) -> str:
    """A time in hours, minutes and seconds."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"

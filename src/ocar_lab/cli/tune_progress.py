"""How a search is watched: one bar in a terminal, a line a minute elsewhere."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from ocar.errors import MissingPackageError
from ocar_lab.cli.progress import LINE_SECONDS
from ocar_lab.tune import Begun, Ended, Moved, SearchEvent, Study, Trial, TuneConfig


def value_text(config: TuneConfig, value: float | None) -> str:
    """How good a trial was, as text.

    Args:
        config: The study, which says what the value is.
        value: The value; None if there is none.
    """
    if value is None:
        return ""
    return f"{value:.5g}" if config.regression else f"{value:.1%}"


def settings_text(settings: Mapping[str, Any], *, bare: bool = False) -> str:
    """Settings in a line.

    Args:
        settings: The settings.
        bare: Leave out their names.
    """
    texts = {n: f"{v:.3g}" if isinstance(v, float) else str(v) for n, v in settings.items()}
    return "  ".join(text if bare else f"{name} {text}" for name, text in texts.items())


def time_text(seconds: float) -> str:
    """A time in hours, minutes and seconds."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def seconds_left(passed: float, *, done: int, left: int) -> float | None:
    """How long it will take, if the rest goes as fast as what was done.

    Args:
        passed: Seconds since the search went on.
        done: Trials done since.
        left: Trials left.
    """
    return passed / done * left if done else None


class TuneDisplay(ABC):
    """Shows how a search goes.

    Args:
        study: The study.
        trials: How many trials there are to be.
        clock: Seconds since some moment.
    """

    def __init__(
        self, study: Study, *, trials: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.config = study.config
        self.label = f"{study.config.benchmark} {study.config.name}"
        self.trials = trials
        self.clock = clock
        ranking = study.ranking()
        self.best: Trial | None = ranking[0] if ranking else None
        self.before = self.done = len(study.trials())
        self.running: dict[int, str] = {}
        self._began = clock()

    def show(self, event: SearchEvent) -> None:
        """Take in what has happened."""
        if isinstance(event, Begun):
            self.running[event.trial.number] = ""
        elif isinstance(event, Moved):
            self.running[event.number] = f"{event.done}/{event.batches or '?'}"
        else:
            self.running.pop(event.trial.number, None)
            self.done += 1
            self.best = event.best
        self.refresh(event)

    @abstractmethod
    def refresh(self, event: SearchEvent) -> None:
        """Show it."""

    @abstractmethod
    def note(self, text: str) -> None:
        """Say something beside."""

    def __enter__(self) -> TuneDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def left_text(self) -> str:
        """The time left, as text; empty if it is not known."""
        left = seconds_left(
            self.clock() - self._began,
            done=self.done - self.before,
            left=max(0, self.trials - self.done),
        )
        return "" if left is None else f"{time_text(left)} left"

    def best_text(self) -> str:
        """The best so far with its settings, as text."""
        if self.best is None:
            return "none finished"
        value, settings = self.best.value, settings_text(self.best.settings)
        return f"best {value_text(self.config, value)} (trial {self.best.number}: {settings})"

    def running_text(self) -> str:
        """The trials under way with the batches that they have done, as text."""
        shown = [f"{number} at {at}" if at else str(number) for number, at in self.running.items()]
        return f"trial {', '.join(shown[:4])}{' ...' if len(shown) > 4 else ''}" if shown else ""


class TuneLines(TuneDisplay):
    """A line at the start, and one a minute."""

    def __init__(
        self, study: Study, *, trials: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(study, trials=trials, clock=clock)
        self._said = clock()

    def __enter__(self) -> TuneDisplay:
        begun = f"goes on at trial {self.before}" if self.before else "begins"
        self.note(f"{self.label}: {begun}, {self.trials} trials, {self.config.objective}")
        return self

    def refresh(self, event: SearchEvent) -> None:
        """Write a line, if the last one was long ago."""
        if isinstance(event, Ended) and self.clock() - self._said >= LINE_SECONDS:
            self._said = self.clock()
            parts = [f"{self.done}/{self.trials}", self.left_text(), self.best_text()]
            self.note(f"{self.label}: {', '.join(part for part in parts if part)}")

    def note(self, text: str) -> None:
        """Write a line."""
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


class TuneBar(TuneDisplay):
    """A bar of trials with the time left and the trials under way, the best one below."""

    def __init__(
        self, study: Study, *, trials: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(study, trials=trials, clock=clock)
        try:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        except ImportError as error:
            raise MissingPackageError(
                'The command line needs tyro and rich: pip install "ocar[cli]"'
            ) from error
        self._console = Console(stderr=True, highlight=False)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[live]}", markup=False),
            console=self._console,
        )
        self._task = self._bar.add_task(
            self.label, total=trials, completed=self.done, live="waiting"
        )

    def __enter__(self) -> TuneDisplay:
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
        """Write a line above the bar."""
        self._console.print(text, markup=False)


def make_display(study: Study, *, trials: int) -> TuneDisplay:
    """A bar if standard error is a terminal, else lines.

    Args:
        study: The study.
        trials: How many trials there are to be.
    """
    kind = TuneBar if sys.stderr.isatty() else TuneLines
    return kind(study, trials=trials)

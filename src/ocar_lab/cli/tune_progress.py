"""The progress of a search: one bar in a terminal, a line a minute elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from ocar_lab.cli.progress import LINE_SECONDS, Display
from ocar_lab.runs.texts import time_text
from ocar_lab.tune import Ended, SearchEvent, Study, TuneConfig


class TuneDisplay(Display):
    """A bar of trials with the time left, the running trials and the best one, or lines."""

    def __init__(
        self,
        study: Study,
        *,
        trials: int,
        terminal: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("live", terminal=terminal)
        self.config, self.trials, self.clock = study.config, trials, clock
        self.label = f"{study.config.benchmark} {study.config.name}"
        self.best = next(iter(study.ranking()), None)
        self.before = self.done = len(study.trials())
        self.running: dict[int, str] = {}
        self._began = self._said = clock()
        if self.bars is not None:
            self._bar = self.bars.add_task(
                self.label, total=trials, completed=self.done, live="waiting"
            )
        else:
            begun = f"resumes at trial {self.before}" if self.before else "begins"
            self.note(f"{self.label}: {begun}, {trials} trials, {self.config.objective}")

    def show(self, event: SearchEvent) -> None:
        """Show an event."""
        if isinstance(event, Ended):
            self.running.pop(event.trial.number, None)
            self.done += 1
            self.best = event.best
        else:
            self.running[event.number] = f"{event.done}/{event.batches or '?'}"
        if self.bars is not None:
            parts = [self.left_text(), self.running_text(), self.best_text()]
            live = "  ".join(part for part in parts if part)
            room = max(10, self.room - len(self.label) - 4)
            self.bars.update(self._bar, completed=self.done, live=live[:room])
        elif isinstance(event, Ended) and self.clock() - self._said >= LINE_SECONDS:
            self._said = self.clock()
            parts = [f"{self.done}/{self.trials}", self.left_text(), self.best_text()]
            self.note(f"{self.label}: {', '.join(part for part in parts if part)}")

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


def value_text(config: TuneConfig, value: float | None) -> str:
    """The value of a trial; empty if it has none."""
    if value is None:
        return ""
    return f"{value:.5g}" if config.regression else f"{value:.1%}"


def settings_text(settings: Mapping[str, Any], *, bare: bool = False) -> str:
    """Settings in a line, perhaps without their names."""
    texts = {n: f"{v:.3g}" if isinstance(v, float) else str(v) for n, v in settings.items()}
    return "  ".join(text if bare else f"{name} {text}" for name, text in texts.items())

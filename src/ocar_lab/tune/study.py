"""The folder of a study: what has been tried, how good it was, and what to try next.

::

    study.json    the configuration, versions, device, revision, command
    journal.log   every trial, in Optuna's journal format; only grows
    preset.json   the best settings so far
    .lock         held by the process that works in it

Only one process writes it; workers are told what to try and tell how it went. A trial that was cut
short, by a kill or by a request to stop, is no result: it is drawn anew. The random numbers of a
draw depend on the seed and on how many trials have been drawn before, so with one trial at a
time a study that was interrupted finds what an uninterrupted one does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch

from ocar.errors import MissingPackageError, RunError
from ocar.files import write_whole
from ocar.rng import derive_seed
from ocar_lab.runs import describe_process
from ocar_lab.runs.folder import read_json
from ocar_lab.runs.lock import FolderLock
from ocar_lab.tune.config import STARTUP, TuneConfig
from ocar_lab.tune.pruning import is_hopeless
from ocar_lab.tune.spaces import Choice, Range
from ocar_lab.tune.trial import Scored

STUDY, JOURNAL, PRESET = "study.json", "journal.log", "preset.json"

_ERROR = "error"
"""Under this name Optuna keeps why a trial failed; one that has no reason was cut short."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One trial of a study."""

    number: int
    """Its number in the journal; numbers of trials that were cut short are left out."""

    state: Literal["running", "finished", "pruned", "failed"]
    """How it is or ended."""

    settings: Mapping[str, Any]
    """What was tried."""

    value: float | None = None
    """How good it was, if it finished."""

    scores: Mapping[int, float] = field(default_factory=dict)
    """How good it was, by batches learned."""

    seconds: float | None = None
    """How long it took."""

    error: str = ""
    """What went wrong, if it failed."""


class Study:
    """A study to go on with; entering it takes the lock and opens the journal.

    Args:
        config: What is searched.
        folder: The folder; made when it is entered.

    Raises:
        MissingPackageError: Optuna is not installed.
        RunError: When entering: the folder is in use, damaged, or of another configuration.
    """

    def __init__(self, config: TuneConfig, folder: Path) -> None:
        self.config = config
        self.folder = folder
        self._optuna = _import_optuna()
        self._exit = ExitStack()
        self._study: Any = None
        self._asked: dict[int, Any] = {}

    def __enter__(self) -> Study:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._exit.enter_context(FolderLock(self.folder))
            self._describe()
            self._open()
        except BaseException:
            self._exit.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._exit.close()

    @property
    def preset_path(self) -> Path:
        """Where the best settings are written."""
        return self.folder / PRESET

    # What there is

    def trials(self) -> list[Trial]:
        """Every trial that counts, in the order of the draws."""
        return [trial for t in self._study.trials if (trial := _trial(t)) is not None]

    def ranking(self) -> list[Trial]:
        """The finished trials, the best first."""
        finished = [(t.value, t) for t in self.trials() if t.value is not None]
        finished.sort(key=lambda pair: pair[0], reverse=self.config.direction == "maximize")
        return [trial for _, trial in finished]

    # What happens to a trial

    def ask(self) -> Trial:
        """Draw a trial, or take what is to be tried first."""
        drawn = len(self.trials())
        waiting = self._study.get_trials(states=(self._optuna.trial.TrialState.WAITING,))
        if drawn == 0 and self.config.first and not waiting:
            self._study.enqueue_trial(self.config.first)
        self._study.sampler = self._optuna.samplers.TPESampler(
            seed=derive_seed(self.config.seed, f"tune/{drawn}") % 2**32,
            n_startup_trials=STARTUP,
            constant_liar=True,
        )
        distributions = {name: self._distribution(p) for name, p in self.config.space.items()}
        asked = self._study.ask(distributions)
        self._asked[asked.number] = asked
        return Trial(number=asked.number, state="running", settings=dict(asked.params))

    def report(self, number: int, scored: Scored) -> bool:
        """A trial has been evaluated.

        Returns:
            Whether it should be stopped, if it is not over.
        """
        step = scored.batches
        others = [
            t.scores[step]
            for t in self.trials()
            if t.number != number and t.state in ("finished", "pruned") and step in t.scores
        ]
        self._asked[number].report(scored.value, step)
        return self.config.prune and is_hopeless(
            scored.value, others, task=scored.task, lower_is_better=self.config.regression
        )

    def finish(self, number: int, value: float) -> None:
        """A trial has been judged."""
        self._tell(number, "COMPLETE", value)

    def prune(self, number: int) -> None:
        """A trial was stopped since it did worse than most."""
        self._tell(number, "PRUNED")

    def fail(self, number: int, error: str, *, diverged: bool = False) -> None:
        """A trial went wrong, or its worker has died.

        Args:
            number: Which.
            error: What went wrong.
            diverged: Whether its settings are to blame. Then the search is to keep away from
                them: Optuna learns from a trial that was pruned, not from one that failed.
        """
        self._asked[number].set_user_attr(_ERROR, error or "unknown")
        self._tell(number, "PRUNED" if diverged else "FAIL")

    def forget(self, number: int) -> None:
        """A trial was cut short; it will be drawn anew."""
        self._tell(number, "FAIL")

    def _tell(self, number: int, state: str, value: float | None = None) -> None:
        self._study.tell(number, value, state=self._optuna.trial.TrialState[state])
        self._asked.pop(number, None)

    # The folder

    def _describe(self) -> None:
        """Say what the study is, or see that it is what the folder says."""
        path = self.folder / STUDY
        wanted = json.loads(json.dumps(self.config.identity()))
        if not path.exists():
            device = torch.device(wanted["device"] if torch.cuda.is_available() else "cpu")
            document = {"config": wanted, **describe_process(device)}
            write_whole(path, json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n")
        stored = read_json(path).get("config")
        differences = _differences(stored if isinstance(stored, dict) else {}, wanted)
        if differences:
            raise RunError(
                f"{self.folder} holds another study: {'; '.join(differences)}.\n"
                "      Name another folder with --out, or move this one away."
            )

    def _open(self) -> None:
        """Open the journal, and close what was left open in it."""
        optuna, path = self._optuna, self.folder / JOURNAL
        before = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._exit.callback(optuna.logging.set_verbosity, before)
        _cut_torn_line(path)
        # We hold the folder, so a lock on the file was left by a process that was killed.
        path.with_name(f"{JOURNAL}.lock").unlink(missing_ok=True)
        backend = optuna.storages.journal.JournalFileBackend(str(path))
        try:
            self._study = optuna.create_study(
                storage=optuna.storages.JournalStorage(backend),
                study_name="ocar",
                direction=self.config.direction,
                load_if_exists=True,
            )
        except (ValueError, KeyError) as error:
            raise RunError(f"{path} is damaged: {error}") from error
        for trial in self._study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):
            self.forget(trial.number)

    def _distribution(self, part: Range | Choice) -> Any:
        kinds = self._optuna.distributions
        if isinstance(part, Choice):
            return kinds.CategoricalDistribution(part.values)
        if part.whole:
            return kinds.IntDistribution(int(part.low), int(part.high), log=part.log)
        return kinds.FloatDistribution(part.low, part.high, log=part.log)


def _trial(frozen: Any) -> Trial | None:
    """A trial of Optuna's as one of ours; None if it was cut short or has not begun."""
    names: dict[str, Any] = {
        "WAITING": "waiting",
        "RUNNING": "running",
        "COMPLETE": "finished",
        "PRUNED": "pruned",
        "FAIL": "failed",
    }
    state = names[frozen.state.name]
    error = frozen.user_attrs.get(_ERROR, "")
    if state == "waiting" or (state == "failed" and not error):
        return None
    if error:
        state = "failed"
    return Trial(
        number=frozen.number,
        state=state,
        settings=dict(frozen.params),
        value=frozen.value if state == "finished" else None,
        scores=dict(frozen.intermediate_values),
        seconds=None if frozen.duration is None else frozen.duration.total_seconds(),
        error=error,
    )


def _differences(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """What is not the same, in words."""
    said = []
    for name in dict.fromkeys([*stored, *wanted]):
        one, other = stored.get(name), wanted.get(name)
        if isinstance(one, dict) and isinstance(other, dict):
            said += [f"{name}: {text}" for text in _differences(one, other)]
        elif one != other:
            said.append(f"{name} is {one} there and {other} here")
    return said


def _cut_torn_line(path: Path) -> None:
    """Cut off the line that a killed process did not finish, so that the next begins a new one."""
    if path.exists():
        data = path.read_bytes()
        if not data.endswith(b"\n"):
            with path.open("rb+") as file:
                file.truncate(data.rfind(b"\n") + 1)


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise MissingPackageError('Tuning needs Optuna: pip install "ocar[tune]"') from error
    return optuna

"""Studies of ``ocar tune``, read while or after they are written.

Like a run folder, a study is read without PyTorch and without its lock.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ocar.errors import RunError
from ocar_lab.optional import needed
from ocar_lab.runs.folder import naming_damage, read_json
from ocar_lab.runs.reading import is_alive

STUDY, JOURNAL, NAME = "study.json", "journal.log", "ocar"
"""Files of a study, and the study's name in the journal."""

State = Literal["running", "finished", "pruned", "failed"]

STATES: dict[str, State] = {
    "RUNNING": "running",
    "COMPLETE": "finished",
    "PRUNED": "pruned",
    "FAIL": "failed",
}

ERROR = "error"
"""User attribute of an Optuna trial: why it failed."""

LEAST = 20
"""Finished trials from which on importances are estimated; with fewer they are mostly noise."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One trial of a study."""

    number: int  #: In the journal; trials that were cut short have numbers too.
    state: State
    settings: Mapping[str, Any]
    value: float | None = None  #: If it finished.
    scores: Mapping[int, float] = field(default_factory=dict)  #: By batches learned.
    seconds: float | None = None
    error: str = ""  #: If it failed.


@dataclass(frozen=True, kw_only=True)
class StoredStudy:
    """A study folder, as it was when it was read."""

    path: Path
    benchmark: str
    method: str
    objective: str  #: The value of a trial, in words.
    maximize: bool  #: Whether a higher value is better.
    space: Mapping[str, Mapping[str, Any]]  #: The ranges and choices, in plain values.
    trials: tuple[Trial, ...]  #: In the order of the draws.
    importance: Mapping[str, float]  #: Share of each setting; empty if there are too few trials.
    running: bool  #: Whether a process works in the folder.


def to_trial(frozen: Any) -> Trial | None:
    """A trial of Optuna's as one of ours; None if it was cut short or has not begun."""
    state = STATES.get(frozen.state.name)
    error = frozen.user_attrs.get(ERROR, "")
    if state is None or (state == "failed" and not error):
        return None
    return Trial(
        number=frozen.number,
        state="failed" if error else state,
        settings=dict(frozen.params),
        value=frozen.value if state == "finished" else None,
        scores=dict(frozen.intermediate_values),
        seconds=None if frozen.duration is None else frozen.duration.total_seconds(),
        error=error,
    )


def read_study(path: Path) -> StoredStudy:
    """Read a study folder.

    Raises:
        RunError: It is no study folder, or a file in it is damaged.
        MissingPackageError: Optuna is not installed.
    """
    with naming_damage(path):
        config = read_json(path / STUDY)["config"]
        space = {str(name): dict(part) for name, part in config["space"].items()}
        study = _load(path / JOURNAL)
        frozen = [] if study is None else study.get_trials(deepcopy=False)
        running = _is_running(path)
        found = [trial for one in frozen if (trial := to_trial(one)) is not None]
        trials = tuple(trial for trial in found if running or trial.state != "running")
        return StoredStudy(
            path=path,
            benchmark=str(config["benchmark"]),
            method=str(config["method"]),
            objective=str(config["objective"]),
            maximize=study is not None and study.direction.name == "MAXIMIZE",
            space=space,
            trials=trials,
            importance=_importance(study, trials),
            running=running,
        )


def _load(path: Path) -> Any:
    """The study in a journal; None if it has not begun."""
    with needed("Reading a study", "Optuna", extra="tune"):
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend
    if not path.is_file() or not path.stat().st_size:  # Optuna would make the file
        return None
    try:
        storage = JournalStorage(JournalFileBackend(str(path)))
        return optuna.load_study(study_name=NAME, storage=storage)
    except Exception as error:  # Optuna does not check what it reads
        raise RunError(f"{path} is damaged: {type(error).__name__}: {error}.") from error


def _importance(study: Any, trials: tuple[Trial, ...]) -> dict[str, float]:
    """PED-ANOVA: how much each setting separates the best tenth of the trials from the others."""
    if sum(trial.state == "finished" for trial in trials) < LEAST:
        return {}
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    found = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
    return {name: float(share) for name, share in found.items()}


def _is_running(path: Path) -> bool:
    """Whether the process that locked the folder last is alive."""
    try:
        text = (path / ".lock").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    holder = re.fullmatch(r"process (\d{1,9}) on (.*)\n?", text)
    return holder is not None and is_alive(holder[1], holder[2])

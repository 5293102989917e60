"""A study: an Optuna study in a folder, which the same command resumes.

::

    study.json    the configuration, versions, device, revision, command
    journal.log   every trial, in Optuna's journal format; only grows
    preset.json   the best settings so far
    .lock         held by the process that works in the folder

Optuna draws, stores and judges the trials in this process; an executor runs them. A trial that was
cut short, by a kill or by a request to stop, is drawn again. With one worker the random numbers of
a draw depend on the seed and the number of earlier trials only, so that an interrupted study finds
the same as an uninterrupted one.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from ocar import accel
from ocar.errors import OcarError, RunError
from ocar.files import folder_lock, printable_values, read_file
from ocar.rng import derive_seed
from ocar_lab.experiment.executors import Executor, Stop, WorkError
from ocar_lab.experiment.executors.base import never
from ocar_lab.optional import needed
from ocar_lab.runs import describe_process
from ocar_lab.runs.folder import open_to_write, read_json, write_json
from ocar_lab.runs.provenance import differences
from ocar_lab.runs.studies import ERROR, JOURNAL, NAME, STUDY, Trial, to_trial
from ocar_lab.tune.config import STARTUP, TuneConfig
from ocar_lab.tune.events import Ended, Moved, SearchEvent
from ocar_lab.tune.preset import Preset, write_preset
from ocar_lab.tune.pruning import FIRST, is_hopeless
from ocar_lab.tune.spaces import suggest
from ocar_lab.tune.trial import Finished, Scored, TrialWork

PRESET = "preset.json"

MOST_FAILURES = 10
"""If the first trials, at least this many, all fail, the cause is not their settings."""


class _CutShort(Exception):
    """A trial was stopped before its end; it does not count."""


class Study:
    """A study to begin or resume; entering it takes the lock and opens the journal.

    Args:
        config: What is searched.
        folder: The folder; it is made when the study is entered.

    Raises:
        RunError: When entering: the folder is in use, damaged, or of another configuration.
    """

    def __init__(self, config: TuneConfig, folder: Path) -> None:
        self.config = config
        self.folder = folder
        with needed("Tuning", "Optuna", extra="tune"):
            import optuna
        self._optuna: Any = optuna
        self._exit = ExitStack()
        self._study: Any = None
        self._lock = threading.RLock()  # of callbacks: several workers are several threads
        self._fatal: OcarError | None = None
        self._details: dict[int, str] = {}

    def __enter__(self) -> Study:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._exit.enter_context(folder_lock(self.folder))
            self._describe()
            self._open()
        except BaseException:
            self._exit.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    @property
    def preset_path(self) -> Path:
        """File of the best settings."""
        return self.folder / PRESET

    def trials(self) -> list[Trial]:
        """Every trial that counts, in the order of the draws."""
        frozen = self._study.get_trials(deepcopy=False)
        return [trial for one in frozen if (trial := to_trial(one)) is not None]

    def ranking(self) -> list[Trial]:
        """The finished trials, best first."""
        finished = [(t.value, t) for t in self.trials() if t.value is not None]
        finished.sort(key=lambda pair: pair[0], reverse=self.config.direction == "maximize")
        return [trial for _, trial in finished]

    def search(
        self,
        executor: Executor,
        *,
        trials: int = 100,
        stop: Stop = never,
        listen: Callable[[SearchEvent], object] = lambda _: None,
    ) -> None:
        """Search until the study has a number of trials.

        A trial whose worker dies counts as failed. A trial that is cut short by a request to stop
        does not count.

        Args:
            executor: Runs the trials, and is closed afterwards.
            trials: Number of trials, earlier ones included.
            stop: Asked often whether to leave.
            listen: Called with every event.

        Raises:
            OcarError: Trials fail for a reason other than their settings.
        """
        done, waiting = len(self.trials()), self._optuna.trial.TrialState.WAITING
        if done == 0 and self.config.first and not self._study.get_trials(states=(waiting,)):
            self._study.enqueue_trial(self.config.first)

        def stopping() -> bool:
            return self._fatal is not None or stop()

        def emit(event: SearchEvent) -> None:
            with self._lock:
                listen(event)

        def objective(trial: Any) -> float:
            if stopping():
                self._study.stop()
                raise _CutShort
            return self._run(trial, executor, stopping, emit)

        def judge(_: Any, frozen: Any) -> None:
            with self._lock:
                self._reseed()
                if (trial := to_trial(frozen)) is not None:
                    emit(self._judge(trial))

        with executor:
            if done < trials:
                self._reseed()
                self._study.optimize(
                    objective,
                    n_trials=trials - done,
                    n_jobs=executor.workers,
                    catch=(_CutShort, WorkError),
                    callbacks=[judge],
                )
        if self._fatal is not None:
            raise self._fatal

    def _run(
        self, trial: Any, executor: Executor, stop: Stop, emit: Callable[[SearchEvent], None]
    ) -> float:
        """Run one trial and return its value; Optuna calls this.

        Raises:
            TrialPruned: It is worse than most trials, or its settings make it diverge. Optuna
                learns from pruned trials and not from failed ones.
            WorkError: It failed.
            _CutShort: It was stopped, or all trials would fail as it did.
        """
        settings = {name: suggest(trial, name, part) for name, part in self.config.space.items()}
        number, value, hopeless = trial.number, float("nan"), False
        emit(Moved(number=number))
        work = TrialWork(config=self.config.run_config(settings), number=number)
        try:
            with closing(executor.run(work, stop)) as messages:
                for message in messages:
                    if isinstance(message, Finished):
                        return value
                    if hopeless:
                        break
                    if isinstance(message, Moved):
                        emit(message)
                    elif isinstance(message, Scored):
                        value = message.value
                        trial.report(value, message.batches)
                        compared = self.config.prune and message.task >= FIRST
                        hopeless = compared and self._is_hopeless(value, message.batches)
                    elif message.reason == "settings":
                        trial.set_user_attr(ERROR, message.error)
                        raise self._optuna.TrialPruned
                    else:
                        self._fatal = OcarError(message.error)
                        break
        except WorkError as error:
            trial.set_user_attr(ERROR, error.error or "unknown")
            self._details[number] = error.details
            raise
        if hopeless:
            raise self._optuna.TrialPruned
        self._study.stop()
        raise _CutShort

    def _is_hopeless(self, value: float, batches: int) -> bool:
        """Whether a trial should be pruned, with this value after these batches."""
        states = (self._optuna.trial.TrialState.COMPLETE, self._optuna.trial.TrialState.PRUNED)
        others = [
            other.intermediate_values[batches]
            for other in self._study.get_trials(deepcopy=False, states=states)
            if batches in other.intermediate_values and ERROR not in other.user_attrs
        ]
        lower_is_better = self.config.direction == "minimize"
        return is_hopeless(value, others, lower_is_better=lower_is_better)

    def _judge(self, trial: Trial) -> Ended:
        """Store the best settings so far; give up if all trials fail."""
        ended = [other for other in self.trials() if other.state != "running"]
        if len(ended) >= MOST_FAILURES and all(other.state == "failed" for other in ended):
            self._fatal = RunError(
                f"All of {len(ended)} trials failed, the last one with: {trial.error}"
            )
            self._study.stop()
        best = next(iter(self.ranking()), None)
        if best is not None:
            config = self.config
            preset = Preset(
                benchmark=config.benchmark,
                method=config.method,
                transform=config.transform,
                settings={**config.settings, **best.settings},
                found={
                    "objective": config.objective,
                    "value": best.value,
                    "trial": best.number,
                    "trials": len(ended),
                    "seed": config.seed,
                },
            )
            write_preset(self.preset_path, preset)
        return Ended(trial=trial, best=best, details=self._details.pop(trial.number, ""))

    def _reseed(self) -> None:
        """A sampler for the next draw, whose seed depends on the number of trials so far."""
        seed = derive_seed(self.config.seed, f"tune/{len(self.trials())}") % 2**32
        self._study.sampler = self._optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=STARTUP, constant_liar=True
        )

    def _describe(self) -> None:
        """Write what the study is, or check that the folder holds the same study."""
        path = self.folder / STUDY
        wanted = printable_values(json.loads(json.dumps(self.config.identity())))
        if not path.exists():
            device = accel.choose_device(wanted["device"] if accel.has_gpu() else "cpu")
            plugins = {"plugins": self.config.plugins} if self.config.plugins else {}
            document = {"config": wanted, **plugins, **describe_process(device)}
            write_json(path, document)
        stored = read_json(path).get("config")
        found = differences(stored if isinstance(stored, dict) else {}, wanted)
        if found:
            raise RunError(
                f"{self.folder} holds another study: {'; '.join(found)}.\n"
                "      Name another folder with --out, or move this one away."
            )

    def _open(self) -> None:
        """Open the journal; trials that were left running were cut short."""
        optuna, path = self._optuna, self.folder / JOURNAL
        before = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._exit.callback(optuna.logging.set_verbosity, before)
        _cut_torn_line(path)
        # We hold the folder, so that Optuna's lock was left by a process that was killed.
        path.with_name(f"{JOURNAL}.lock").unlink(missing_ok=True)
        backend = optuna.storages.journal.JournalFileBackend(str(path))
        try:
            self._study = optuna.create_study(
                storage=optuna.storages.JournalStorage(backend),
                study_name=NAME,
                direction=self.config.direction,
                load_if_exists=True,
            )
        except (ValueError, KeyError) as error:
            raise RunError(f"{path} is damaged: {error}") from error
        states = optuna.trial.TrialState
        for trial in self._study.get_trials(states=(states.RUNNING,)):
            self._study.tell(trial.number, state=states.FAIL)


def _cut_torn_line(path: Path) -> None:
    """Remove a last line that a killed process did not finish; make the file if there is none."""
    with open_to_write(path) as file:  # Optuna itself would write through a link
        data = read_file(path)
        if not data.endswith(b"\n"):
            file.truncate(data.rfind(b"\n") + 1)

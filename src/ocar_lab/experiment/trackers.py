"""A run in TensorBoard, MLflow or Weights & Biases: a listener for each.

A tracker listens to the events of one run and writes its evaluations as scalars. It adds nothing to
the run: without it the run folder is the same.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from ocar.errors import ConfigError
from ocar.events import Finished
from ocar_lab.experiment.events import Recorded, RunEvent, Started, Stopped
from ocar_lab.optional import needed
from ocar_lab.runs.folder import CONFIG, read_json

TrackerName = Literal["tensorboard", "mlflow", "wandb"]

Ending = Literal["finished", "stopped", "failed"]


class Tracker(ABC):
    """A listener that writes a run to a tracker.

    Example::

        ocar_lab.run(config, listen=TensorBoard())
    """

    def __init__(self) -> None:
        self._step = 0
        self._open = False

    @abstractmethod
    def begin(self, path: Path, document: Mapping[str, Any], position: int) -> None:
        """Begin or resume.

        Args:
            path: The run folder.
            document: Its ``config.json``.
            position: Batches that are done.
        """

    @abstractmethod
    def write(self, scalars: Mapping[str, float], step: int) -> None:
        """Write some numbers after a number of batches."""

    @abstractmethod
    def end(self, ending: Ending) -> None:
        """Write what is left, and close the run."""

    def __call__(self, event: RunEvent) -> None:
        """Write one event."""
        if isinstance(event, Started):
            self.begin(event.path, read_json(event.path / CONFIG), event.position)
            self._open = True
        elif isinstance(event, Recorded):
            self._step = event.evaluated.index + 1
            if event.kept:
                self.write(scalars_of(event), self._step)
        elif isinstance(event, Finished):
            numbers = {f"result/{n}": v for n, v in vars(event.summary).items() if v is not None}
            self.write(numbers, self._step)
            self.close("finished")
        elif isinstance(event, Stopped):
            self.close("stopped")

    def close(self, ending: Ending = "failed") -> None:
        """End the run, if it has not ended."""
        if self._open:
            self._open = False
            self.end(ending)


def scalars_of(event: Recorded) -> dict[str, float]:
    """The numbers of one evaluation, by name."""
    evaluated = event.evaluated
    scalars = {"time/training_seconds": evaluated.seconds}
    if evaluated.correct:
        scalars |= {"accuracy/now": evaluated.accuracy, "accuracy/aaa": event.aaa}
    losses = {"loss/l_p": evaluated.l_p, "loss/l_s": evaluated.l_s}
    scalars |= {name: value for name, value in losses.items() if value is not None}
    scalars |= {f"tasks/{i + 1}": a for i, a in enumerate(evaluated.accuracies)}
    return scalars | {f"learner/{name}": value for name, value in event.reported.items()}


class TensorBoard(Tracker):
    """Writes to ``tensorboard/`` in the run's folder.

    When a run resumes, scalars that were written after its checkpoint are marked as superseded.
    """

    def __init__(self) -> None:
        super().__init__()
        with needed("A TensorBoard file", "tensorboard", extra="tensorboard"):
            from torch.utils.tensorboard import SummaryWriter
        self._make_writer: Any = SummaryWriter
        self._writer: Any = None

    def begin(self, path: Path, document: Mapping[str, Any], position: int) -> None:
        """Open a file."""
        self._writer = self._make_writer(str(path / "tensorboard"), purge_step=position + 1)

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        """Write some numbers after a number of batches."""
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)

    def end(self, ending: Ending) -> None:
        """Close the file."""
        self._writer.close()


class MLflow(Tracker):
    """Writes to the tracking server of ``MLFLOW_TRACKING_URI``, else to ``mlflow.db`` in ``out``.

    The experiment is the benchmark. A resumed run goes on in MLflow where it was.

    Args:
        out: The folder of all runs.
    """

    AT_ONCE = 500
    """Numbers that are sent together; one by one they would take longer than learning."""

    def __init__(self, out: Path) -> None:
        super().__init__()
        with needed("Tracking by MLflow", "mlflow", extra="mlflow"):
            from mlflow.entities import Metric
            from mlflow.tracking import MlflowClient
        database = f"sqlite:///{(out / 'mlflow.db').absolute()}"
        out.mkdir(parents=True, exist_ok=True)
        self._metric: Any = Metric
        self._client: Any = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or database)
        self._artifacts = (out / "mlflow-artifacts").absolute().as_uri()
        self._run = ""
        self._waiting: list[Any] = []
        self._before = 0  # what was written before the run was resumed

    def experiment(self, benchmark: str) -> str:
        """The id of the benchmark's experiment, made if it is missing."""
        found = self._client.get_experiment_by_name(benchmark)
        if found is not None:
            return str(found.experiment_id)
        location = None if os.environ.get("MLFLOW_TRACKING_URI") else self._artifacts
        return str(self._client.create_experiment(benchmark, artifact_location=location))

    def begin(self, path: Path, document: Mapping[str, Any], position: int) -> None:
        """Make a run, or find that of an earlier process."""
        experiment = self.experiment(str(document["config"]["benchmark"]))
        name = run_name(document)
        found = self._client.search_runs([experiment], f"tags.`ocar.run` = '{name}'")
        if found:
            self._run = found[0].info.run_id
            written = self._client.get_metric_history(self._run, "time/training_seconds")
            self._before = max((metric.step for metric in written), default=0)
            self._client.update_run(self._run, status="RUNNING")
            return
        tags = {"ocar.run": name, "ocar.folder": str(path)}
        title = f"{document['label']} seed {document['seed']}"
        self._run = self._client.create_run(experiment, tags=tags, run_name=title).info.run_id
        for key, value in parameters(document).items():
            self._client.log_param(self._run, key, value)

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        """Take some numbers after a number of batches, and send many at once."""
        now = int(1000 * time.time())
        repeated = step <= self._before
        self._waiting += [
            self._metric(name, float(value), now, step)
            for name, value in scalars.items()
            if not repeated or name.startswith("result/")
        ]
        if len(self._waiting) >= self.AT_ONCE:
            self._send()

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        for first in range(0, len(waiting), self.AT_ONCE):
            self._client.log_batch(self._run, metrics=waiting[first : first + self.AT_ONCE])

    def end(self, ending: Ending) -> None:
        """Send what is left, with how the run ended."""
        self._send()
        states = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
        self._client.set_terminated(self._run, status=states[ending])


class WeightsAndBiases(Tracker):
    """Writes to ``wandb/`` in the run's folder, without a network; ``wandb sync`` uploads it.

    ``WANDB_MODE`` chooses another mode, such as ``online``, ``WANDB_PROJECT`` another project than
    ``ocar``.
    """

    def __init__(self) -> None:
        super().__init__()
        with needed("Tracking by Weights & Biases", "wandb", extra="wandb"):
            import wandb
        self._wandb: Any = wandb
        self._run: Any = None

    def begin(self, path: Path, document: Mapping[str, Any], position: int) -> None:
        """Make a run; one of the same name is continued."""
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", "ocar"),
            mode=os.environ.get("WANDB_MODE", "offline"),
            dir=str(path),
            id=run_name(document),
            resume="allow",
            reinit="create_new",  # several runs can share a process
            name=f"{document['label']} seed {document['seed']}",
            group=f"{document['config']['benchmark']} {document['label']} {document['hash']}",
            config={**parameters(document), "seed": document["seed"]},
            settings=self._wandb.Settings(silent=True, console="off", x_disable_stats=True),
        )

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        """Write some numbers after a number of batches."""
        self._run.log(dict(scalars), step=step)

    def end(self, ending: Ending) -> None:
        """Close the run."""
        self._run.finish(exit_code=int(ending == "failed"))


def make_tracker(name: TrackerName, out: Path) -> Tracker:
    """A tracker by its name.

    Raises:
        ConfigError: The name is unknown.
        MissingPackageError: The tracker's package is not installed.
    """
    if name == "mlflow":
        return MLflow(out)
    if name not in ("tensorboard", "wandb"):
        raise ConfigError(f"Unknown tracker {name!r}. There are tensorboard, mlflow, wandb.")
    return TensorBoard() if name == "tensorboard" else WeightsAndBiases()


def prepare_tracker(name: TrackerName, out: Path, benchmark: str) -> None:
    """Raise if a tracker cannot be used, and make what several runs at once would race for."""
    tracker = make_tracker(name, out)
    if isinstance(tracker, MLflow):
        tracker.experiment(benchmark)


def run_name(document: Mapping[str, Any]) -> str:
    """A name for a run that it always has."""
    return f"{document['hash']}-{document['seed']}"


def parameters(document: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that decides the numbers, flat."""
    config = dict(document["config"])
    nested = {**(config.pop("settings", None) or {}), **(config.pop("transform", None) or {})}
    return {name: value for name, value in (config | nested).items() if value is not None}

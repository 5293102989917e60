"""One configuration to one run folder, which is resumed where it was left."""

from ocar_lab.experiment.config import RunConfig
from ocar_lab.experiment.events import AlreadyFinished, Recorded, RunEvent, Saved, Started, Stopped
from ocar_lab.experiment.loop import run, run_events
from ocar_lab.experiment.many import Ended, Job, Message, Progress, run_many
from ocar_lab.experiment.session import Session
from ocar_lab.experiment.trackers import MLflow, TensorBoard, WeightsAndBiases

__all__ = [
    "AlreadyFinished",
    "Ended",
    "Job",
    "MLflow",
    "Message",
    "Progress",
    "Recorded",
    "RunConfig",
    "RunEvent",
    "Saved",
    "Session",
    "Started",
    "Stopped",
    "TensorBoard",
    "WeightsAndBiases",
    "run",
    "run_events",
    "run_many",
]

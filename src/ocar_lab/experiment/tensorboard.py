"""A run in TensorBoard: a listener that writes to the run's folder."""

from __future__ import annotations

from typing import Any

from ocar.events import Finished
from ocar_lab.experiment.events import Recorded, RunEvent, Started, Stopped
from ocar_lab.optional import needed

FOLDER = "tensorboard"


class TensorBoard:
    """Writes the evaluations of a run as scalars to ``tensorboard/`` in its folder.

    When a run resumes, scalars that were written after its checkpoint are marked as superseded.

    Example::

        ocar_lab.run(config, listen=TensorBoard())
    """

    def __init__(self) -> None:
        with needed("A TensorBoard file", "tensorboard", extra="tensorboard"):
            from torch.utils.tensorboard import SummaryWriter
        self._make_writer: Any = SummaryWriter
        self._writer: Any = None
        self._step = 0

    def __call__(self, event: RunEvent) -> None:
        """Write one event."""
        if isinstance(event, Started):
            folder = str(event.path / FOLDER)
            self._writer = self._make_writer(folder, purge_step=event.position + 1)
        elif isinstance(event, Recorded):
            self._record(event)
        elif isinstance(event, Finished):
            for name, value in vars(event.summary).items():
                if isinstance(value, (int, float)):
                    self._writer.add_scalar(f"result/{name}", value, self._step)
        if isinstance(event, (Finished, Stopped)):
            self._writer.close()

    def _record(self, event: Recorded) -> None:
        evaluated = event.evaluated
        self._step = evaluated.index + 1
        if not event.kept:
            return
        scalars: dict[str, float] = {"time/training_seconds": evaluated.seconds}
        if evaluated.correct:
            scalars["accuracy/now"] = evaluated.accuracy
            scalars["accuracy/aaa"] = event.aaa
        for name in ("l_p", "l_s"):
            if getattr(evaluated, name) is not None:
                scalars[f"loss/{name}"] = getattr(evaluated, name)
        scalars |= {f"tasks/{i + 1}": a for i, a in enumerate(evaluated.accuracies)}
        scalars |= {f"learner/{name}": value for name, value in event.reported.items()}
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, self._step)

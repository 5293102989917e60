"""A learner, its journal and the thread that learns, in a folder that is locked."""

from __future__ import annotations

import errno
import queue
import threading
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ocar.errors import CheckpointWarning, DataError, InputError, OcarError
from ocar.files import clear_partials, folder_lock, make_folder
from ocar.inputs import Items, check_samples
from ocar.learner import Learner
from ocar.service import journal
from ocar.service.journal import KEYS, Journal, Repaired
from ocar.serving import Answer, Serving
from ocar.state import load_newest, load_state, previous
from ocar.structure import Given, Inputs, as_inputs

CHECKPOINT = "learner.safetensors"


class Refused(OcarError):
    """A batch was not accepted, and is not learned unless the reason says that it may be.

    Args:
        status: The status code of HTTP that says the same: 409, 422, 429 or 503.
        reason: What was wrong and what to do.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Accepted(NamedTuple):
    """A batch that is on the disk, and is or will be learned."""

    number: int
    """How many batches have been learned once it has."""
    repeated: bool
    """Whether it had been accepted before, with the same key."""


class Service:
    """Learns batches in the order in which they were accepted, and answers questions meanwhile.

    A batch is accepted once it is in the journal. One thread learns. Every so often the learner is
    saved and the journal cut. After a kill the service starts from the last checkpoint and learns
    again what the journal holds, to the bit.

    Args:
        folder: Where lock, checkpoint and journal are; it is made if it is missing.
        new: Makes the learner of an empty folder, a classifier.
        load: Makes the learner of a checkpoint, by :func:`ocar.load`.
        item: Shape and type of a sample, or of each of its parts by name.
        every: Batches between two checkpoints.
        waiting: Most batches that may wait to be learned.
        classes: Most classes: each new label makes the model larger.
        keys: How many keys of batches are remembered.

    Attributes:
        learner: The learner; only the service's own thread lets it learn.
        failure: Why nothing more is learned; empty as long as it is.
        unsaved: Why the last checkpoint could not be saved; empty if it could. The journal has
            what it would have held.

    Raises:
        RunError: Another process works in the folder.
        OcarError: Checkpoint or journal are damaged.
    """

    def __init__(
        self,
        folder: Path,
        *,
        new: Callable[[], Learner],
        load: Callable[[Path], Learner],
        item: Items,
        every: int = 100,
        waiting: int = 64,
        classes: int = 1000,
        keys: int = KEYS,
    ) -> None:
        self.item, self.every, self.most_classes = item, every, classes
        self.failure = self.unsaved = ""
        self._closed = False
        self._accepting = threading.Lock()
        self._checkpoint = folder / CHECKPOINT
        with ExitStack() as held:
            make_folder(folder)
            held.enter_context(folder_lock(folder))
            clear_partials(folder)
            self.learner = self._restored(new, load)
            self.saved = self.learner.batches
            self.journal = Journal(folder, after=self.saved, keys=keys)
            held.callback(self.journal.close)
            for x, y in self.journal.batches():
                self.learner.learn(x, y)
            if self.learner.batches != self.journal.last:
                raise DataError(
                    f"The learner in {folder} has learned {self.learner.batches} batches of "
                    f"{self.journal.last}."
                )
            self._labels = set(self.learner.classes)
            self._serving = Serving(self.learner)
            self._queue: queue.Queue[tuple[Inputs, Tensor] | None] = queue.Queue(waiting)
            self._thread = threading.Thread(target=self._learn, daemon=True)
            self._thread.start()
            self._held = held.pop_all()

    def _restored(self, new: Callable[[], Learner], load: Callable[[Path], Learner]) -> Learner:
        if not self._checkpoint.exists() and not previous(self._checkpoint).exists():
            return new()
        with warnings.catch_warnings():
            # The checkpoint before the newest may be used: the journal reaches back to it.
            warnings.simplefilter("ignore", CheckpointWarning)
            return load(self._checkpoint)

    def predict(self, x: Given) -> Answer:
        """Answer by the model that was published last; nobody waits for the learning.

        Raises:
            InputError: The samples are not of the service's shape and type.
        """
        samples = as_inputs(x)
        check_samples(samples, like=self.item)
        return self._serving.predict(samples)

    def accept(self, x: Given, y: Tensor, *, key: str = "", number: int | None = None) -> Accepted:
        """Write a batch to the journal, then give it to the thread that learns.

        Args:
            x: Samples, ``(n, ...)``, as in :meth:`ocar.Learner.learn`.
            y: Labels, ``(n,)`` int64.
            key: The client's name for the batch. A batch that is sent again with its key is learned
                once, and gets the number that it has. The last 4,096 keys are remembered.
            number: The number that the batch must get.

        Raises:
            InputError: It cannot be learned from; nothing has changed.
            Refused: It was not accepted.
        """
        x = as_inputs(x)
        self._check(x, y)
        with self._accepting:
            if self._closed:
                raise Refused(503, "The service has ended.")
            try:
                if (known := self.journal.known(key, x, y)) is not None:
                    return Accepted(known, repeated=True)
            except DataError as error:
                raise Refused(422, f"{error} Give each batch a key of its own.") from error
            if self.failure:
                raise Refused(503, f"Learning has stopped: {self.failure}")
            if number not in (None, self.journal.last + 1):
                raise Refused(409, f"The next batch is number {self.journal.last + 1}.")
            labels = self._labels.union(y.tolist())
            if len(labels) > max(self.most_classes, len(self._labels)):
                raise Refused(
                    422,
                    f"With this batch there would be {len(labels)} classes; at most "
                    f"{self.most_classes} are allowed, {len(self._labels)} are known.",
                )
            if self._queue.full():
                said = f"{self._queue.maxsize} batches are waiting to be learned; come back later."
                raise Refused(429, said)
            given = self._append(x, y, key)
            self._labels = labels
            self._queue.put_nowait((x, y))  # has room: only this method puts
            return Accepted(given, repeated=False)

    def _append(self, x: Inputs, y: Tensor, key: str) -> int:
        try:
            return self.journal.append(x, y, key=key)
        except OSError as error:
            if self.journal.failure:  # what is on disk now is only known after a start
                self.failure = self.journal.failure
                what = "Whether this batch is kept shows after a new start: send it again then."
            else:
                what = "This batch is not kept: send it again later."
            raise Refused(
                503, f"The journal cannot be written: {error.strerror}. {what}"
            ) from error

    def _check(self, x: Inputs, y: Tensor) -> None:
        check_samples(x, like=self.item)
        if y.dtype != torch.int64 or y.shape != (len(x),) or not len(x):
            raise InputError(
                f"y must have an int64 label for each of at least one sample; given {y.dtype} of "
                f"shape {tuple(y.shape)} for {len(x)} samples."
            )
        if int(y.min()) < 0:
            raise InputError(f"Labels must be at least 0; given {int(y.min())}.")

    def _learn(self) -> None:
        tried = self.saved
        while (batch := self._queue.get()) is not None:
            try:
                if not self.failure:
                    self.learner.learn(*batch)
                    if self.learner.batches - tried >= self.every:
                        tried = self.learner.batches
                        self._save()
            except Exception as error:  # noqa: BLE001 (whatever a model raises)
                self.failure = f"{type(error).__name__}: {error}"
            finally:
                self._queue.task_done()
        self._queue.task_done()

    def _save(self) -> None:
        """Save the learner, and drop what is older than the checkpoint before it."""
        before, self.unsaved = self.saved, ""
        try:
            self.learner.save(self._checkpoint)
            self.saved = self.learner.batches
            self.journal.trim(needed=before + 1)
        except OSError as error:
            self.unsaved = str(error)

    def flush(self) -> None:
        """Wait until all that was accepted is learned."""
        self._queue.join()

    def health(self) -> dict[str, Any]:
        """How the service is."""
        return {
            "failure": self.failure,
            "unsaved": self.unsaved,
            "batches": self.learner.batches,
            "accepted": self.journal.last,
            "waiting": self._queue.qsize(),
            "saved": self.saved,
            "classes": list(self.learner.classes),
            "guard": asdict(self.learner.guarded),
        }

    def close(self) -> None:
        """Learn what was accepted, save, and release the folder.

        Raises:
            OSError: The learner cannot be saved. The next start learns what the journal holds.
        """
        with self._accepting:
            if self._closed:
                return
            self._closed = True
        self._queue.put(None)
        self._thread.join()
        with self._held:
            if not self.failure and self.learner.batches > self.saved:
                self._save()
                if self.unsaved:
                    raise OSError(errno.EIO, self.unsaved)


def repair(folder: Path) -> Repaired:
    """Go on without the batches of a damaged journal that cannot be read.

    All others are kept and move up: their numbers are consecutive again. The old files of the
    journal stay, and are not read any more.

    Args:
        folder: The folder of a service that does not run.

    Raises:
        RunError: Another process works in the folder.
        CheckpointError: The checkpoint is damaged, and so is the one before it.
    """
    checkpoint = folder / CHECKPOINT
    with folder_lock(folder):
        after = 0
        if checkpoint.exists() or previous(checkpoint).exists():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CheckpointWarning)
                after = int(load_newest(checkpoint, load_state)[1]["batches"])
        return journal.repair(folder, after=after)

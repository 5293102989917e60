"""A learner, its journal and the thread that learns, in a folder that is locked."""

from __future__ import annotations

import errno
import math
import queue
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ocar.errors import (
    CheckpointError,
    CheckpointWarning,
    ConfigError,
    DataError,
    InputError,
    OcarError,
)
from ocar.files import clear_partials, folder_lock, make_folder
from ocar.inputs import fails_as_input_error
from ocar.items import Items, check_samples
from ocar.learner import Learner
from ocar.service import history
from ocar.service.history import History
from ocar.service.journal import KEYS, Journal
from ocar.service.score import Score
from ocar.serving import Answer, Serving
from ocar.structure import Given, Inputs, as_inputs


class Refused(OcarError):
    """A batch was not accepted, and is not learned unless the reason says that it may be.

    Args:
        status: The status code of HTTP that says the same: 404, 409, 422, 429 or 503.
        reason: What was wrong and what to do.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Accepted(NamedTuple):
    """A batch that is on the disk, and is or will be learned."""

    number: int  #: How many batches have been learned once it has.
    repeated: bool  #: Whether it had been accepted before, with the same key.


class Service:
    """Learns batches in the order in which they were accepted, and answers questions meanwhile.

    A batch is accepted once it is in the journal. One thread learns. Every so often the learner is
    saved and the journal cut. After a kill the service starts from the last checkpoint and learns
    again what the journal holds, to the bit.

    Args:
        folder: Where lock, checkpoints and journal are; it is made if it is missing.
        new: Makes the learner of an empty folder.
        load: Makes the learner of a checkpoint, by :func:`ocar.load`.
        item: Shape and type of a sample, or of each of its parts by name; by default those that the
            learner has seen.
        every: Batches between two checkpoints.
        waiting: Most batches that may wait to be learned.
        classes: Most classes: each new label makes the model larger.
        keys: How many keys of batches are remembered.
        checkpoints: How many checkpoints are kept, at least 2.
        window: Samples of the prequential score, see :meth:`score`.
        observe: Called with the seconds that each batch took, by the thread that learns.

    Attributes:
        learner: The learner; only the service's own thread lets it learn.
        item: Shape and type of a sample.
        failure: Why nothing more is learned; empty as long as it is.
        unsaved: Why the last checkpoint could not be saved; empty if it could. The journal has
            what it would have held.
        saved: Batches in the newest checkpoint.

    Raises:
        RunError: Another process works in the folder.
        ConfigError: The learner has seen no sample, and ``item`` is not given.
        OcarError: Checkpoint or journal are damaged.
    """

    def __init__(
        self,
        folder: Path,
        *,
        new: Callable[[], Learner],
        load: Callable[[Path], Learner],
        item: Items | None = None,
        every: int = 100,
        waiting: int = 64,
        classes: int = 1000,
        keys: int = KEYS,
        checkpoints: int = 5,
        window: int = 1000,
        observe: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.folder, self.every, self.most_classes = folder, every, classes
        self.failure = self.unsaved = ""
        self._load, self._keys, self._checkpoints = load, keys, checkpoints
        self._observe = observe
        self._score = Score(window)
        self._closed, self._until = False, math.inf
        self._accepting = threading.Lock()
        with ExitStack() as held:
            make_folder(folder)
            held.enter_context(folder_lock(folder))
            clear_partials(folder)
            self._open(new)
            held.callback(lambda: self.journal.close())
            self.item = self._item(item)
            self._queue: queue.Queue[tuple[Inputs, Tensor] | None] = queue.Queue(waiting)
            self._thread = threading.Thread(target=self._learn, daemon=True)
            self._thread.start()
            self._held = held.pop_all()

    def _open(self, new: Callable[[], Learner]) -> None:
        """Read checkpoint and journal, and learn what is not in the checkpoint."""
        self.history = History(self.folder, most=self._checkpoints)
        with warnings.catch_warnings():
            # The checkpoint before the newest may be used: the journal reaches back to it.
            warnings.simplefilter("ignore", CheckpointWarning)
            restored = self.history.restore(self._load)
        self.learner = new() if restored is None else restored
        if self.learner.ranks is not None:
            raise ConfigError("A service learns in one process. Make its learner without ranks.")
        if restored is None:
            self.history.save(self.learner)
        self.saved = self._tried = self.learner.batches
        self.journal = Journal(self.folder, after=self.saved, keys=self._keys)
        try:
            for x, y in self.journal.batches():
                self._learn_again(x, y)
            if self.learner.batches != self.journal.last:
                raise DataError(
                    f"The learner in {self.folder} has learned {self.learner.batches} batches of "
                    f"{self.journal.last}."
                )
            if self.learner.batches - self.saved >= self.every:
                self._save()  # another kill must not make the next start longer still
        except BaseException:
            self.journal.close()
            raise
        self._labels = set(self.learner.classes)
        self._serving = Serving(self.learner)

    def _item(self, given: Items | None) -> Items:
        seen = self.learner.intake.item
        if seen is None and given is None:
            raise ConfigError(
                "The learner has seen no sample, so the shape of samples is not known. Let it "
                "learn a batch before it is saved, or give shape and type of a sample."
            )
        if seen is not None and given not in (None, seen):
            raise ConfigError(f"The samples of the learner are {seen}; given {given}.")
        found = given if seen is None else seen
        assert found is not None
        return found

    def predict(self, x: Given) -> Answer:
        """Answer by the model that was published last; nobody waits for the learning.

        Raises:
            InputError: The samples are not of the service's shape and type, or the model cannot
                take them.
        """
        samples = as_inputs(x)
        check_samples(samples, like=self.item)
        with fails_as_input_error("model", samples):
            return self._serving.predict(samples)

    def accept(self, x: Given, y: Tensor, *, key: str = "", number: int | None = None) -> Accepted:
        """Write a batch to the journal, then give it to the thread that learns.

        Args:
            x: Samples, ``(n, ...)``, as in :meth:`ocar.Learner.learn`.
            y: Labels, ``(n,)`` int64, or regression targets, ``(n, outputs)``.
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
            self._check_open()
            try:
                if (known := self.journal.known(key, x, y)) is not None:
                    return Accepted(known, repeated=True)
            except DataError as error:
                raise Refused(422, f"{error} Give each batch a key of its own.") from error
            if self.failure:
                raise Refused(503, f"Learning has stopped: {self.failure}")
            if number not in (None, self.journal.last + 1):
                raise Refused(409, f"The next batch is number {self.journal.last + 1}.")
            labels = self._labels if self._regression else self._labels.union(y.tolist())
            if len(labels) > max(self.most_classes, len(self._labels)):
                raise Refused(
                    422,
                    f"With this batch there would be {len(labels)} classes; at most "
                    f"{self.most_classes} are allowed, {len(self._labels)} are known.",
                )
            if self._queue.full():
                said = f"{self._queue.maxsize} batches are waiting to be learned; come back later."
                raise Refused(429, said)
            if not self.learner.objective.predicts:  # else it would wait for the batch in progress
                self._try(x, y)
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

    @property
    def _regression(self) -> bool:
        return self.learner.head is None

    def _check(self, x: Inputs, y: Tensor) -> None:
        check_samples(x, like=self.item)
        if self._regression:
            dtype, fits = self.learner.dtype, y.dim() == 2 and len(y) == len(x) > 0
            if y.dtype != dtype or not fits:
                raise InputError(
                    f"y must have numbers ({dtype}) for each of at least one sample; given "
                    f"{y.dtype} of shape {tuple(y.shape)} for {len(x)} samples."
                )
            if not bool(torch.isfinite(y).all()):
                raise InputError("y must be finite; it holds NaN or Inf.")
            return
        if y.dtype != torch.int64 or y.shape != (len(x),) or not len(x):
            raise InputError(
                f"y must have an int64 label for each of at least one sample; given {y.dtype} of "
                f"shape {tuple(y.shape)} for {len(x)} samples."
            )
        if int(y.min()) < 0:
            raise InputError(f"Labels must be at least 0; given {int(y.min())}.")

    def _try(self, x: Inputs, y: Tensor) -> None:
        """Raise an ``InputError`` if the model cannot take a batch: learning would end with it."""
        outputs = self.predict(x).logits.shape[1]
        if self._regression and y.shape[1] != outputs:
            raise InputError(
                f"y must have {outputs} numbers for each sample; given shape {tuple(y.shape)}."
            )

    def _learn(self) -> None:
        while (batch := self._queue.get()) is not None:
            try:
                if not self.failure and time.monotonic() < self._until:
                    self._learn_one(*batch)
                    if self.learner.batches - self._tried >= self.every:
                        self._save()
            except Exception as error:  # noqa: BLE001 (whatever a model raises)
                self.failure = f"{type(error).__name__}: {error}"
            finally:
                self._queue.task_done()
        self._queue.task_done()

    def _learn_again(self, x: Inputs, y: Tensor) -> None:
        """Learn a batch of the journal.

        Raises:
            DataError: It cannot be learned; how to go on without it.
        """
        number = self.learner.batches + 1
        try:
            self._learn_one(x, y)
        except Exception as error:  # whatever a model raises
            raise DataError(
                f"Batch {number} in {self.folder} cannot be learned: {type(error).__name__}: "
                f"{str(error).rstrip('.')}. Go on without it: python -m ocar.service repair "
                f"{self.folder} --without {number}"
            ) from error

    def _learn_one(self, x: Inputs, y: Tensor) -> None:
        """Predict a batch, then learn it."""
        begun = time.perf_counter()
        if self.learner.objective.learns:  # GDumb trains anew for a prediction
            self._score.take(self.learner, x, y)
        self.learner.learn(x, y)
        self._observe(time.perf_counter() - begun)

    def score(self) -> float | None:
        """Prequential accuracy: of the last samples, each predicted before it was learned.

        In regression the mean absolute error. None before the first batch of this process.
        """
        return self._score.mean()

    def _save(self) -> None:
        """Save the learner, and drop what is older than the checkpoint before it."""
        before, self.unsaved, self._tried = self.saved, "", self.learner.batches
        try:
            self.history.save(self.learner)
            self.saved = self.learner.batches
            self.journal.trim(needed=before + 1)
        except OSError as error:
            self.unsaved = str(error)

    def roll_back(self, batches: int) -> None:
        """Go back to a checkpoint: all that was learned and accepted after it is dropped.

        The keys of dropped batches are forgotten, so that these can be sent again.

        Args:
            batches: How many batches the learner in the checkpoint has learned.

        Raises:
            Refused: There is no such checkpoint, it is damaged, or the files cannot be changed.
        """
        with self._accepting:
            self._check_open()
            self._queue.join()
            try:
                saved = history.find_whole(self.folder, batches)
            except (ConfigError, CheckpointError) as error:  # nothing has changed
                raise Refused(404, str(error)) from error
            try:
                history.roll_back(self.folder, saved)
                self._score.clear()
                self.journal.close()
                self._open(_none)
            except (OcarError, OSError) as error:
                self.failure = f"A rollback failed: {error} Start the service again."
                raise Refused(503, self.failure) from error
            self.failure = self.unsaved = ""

    def forget(self, x: Given = None, *, label: int | None = None) -> int:
        """Remove samples, or a class, from the memory and from all files of the folder.

        What was learned from them stays: weights, curvature, running mean and variance. Older
        checkpoints hold the samples, so they are removed: nothing is left to roll back to.

        Args:
            x: Samples, ``(n, ...)``, see :meth:`ocar.Learner.forget`.
            label: A class.

        Returns:
            How many samples of the memory were removed.

        Raises:
            InputError: Nothing like this can be found; nothing has changed.
            Refused: The files could not be changed. Ask again.
        """
        with self._accepting:
            self._check_open()
            self._queue.join()
            if self.failure:
                raise Refused(503, f"Learning has stopped: {self.failure}")
            removed = self.learner.forget(x, label=label)
            self._save()
            try:
                if self.unsaved:
                    raise OSError(errno.EIO, self.unsaved)
                self.journal.clear()
                self.history.keep_newest()
            except OSError as error:
                raise Refused(
                    503, f"Files still hold what is to be forgotten: {error.strerror}. Ask again."
                ) from error
            return removed

    def checkpoints(self) -> list[int]:
        """Batches in each checkpoint that there is to roll back to, in order."""
        return sorted({saved.batches for saved in history.find(self.folder)})

    def _check_open(self) -> None:
        if self._closed:
            raise Refused(503, "The service has ended.")

    def flush(self) -> None:
        """Wait until all that was accepted is learned."""
        self._queue.join()

    def status(self) -> dict[str, Any]:
        """How the service is."""
        return {
            "failure": self.failure,
            "unsaved": self.unsaved,
            "batches": self.learner.batches,
            "accepted": self.journal.last,
            "waiting": self._queue.qsize(),
            "most_waiting": self._queue.maxsize,
            "saved": self.saved,
            "classes": list(self.learner.classes),
            "guard": asdict(self.learner.guarded),
        }

    def close(self, *, within: float = math.inf) -> None:
        """Learn what was accepted, save, and release the folder.

        Args:
            within: Seconds after which no other batch is begun. The next start learns the rest,
                which is in the journal.

        Raises:
            OSError: The learner cannot be saved. The next start learns what the journal holds.
        """
        with self._accepting:
            if self._closed:
                return
            self._closed, self._until = True, time.monotonic() + within
        self._queue.put(None)
        self._thread.join()
        with self._held:
            if not self.failure and self.learner.batches > self.saved:
                self._save()
                if self.unsaved:
                    raise OSError(errno.EIO, self.unsaved)


def _none() -> Learner:
    raise DataError("The checkpoint to roll back to is gone.")

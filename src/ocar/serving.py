"""Predictions from other threads, without waiting for the learning.

After a batch the learner copies its weights into a spare model, which then becomes
the one that answers. A copy in use is never written to: who asks is counted, and
the next weights go into a copy that nobody reads.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ocar.config import require
from ocar.inputs import Item, check_samples
from ocar.learner import Learner


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """What one model said; logits, classes and batches belong together."""

    logits: Tensor
    """Shape ``(n, len(classes))``, or the outputs of a regression, ``(n, outputs)``."""

    classes: tuple[int, ...]
    """The label that each column stands for; empty in regression."""

    batches: int
    """Stream batches that the model had learned."""


class _Copy:
    """A model that answers, or will.

    On a GPU reading and writing are only begun by the host, so each leaves an event behind that
    the other waits for.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.tensors = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        self.classes: tuple[int, ...] = ()
        self.batches = 0
        self.item: Item | None = None
        self.readers = 0
        self.retired = False  # whether the head has grown since
        self._device = device
        self._written = torch.cuda.Event() if device.type == "cuda" else None
        self._read: list[torch.cuda.Event] = []

    def write(self, weights: Mapping[str, Tensor]) -> None:
        """Take over weights, once those who have asked have their answers."""
        for event in self._read:
            event.wait(torch.cuda.current_stream(self._device))
        self._read.clear()
        torch._foreach_copy_(list(self.tensors.values()), [weights[n] for n in self.tensors])
        if self._written is not None:
            self._written.record(torch.cuda.current_stream(self._device))

    def begin_reading(self) -> None:
        """Wait, on the current stream, for the weights."""
        if self._written is not None:
            self._written.wait(torch.cuda.current_stream(self._device))

    def end_reading(self) -> None:
        """All that reads the weights has been begun."""
        if self._written is not None:
            done = torch.cuda.Event()
            done.record(torch.cuda.current_stream(self._device))
            self._read = [event for event in self._read if not event.query()] + [done]

    def finish(self) -> None:
        """Wait, on the host, for all who read: the memory is about to be somebody else's."""
        for event in self._read:
            event.synchronize()


class Serving:
    """Answers questions from any number of threads while a learner learns.

    Every answer is that of the learner after some batch, and says after which; it is never one of
    a model that is half way through a step. Nobody waits: not the questions for the batch at hand,
    as in :meth:`Learner.predict`, nor the learning for the questions. It costs one copy of the
    weights after a batch, and the memory of two models and one more for each thread that asks.

    On a GPU give each thread that asks a stream of its own (``with torch.cuda.stream(...)``), or
    its work queues behind what the learner has begun.

    A method that does not predict with the weights of the model alone (SCR, GDumb) is asked
    itself: answers are as consistent, and wait for the batch at hand.

    Args:
        learner: The learner. It publishes as long as this object is there.
        every: Stream batches after which the weights are copied; questions in between get the
            last that were.

    Raises:
        ConfigError: ``every`` is less than 1.
    """

    def __init__(self, learner: Learner, *, every: int = 1) -> None:
        require("every", every, every >= 1, "at least 1")
        self.learner = learner
        self.every = every
        self._lock = threading.Lock()
        self._copies: list[_Copy] = []
        self._current: _Copy | None = None
        self._shapes: dict[str, torch.Size] = {}
        with learner.lock:
            learner._servings.add(self)
            self.publish()

    def __repr__(self) -> str:
        return f"Serving({self.learner!r}, every={self.every})"

    @torch.no_grad()
    def predict(self, x: Tensor, *, chunk: int = 1024) -> Answer:
        """As :meth:`Learner.predict`, by the model that was published last.

        Args:
            x: Raw samples, ``(n, ...)``.
            chunk: Samples that go through the model at once.

        Raises:
            InputError: The samples are not such as were learned.
        """
        learner = self.learner
        if self._current is None:
            with learner.lock:
                logits = learner.predict(x, chunk=chunk)
                return Answer(logits=logits, classes=learner.classes, batches=learner.batches)
        with self._reading() as own:
            check_samples(x, like=own.item)
            parts = [own.model(learner._prepare(part)) for part in x.split(chunk)]
            outputs = parts[0] if len(parts) == 1 else torch.cat(parts)
            if learner._head is not None:
                outputs = outputs[:, : len(own.classes)]
            return Answer(logits=outputs, classes=own.classes, batches=own.batches)

    def learned(self) -> None:
        """Publish if it is time to; the learner calls this after a batch."""
        behind = 0 if self._current is None else self.learner.batches - self._current.batches
        if behind >= self.every:
            self.publish()

    @torch.no_grad()
    def publish(self) -> None:
        """Let the learner as it is now answer, whatever ``every`` says."""
        with self.learner.lock:
            weights = self.learner._weights()
            if weights is None:
                return
            self._retire(weights)
            spare = self._spare()
            spare.write(weights)
            spare.classes, spare.batches = self.learner.classes, self.learner.batches
            spare.item = self.learner._item
            with self._lock:
                self._current = spare

    def _retire(self, weights: Mapping[str, Tensor]) -> None:
        """Give up all copies if the head has grown; those in use serve to their end."""
        shapes = {name: tensor.shape for name, tensor in weights.items()}
        if shapes == self._shapes:
            return
        self._shapes = shapes
        with self._lock:
            retired, self._copies = self._copies, []
            for own in retired:
                own.retired = True
        for own in retired:
            own.finish()

    def _spare(self) -> _Copy:
        """A copy that nobody reads, nor can begin to."""
        with self._lock:
            for own in self._copies:
                if own.readers == 0 and own is not self._current:
                    return own
            self._copies.append(_Copy(self.learner.model, self.learner.device))
            return self._copies[-1]

    @contextmanager
    def _reading(self) -> Iterator[_Copy]:
        """The current copy, which stays as it is inside."""
        with self._lock:
            own = self._current
            assert own is not None
            own.readers += 1
        try:
            own.begin_reading()
            yield own
        finally:
            with self._lock:
                own.end_reading()
                own.readers -= 1
                retired = own.retired
            if retired:
                own.finish()

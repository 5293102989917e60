"""Predictions from other threads that do not wait for the learning.

After a batch the learner copies its weights into a spare model, which then answers. A copy in use
is never written to: readers are counted, and the next weights go into a copy that nobody reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import torch
from torch import Tensor

from ocar import accel
from ocar.config import require
from ocar.inputs import Intake
from ocar.items import Items, check_samples
from ocar.learner import Learner
from ocar.methods.context import mean_prediction
from ocar.models.check import copy_model
from ocar.prediction import require_classes
from ocar.standardize import InputScale, RunningScale
from ocar.structure import Given, Inputs, as_inputs, call, call_each, named_tensors
from ocar.synchronized import Lock, outside_inference_mode


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """Predictions of one model, with its classes and its age."""

    logits: Tensor  #: Shape ``(n, len(classes))``, or outputs of a regression, ``(n, outputs)``.
    classes: tuple[int, ...]  #: The label of each column; empty in regression.
    batches: int  #: Stream batches that the model had learned.

    @property
    def probabilities(self) -> Tensor:
        """The softmax of the logits, as :meth:`Learner.predict_proba`; not in regression."""
        require_classes(bool(self.classes) or not self.logits.shape[1])
        return self.logits.softmax(dim=1)


class _Copy:
    """A model that answers, or will; two if slow weights answer with it."""

    def __init__(self, learner: Learner, models: int) -> None:
        self.models = [
            copy_model(learner.model).eval().requires_grad_(False) for _ in range(models)
        ]
        self.mirrors = learner.mirrors
        self.inputs, self.targets = InputScale(), RunningScale()
        self.classes: tuple[int, ...] = ()
        self.batches = 0
        self.item: Items | None = None
        self.readers = 0
        self.retired = False  # whether the head has grown since
        self.fence = accel.Fence(learner.device)

    def write(self, weights: Sequence[Mapping[str, Tensor]], intake: Intake) -> None:
        """Take over weights and the scale of the inputs, after all reads that were started."""
        self.fence.before_write()
        for model, values in zip(self.models, weights, strict=True):
            own = named_tensors(model)
            torch._foreach_copy_(list(own.values()), [values[name] for name in own])
        self.inputs.copy_(intake.inputs)
        self.targets.copy_(intake.targets)
        self.fence.after_write()

    def __call__(self, x: Inputs) -> Tensor:
        """Outputs of each model, ``(models, n, outputs)``."""
        return call_each([partial(call, model) for model in self.models], x, mirror=self.mirrors)


class Serving:
    """Answers any number of threads while a learner learns.

    Every answer is that of the learner after some batch, and says after which; never that of a
    model in the middle of a step. Questions do not wait for the batch in progress, as in
    :meth:`Learner.predict`, nor does learning wait for questions. It costs one copy of the weights
    after a batch, and the memory of two models and one more for each thread that asks.

    On a GPU give each thread that asks a CUDA stream of its own (``with
    ocar.accel.own_stream():``), or its work queues behind the learner's.

    A method that predicts with more than the weights of the model (SCR, GDumb) is asked itself:
    answers are as consistent, and wait for the batch in progress.

    Args:
        learner: The learner. It publishes as long as this object exists.
        every: Stream batches after which the weights are copied, at least 1.
    """

    @outside_inference_mode()
    def __init__(self, learner: Learner, *, every: int = 1) -> None:
        require("every", every, every >= 1, "at least 1")
        self.learner = learner
        self.every = every
        self._lock = Lock()
        self._copies: list[_Copy] = []
        self._current: _Copy | None = None
        self._shapes: dict[str, torch.Size] = {}
        with learner.lock:
            learner.servings.add(self)
            self.publish()

    def __reduce__(self) -> NoReturn:
        raise TypeError("A Serving belongs to one learner: copy the learner, and serve the copy.")

    def __repr__(self) -> str:
        return f"Serving({self.learner!r}, every={self.every})"

    @torch.no_grad()
    def predict(self, x: Given, *, chunk: int = 1024) -> Answer:
        """As :meth:`Learner.predict`, by the model that was published last."""
        learner = self.learner
        if self._current is None:
            with learner.lock:
                logits = learner.predict(x, chunk=chunk)
                return Answer(logits=logits, classes=learner.classes, batches=learner.batches)
        with self._reading() as own:
            samples = as_inputs(x)
            check_samples(samples, like=own.item)
            prepare = learner.intake.prepare
            parts = [own(prepare(piece, own.inputs)) for piece in samples.split(chunk)]
            outputs = own.targets.invert(torch.cat(parts, dim=1))
            classes = None if learner.head is None else len(own.classes)
            logits = mean_prediction(outputs, classes=classes)
            return Answer(logits=logits, classes=own.classes, batches=own.batches)

    def learned(self) -> None:
        """Publish if it is due; the learner calls this after a batch."""
        behind = 0 if self._current is None else self.learner.batches - self._current.batches
        if behind >= self.every:
            self.publish()

    @outside_inference_mode()
    @torch.no_grad()
    def publish(self) -> None:
        """Let the present learner answer, whatever ``every`` says."""
        with self.learner.lock:
            weights = self.learner.weights()
            if weights is None:
                return
            self._retire(weights)
            spare = self._spare(len(weights))
            spare.write(weights, self.learner.intake)
            spare.classes, spare.batches = self.learner.classes, self.learner.batches
            spare.item = self.learner.intake.item
            with self._lock:
                self._current = spare

    def _retire(self, weights: Sequence[Mapping[str, Tensor]]) -> None:
        """Give up all copies if the head has grown; those in use serve to their end."""
        shapes = {name: tensor.shape for name, tensor in weights[0].items()}
        if shapes == self._shapes:
            return
        self._shapes = shapes
        with self._lock:
            retired, self._copies = self._copies, []
            for own in retired:
                own.retired = True
        for own in retired:
            own.fence.finish()

    def _spare(self, models: int) -> _Copy:
        """A copy that nobody reads, nor can begin to."""
        with self._lock:
            for own in self._copies:
                if own.readers == 0 and own is not self._current:
                    return own
            self._copies.append(_Copy(self.learner, models))
            return self._copies[-1]

    @contextmanager
    def _reading(self) -> Iterator[_Copy]:
        """The current copy, which does not change inside."""
        with self._lock:
            own = self._current
            assert own is not None
            own.readers += 1
        try:
            own.fence.before_read()
            yield own
        finally:
            with self._lock:
                own.fence.after_read()
                own.readers -= 1
                retired = own.retired
            if retired:
                own.fence.finish()

"""The part of a learner that predicts: with the weights that learn, the slow ones, or both."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar, get_args

import torch
from torch import Tensor

from ocar import accel
from ocar.closed_form import ClosedFormHead
from ocar.config import require_one_of
from ocar.errors import InputError, ModelError
from ocar.export import Frozen, write_model
from ocar.memory import Memory
from ocar.methods.context import Context
from ocar.methods.objective import Objective
from ocar.methods.settings import Prediction
from ocar.saved import Saved
from ocar.structure import Given, Inputs, Mirror, call_each, call_with, named_tensors, parts_of
from ocar.synchronized import synchronized
from ocar.version import __version__

T = TypeVar("T")


class Predicting(Saved):
    """The part of a learner that predicts; the learner has the attributes."""

    memory: Memory
    objective: Objective
    closed_form: ClosedFormHead | None

    @synchronized
    @torch.no_grad()
    def predict(
        self, x: Given, *, chunk: int = 1024, prediction: Prediction | None = None
    ) -> Tensor:
        """Logits of each class seen, or the outputs of a regression; nothing changes.

        Args:
            x: Raw samples, ``(n, ...)``, as in :meth:`learn`.
            chunk: Samples that go through the model at once.
            prediction: Which weights predict, if not those of the settings: ``"plain"``,
                ``"slow"`` or ``"both"``.

        Returns:
            Shape ``(n, len(classes))``, column i for label ``classes[i]``.

        Raises:
            InputError: The samples are unlike those that were learned, or the learner has no slow
                weights to predict with.
            ConfigError: There is no such ``prediction``.
        """
        samples = self.intake.check(x)
        require_one_of("prediction", prediction or "plain", get_args(Prediction))
        if prediction not in (None, "plain") and not self.settings.has_slow:
            raise InputError(
                f"Invalid prediction={prediction!r}. Must be 'plain': the learner has no slow "
                "weights. Make it with prediction='both', 'slow' or distillation=..."
            )
        parts = [self._answer(part, prediction) for part in samples.split(chunk)]
        outputs = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return self.context.answer(outputs)

    def predict_proba(self, x: Given, *, chunk: int = 1024) -> Tensor:
        """Probability of each class seen, the softmax of :meth:`predict`; nothing changes.

        Args:
            x: Raw samples, ``(n, ...)``, as in :meth:`learn`.
            chunk: Samples that go through the model at once.

        Returns:
            Shape ``(n, len(classes))``, column i for label ``classes[i]``; each row adds up to 1.

        Raises:
            InputError: The samples are unlike those that were learned, or this is a regression.
        """
        require_classes(self.head is not None)
        return self.predict(x, chunk=chunk).softmax(dim=1)

    def predict_repeatedly(self, x: Given) -> Repeated:
        """For predicting the same raw samples ``(n, ...)`` after every batch, faster.

        Returns:
            Called as ``f(n, use)`` it applies ``use`` to :meth:`predict` for the first n samples.
            On a GPU the work is only started, and goes on while the next batch is learned: call
            ``f.wait()`` before reading the result, and let ``use`` wait for nothing. There
            BatchNorm is folded into the convolutions of a ResNet, the same up to rounding.
        """
        samples = self.intake.check(x)

        def make() -> accel.RepeatedPrediction:
            # What a running mean and variance standardise is another input after every batch.
            changes = self.intake.standardizes(samples)
            return accel.repeated_prediction(
                samples,
                normalize=self.intake.features if changes else self.intake.prepare,
                predict=self._answer_stored if changes else self._evaluate,
                model=self.model,
                weights=None if changes else self.weights(),
                mirror=self.mirrors,
                record=self._steps.graph.enabled,
            )

        return Repeated(make, self.context, renew=self._renew_head)

    def _answer(self, x: Inputs, prediction: Prediction | None = None) -> Tensor:
        """Outputs of each model for raw samples, in the units of the targets."""
        return self._answer_stored(self.intake.features(x), prediction)

    def _answer_stored(self, x: Inputs, prediction: Prediction | None = None) -> Tensor:
        """The same for samples as the memory stores them."""
        return self.intake.targets.invert(self._evaluate(self.intake.normalize(x), prediction))

    @synchronized
    def _evaluate(self, x: Inputs, prediction: Prediction | None = None) -> Tensor:
        """Outputs for inputs of the model in eval mode, ``(models, n, outputs)``."""
        self._renew_head(prediction)
        with self.context.evaluating(), self.draws(keep=False):
            if self.objective.predicts:
                return self.objective.predict(x)[None]
            kinds = _models(prediction or self.settings.prediction)
            models = [self._model(is_slow=is_slow) for is_slow in kinds]
            return call_each(models, x, mirror=self.mirrors)

    def _model(self, *, is_slow: bool) -> Callable[[Inputs], Tensor]:
        """The model with the weights that learn or the slow ones."""
        if is_slow:
            return partial(call_with, self.model, self.slow.weights())
        if self.closed_form is None:
            return self.context.forward
        return partial(call_with, self.model, named_tensors(self.model) | self.closed_form.values)

    @synchronized
    @torch.no_grad()
    def _renew_head(self, prediction: Prediction | None = None) -> None:
        """Solve for the closed-form head, where it predicts and something has changed."""
        predicts = False in _models(prediction or self.settings.prediction)
        if self.closed_form is not None and predicts:
            with self.context.evaluating(), self.draws(keep=False):
                self.closed_form.renew(self.batches)

    @property
    def mirrors(self) -> Mirror:
        """Which models see mirror images where both predict."""
        return self.settings.mirrors if self.latent is None else "no"  # features have none

    @synchronized
    def export(self, path: str | os.PathLike[str], *, x: Given = None) -> float:
        """Write what predicts now to one file, which needs PyTorch or an ONNX runtime alone.

        Normalisation, standardisation and a frozen backbone are inside: the file takes raw samples
        ``(n, ...)`` and returns what :meth:`predict` returns. The labels of its columns are in the
        file, as JSON under the name ``ocar.json``: ``extra_files`` of ``torch.export.load``,
        ``metadata_props`` of ONNX.

        Args:
            path: ``.pt2`` for ``torch.export``, ``.onnx`` for ONNX.
            x: At least two raw samples to trace the model with and to compare the file on; by
                default samples of the memory.

        Returns:
            The largest difference between the file's predictions and :meth:`predict`.

        Raises:
            ModelError: The model cannot be traced, or more than its weights predicts (SCR, GDumb).
            InputError: There are no samples to trace it with.
            NumericalError: The file would predict something else; it was not written.
        """
        if self.objective.predicts:
            raise ModelError("This method predicts with more than a model, and cannot be exported.")
        samples = self._examples() if x is None else self.intake.check(x)
        if len(samples) < 2:
            raise InputError(f"Give at least 2 samples to trace with; given {len(samples)}.")
        own = self.on_host()
        frozen = Frozen(
            own.intake,
            own.model,
            own.weights() or (),
            names=list(parts_of(samples)),
            classes=None if self.head is None else len(self.classes),
            latent=own.latent,
            mirror=self.mirrors,
        )
        about = {"classes": self.classes, "batches": self.batches, "ocar": __version__}
        return write_model(
            Path(path), frozen, samples.to("cpu"), predict=self.predict, values=about
        )

    def _examples(self) -> Inputs:
        """A few raw samples of the memory."""
        if self.latent is not None or len(self.memory) < 2:
            raise InputError(
                "The memory holds no raw samples to trace the model with. Give some: x=..."
            )
        return self.memory.gather(self.memory.slots[:4]).x

    def weights(self) -> list[dict[str, Tensor]] | None:
        """The parameters and buffers by name, of each model that predicts.

        There are two if the slow weights predict too; None if more than weights predicts.
        """
        if self.objective.predicts:
            return None
        self._renew_head()
        fast = named_tensors(self.model)
        solved = {} if self.closed_form is None else self.closed_form.values
        kinds = _models(self.settings.prediction)
        return [fast | (self.slow.values if is_slow else solved) for is_slow in kinds]


def _models(prediction: Prediction) -> list[bool]:
    """For each model that predicts whether it has the slow weights."""
    return {"plain": [False], "both": [False, True]}.get(prediction, [True])


class Repeated:
    """What :meth:`Learner.predict_repeatedly` returns.

    Args:
        make: Makes the prediction; it is made again when the head has grown.
        context: The parts of the learner.
        renew: Brings the weights that predict up to date.
    """

    def __init__(
        self,
        make: Callable[[], accel.RepeatedPrediction],
        context: Context,
        *,
        renew: Callable[[], None],
    ) -> None:
        self._make = make
        self._context = context
        self._renew = renew
        self._prediction: accel.RepeatedPrediction | None = None
        self._capacity = 0

    def __call__(self, n: int, use: Callable[[Tensor], T]) -> T:
        """Apply ``use`` to the predictions for the first n samples."""
        head = self._context.head
        capacity = 0 if head is None else head.capacity
        if self._prediction is None or capacity != self._capacity:
            if self._prediction is not None:
                self._prediction.finish()
                self._prediction = None
                accel.release_memory(self._context.device)
            self._prediction = self._make()  # a head that has grown has other tensors
            self._capacity = capacity
        self._renew()
        return self._prediction(n, lambda outputs: use(self._context.answer(outputs)))

    def wait(self) -> None:
        """Wait until the predictions that were started can be read."""
        if self._prediction is not None:
            self._prediction.wait()


def require_classes(classifies: bool) -> None:
    """Raise unless there are classes to have probabilities."""
    if not classifies:
        raise InputError(
            "A regression has no probabilities of classes. Use predict(x), or a learner with "
            "likelihood='categorical'."
        )

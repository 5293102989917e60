"""GDumb: a memory, and a model trained from scratch on it for each prediction.

Prabhu, Torr, Dokania, "GDumb: A Simple Approach that Questions Our Progress in
Continual Learning" (ECCV 2020). The memory stores an equal number of samples of
each class. The predicting model has the initial weights after

    E epochs of SGD on the memory, with the rate of epoch e  α (1 + cos(π e / E)) / 2.

The settings follow the code behind the published tables: batches of 128, 100 epochs,
α = 0.1, no momentum, the augmentation of the benchmark, the same initial weights each
time, and the class-balanced memory of the other methods. The paper fills its memory
greedily, and trains with momentum, warm restarts and cutmix; these are not
implemented.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ocar import accel
from ocar.config import require, require_range
from ocar.errors import NumericalError
from ocar.methods.context import Context
from ocar.methods.objective import ClassObjective, Forward, Objective, Outcome, Step, mean_loss
from ocar.methods.settings import LearnerSettings
from ocar.methods.transform import TransformSettings
from ocar.models.check import copy_model
from ocar.models.head import set_data_
from ocar.models.modes import train_mode_
from ocar.rng import make_generator
from ocar.state import not_finite
from ocar.structure import Inputs, apply_whole, call, call_with, named_tensors


@dataclass(frozen=True, kw_only=True)
class GDumbSettings(LearnerSettings):
    """Settings of GDumb.

    It does not replay: ``passes``, ``replay_batch``, ``replay`` and ``partial_replay``, which a
    benchmark gives to every method, have no effect.
    """

    trains_when_asked = True
    no_regression = "GDumb balances classes"
    no_distillation = "GDumb takes no step on the stream"
    one_device = "GDumb trains when it is asked for predictions"

    lr: float = 0.1
    """Learning rate α."""

    epochs: int = 100
    """E: passes over the memory for a prediction; the learning rate follows a cosine."""

    train_batch: int = 128
    """Samples a gradient step; a smaller memory makes one batch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range(self, "at least 1", "epochs", "train_batch")
        fits = self.prediction == "plain"
        require("prediction", self.prediction, fits, "'plain': GDumb has no weights to average")

    def refuses(self, transform: TransformSettings | None) -> str | None:
        """Every transform: there is no step on the stream to transform."""
        if transform is None:
            return None
        return (
            "GDumb goes with no gradient transform: it takes no step on the stream, but trains "
            "from scratch for a prediction. Use a method that replays, such as er."
        )

    def make_objective(self, context: Context) -> Objective:
        """Training from scratch."""
        return FromScratch(self, context)


class FromScratch(ClassObjective[GDumbSettings]):
    """Trains a copy of the model on the memory when a prediction is requested.

    The model keeps its initial weights; the copy is used until the memory changes. Initial weights,
    memory and seed determine the training, so a checkpoint does not contain the copy.
    """

    learns = False
    predicts = True

    def __init__(self, settings: GDumbSettings, context: Context) -> None:
        super().__init__(settings, context)
        self._copy = copy_model(context.model)
        self._augmenting = make_generator(settings.seed, "gdumb/augment", context.device)
        self._training = accel.Graph(
            self._train_on,
            device=context.device,
            generators=[self._augmenting],
            enabled=context.record,
        )
        self._trained_at: int | None = None  # samples that the memory had seen at the training

    def __call__(self, forward: Forward, step: Step) -> Outcome:
        """Never called: it takes no steps on the stream."""
        raise NotImplementedError

    def predict(self, x: Inputs) -> Tensor:
        """Outputs of the trained copy."""
        if self._trained_at != self.context.memory.seen:
            with torch.inference_mode(False), torch.enable_grad():
                self._train()
            self._trained_at = self.context.memory.seen
        # Through the model itself, so that hooks on its layers see the prediction.
        return call_with(self.context.model, named_tensors(self._copy), x)

    def release(self) -> None:
        """Give back the memory of recorded training steps."""
        self._training.release()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """The next prediction trains."""
        self._trained_at = None

    def _train(self) -> None:
        """Train the copy, from the initial weights, on all of the memory."""
        self._reset()
        train_mode_(self._copy)
        settings = self.settings
        order = make_generator(settings.seed, "gdumb/order")
        try:
            for epoch in range(settings.epochs):
                value = cosine(settings.lr, epoch, settings.epochs)
                rate = torch.tensor(value, dtype=self.context.dtype)
                for slots in self._shuffled(order):
                    self._training(slots, rate, self.head.active)
        finally:  # the next training starts with the same numbers
            self._augmenting.manual_seed(self._augmenting.initial_seed())
        if not_finite(self._copy.state_dict()):
            raise NumericalError(
                f"GDumb has diverged on its memory of {len(self.context.memory)} samples with "
                f"lr={settings.lr}. Try a smaller learning rate."
            )

    def _reset(self) -> None:
        """Give the copy the initial weights, in place unless the head has grown."""
        copied = named_tensors(self._copy)
        for name, initial in named_tensors(self.context.model).items():
            mine = copied[name]
            if mine.shape == initial.shape:
                mine.data.copy_(initial.detach())
            else:
                set_data_(mine, initial.detach().clone())
                self._training.forget()

    def _shuffled(self, order: torch.Generator) -> Iterator[Tensor]:
        """The slots of the memory in random batches; a short one is dropped unless it is alone."""
        slots, size = self.context.memory.slots, self.settings.train_batch
        slots = slots[torch.randperm(len(slots), generator=order)]
        whole = len(slots) // size * size
        return iter(slots[: whole or len(slots)].split(size) if len(slots) else ())

    def _train_on(self, slots: Tensor, rate: Tensor, active: Tensor) -> Tensor:
        """One step of SGD on slots of the memory, ``(n,)``; on a GPU it is recorded.

        Returns:
            The loss.
        """
        batch = self.context.memory.gather(slots, check=False)
        augment = self.settings.augment
        x = batch.x if augment is None else apply_whole(augment, batch.x, self._augmenting)
        loss = mean_loss(call(self._copy, self.context.normalize(x)), batch.y, active)
        weights = [p for p in self._copy.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(loss, weights, allow_unused=True)
        pairs = [(p, g) for p, g in zip(weights, gradients, strict=True) if g is not None]
        moved, steps = [p.detach() for p, _ in pairs], [g for _, g in pairs]
        torch._foreach_mul_(steps, rate)
        torch._foreach_sub_(moved, steps)
        return loss.detach()


def cosine(rate: float, epoch: int, epochs: int) -> float:
    """The learning rate of an epoch, counted from 0: from ``rate`` down towards 0."""
    return rate * (1 + math.cos(math.pi * epoch / epochs)) / 2

"""GDumb: a memory, and a model trained from scratch on it when a prediction is wanted.

Prabhu, Torr, Dokania, "GDumb: A Simple Approach that Questions Our Progress in
Continual Learning" (ECCV 2020). Of the stream only a sample is kept, equally many
of each class. A prediction is that of the initial weights after

    E epochs of SGD on the memory, with the rate of epoch e  α (1 + cos(π e / E)) / 2.

The settings are those of the code with which the published tables were made:
batches of 128, 100 epochs, α = 0.1, no momentum, the augmentation of the benchmark,
the same initial weights each time, and the reservoir within each class that all
methods have. The paper fills its memory greedily, and trains with momentum, warm
restarts and cutmix; that is not offered here.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ocar.accel.graph import Captured
from ocar.config import require
from ocar.errors import NumericalError
from ocar.guard import Guard
from ocar.learner import Learner, Report, train_mode_
from ocar.methods.context import Context
from ocar.methods.objective import CrossEntropy, Objective
from ocar.methods.settings import LearnerSettings
from ocar.methods.transform import TransformSettings
from ocar.models.head import mask_logits
from ocar.rng import make_generator
from ocar.state import all_finite
from ocar.synchronized import alone


@dataclass(frozen=True, kw_only=True)
class GDumbSettings(LearnerSettings):
    """Settings of GDumb.

    It does not replay, so ``passes``, ``replay_batch``, ``replay`` and ``partial_replay``, which
    a benchmark gives to every method, say nothing here.
    """

    trains_when_asked = True

    lr: float = 0.1
    """Learning rate α."""

    epochs: int = 100
    """Passes over the memory for a prediction (E); the learning rate falls along a cosine."""

    train_batch: int = 128
    """Samples a gradient step; a smaller memory is one batch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("epochs", self.epochs, self.epochs >= 1, "at least 1")
        require("train_batch", self.train_batch, self.train_batch >= 1, "at least 1")
        fits = self.likelihood == "categorical"
        require("likelihood", self.likelihood, fits, "'categorical': GDumb balances classes")
        fits = self.prediction == "plain"
        require("prediction", self.prediction, fits, "'plain': GDumb has no weights to average")

    def refuses(self, transform: TransformSettings | None) -> str | None:
        """Every transform: there is no step on the stream to transform."""
        if transform is None:
            return None
        return (
            "GDumb goes with no gradient transform: it takes no step on the stream, but trains "
            "from scratch when it is asked. Use a method that replays, such as er."
        )

    def make_objective(self, context: Context) -> Objective:
        """Cross-entropy."""
        return CrossEntropy()


class GDumb(Learner):
    """Remembers, and trains from scratch on what it remembers when a prediction is wanted.

    ``model`` keeps its initial weights; a copy is trained, and used until more is remembered. The
    training is decided by initial weights, memory and seed, so a checkpoint need not hold it. It
    takes a while: ask for many predictions at once.

    Args:
        model: Any module; its device is where everything happens.
        settings: The settings.
        transform: None: GDumb refuses any.
        capture: On a GPU, capture the steps of the training as CUDA graphs.
        guard: When not to remember a batch; None for never.

    Raises:
        ConfigError: A transform is given.
    """

    settings: GDumbSettings

    def __init__(
        self,
        model: nn.Module,
        settings: GDumbSettings,
        *,
        transform: TransformSettings | None = None,
        capture: bool = True,
        guard: Guard | None = Guard(),  # noqa: B008 (it is frozen)
    ) -> None:
        super().__init__(model, settings, transform=transform, capture=False, guard=guard)
        self._copy = copy.deepcopy(model)
        self._augmenting = make_generator(settings.seed, "gdumb/augment", self.device)
        self._training = Captured(
            self._train_on,
            device=self.device,
            generators=[self._augmenting],
            enabled=capture,
        )
        self._copied: int | None = None  # samples that the memory had seen when it was trained

    @alone
    def learn(self, x: Tensor, y: Tensor) -> Report:
        """Remember a batch.

        Args:
            x: Raw samples, ``(n, ...)``, uint8 or float, on any device.
            y: Labels, ``(n,)`` of integers.

        Returns:
            A report with loss 0: nothing is minimised here.

        Raises:
            InputError: The batch cannot be learned from. Nothing has changed.
        """
        self.remember(x, y)
        self.batches += 1
        return Report(loss=torch.zeros((), device=self.device), classes=self._known(), values={})

    @alone
    def load_state(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` gave, on a learner with the same settings.

        Raises:
            CheckpointError: The state is of another model or other settings.
        """
        super().load_state(tensors, values)
        self._copied = None

    @alone
    def release(self) -> None:
        """Give back memory of a GPU that only helps to train faster; it is asked for again."""
        self._training.release()
        super().release()

    def _outputs_of(self, x: Tensor) -> Tensor:
        if self._copied != self.memory.seen:
            with torch.inference_mode(False), torch.enable_grad():
                self._train()
            self._copied = self.memory.seen
        # Through the model itself, so that what watches its layers sees the prediction.
        trained = {**dict(self._copy.named_parameters()), **dict(self._copy.named_buffers())}
        outputs: Tensor = torch.func.functional_call(self.model, trained, (x,))
        return outputs

    def _train(self) -> None:
        """Train the copy, from the initial weights, on all of the memory."""
        assert self._head is not None
        self._start_again()
        train_mode_(self._copy)
        order = make_generator(self.settings.seed, "gdumb/order")
        try:
            for epoch in range(self.settings.epochs):
                rate = cosine(self.settings.lr, epoch, self.settings.epochs)
                for slots in self._shuffled(order):
                    self._training(slots, torch.tensor(rate, dtype=self.dtype), self._head.active)
        finally:  # the next training begins as this one did
            self._augmenting.manual_seed(self._augmenting.initial_seed())
        if not all_finite(self._copy.state_dict()):
            raise NumericalError(
                f"GDumb has diverged on its memory of {len(self.memory)} samples with "
                f"lr={self.settings.lr}. Try a smaller learning rate."
            )

    def _start_again(self) -> None:
        """Give the copy the initial weights, in place unless the head has grown."""
        for mine, initial in zip(_tensors(self._copy), _tensors(self.model), strict=True):
            if mine.shape == initial.shape:
                mine.data.copy_(initial.detach())
            else:
                mine.data = initial.detach().clone()
                self._training.forget()

    def _shuffled(self, order: torch.Generator) -> Iterator[Tensor]:
        """The slots of the memory in batches; a short one is left out unless it is the only."""
        slots, size = self.memory.slots, self.settings.train_batch
        slots = slots[torch.randperm(len(slots), generator=order)]
        whole = len(slots) // size * size
        return iter(slots[: whole or len(slots)].split(size) if len(slots) else ())

    def _train_on(self, slots: Tensor, rate: Tensor, active: Tensor) -> Tensor:
        """A step of SGD; on a GPU this is what is captured as a graph.

        Args:
            slots: Of the memory, ``(n,)``.
            rate: The learning rate, a scalar.
            active: Which outputs stand for a class.

        Returns:
            The loss.
        """
        batch, augment = self.memory.gather(slots), self.settings.augment
        x = batch.x if augment is None else augment(batch.x, self._augmenting)
        outputs = self._copy(self._normalize(x))
        loss = functional.cross_entropy(mask_logits(outputs, active), batch.y)
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


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    return chain(model.parameters(), model.buffers())

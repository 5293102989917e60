"""What makes a learner again: its state, in a file or in a copy."""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from ocar import accel, state
from ocar.averaging import SlowWeights
from ocar.errors import CheckpointError
from ocar.guard import Guard
from ocar.inputs import Intake
from ocar.methods.context import Context
from ocar.methods.registry import describe_method
from ocar.methods.settings import LearnerSettings
from ocar.methods.transform import TransformSettings
from ocar.models.check import copy_model, hidden_buffers
from ocar.models.head import GrowingHead
from ocar.models.latent import LatentReplay
from ocar.optimizer import load_optimizer, save_optimizer
from ocar.steps import Steps
from ocar.synchronized import Lock, synchronized


class Listener(Protocol):
    """What follows a learner, such as :class:`ocar.Serving`."""

    def learned(self) -> None:
        """A batch has been learned."""

    def publish(self) -> None:
        """The learner has other weights than before."""


class Saved(ABC):
    """The part of a learner that saves, loads and copies it; the learner has the attributes."""

    lock: Lock
    servings: weakref.WeakSet[Listener]
    model: nn.Module
    latent: LatentReplay | None
    settings: LearnerSettings
    transform_settings: TransformSettings | None
    guard_settings: Guard | None
    ranks: accel.Ranks | None
    batches: int
    steps: int
    head: GrowingHead | None
    intake: Intake
    slow: SlowWeights
    context: Context
    draws: accel.OwnDraws
    _head_generator: torch.Generator
    _stateful: dict[str, Any]
    _steps: Steps

    @property
    @abstractmethod
    def classes(self) -> tuple[int, ...]:
        """The label of each column of the predictions, in order of appearance."""

    @abstractmethod
    def check(self) -> None:
        """Wait for all steps, and raise if one gave numbers that are not finite."""

    @synchronized
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all of the learner to one file: weights, memory, curvature, generators.

        The file appears whole or not at all. :func:`ocar.load` makes a learner of it that goes on
        exactly. It does not depend on the number of ranks: every rank calls this, the first writes,
        and the others wait for it.

        Raises:
            CheckpointError: A part has no name, so that the file could not be loaded.
            RankError: The weights of the ranks differ, or the first could not write the file.
        """
        tensors, values = self.state()
        if self.ranks is None:
            state.save_state(path, tensors, values)
            return
        self.ranks.require_same("weights", state.without_prefix("model", tensors).values())
        self.ranks.run_on_first(lambda: state.save_state(path, tensors, values))

    @synchronized
    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything that a restored learner needs: tensors by name, and plain values.

        Raises:
            NumericalError: A step since the last check gave numbers that are not finite.
            CheckpointError: A part has no name, so that nobody could make it again.
        """
        named = describe_method(self.settings, self.transform_settings, self.guard_settings)
        tensors, values = self._state()
        return tensors, {**named, **values}

    def generators(self) -> dict[str, torch.Generator]:
        """The generators that are no part of another part, by name."""
        layers = {f"model.{g.device.type}": g for g in self.draws.generators}
        return {"augment": self.intake.generator, "head": self._head_generator, **layers}

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Its state, whatever its parts are called."""
        self.check()
        tensors = {
            **state.with_prefix("model", self.model.state_dict()),
            **state.with_prefix("buffers", hidden_buffers(self.model)),
            **state.with_prefix("optimizer", save_optimizer(self._steps.optimizer)),
            **state.with_prefix("slow", self.slow.values),
            **state.with_prefix("standardize", self.intake.statistics()),
            **{f"generator.{n}": g.get_state() for n, g in self.generators().items()},
        }
        for prefix, part in self._stateful.items():
            tensors |= state.with_prefix(prefix, part.state_dict())
        values = {
            "classes": list(self.classes),
            "seen": [] if self.head is None else sorted(self.head.seen),
            "batches": self.batches,
            "steps": self.steps,
            **self.intake.state(),
            **({} if self.latent is None else {"backbone": self.latent.checksum()}),
        }
        return tensors, values

    @synchronized
    def load_state(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` gave; a ``CheckpointError`` if model or settings differ."""
        self._check_backbone(values.get("backbone"))
        weights = state.without_prefix("model", tensors)
        if self.head is not None:
            self.head.fit_checkpoint(self.model, weights, values["classes"], seen=values["seen"])
        state.check_names("model", weights, self.model.state_dict())
        if state.not_finite(weights):
            raise CheckpointError("The checkpoint holds weights that are NaN or Inf.")
        self.slow.load(state.without_prefix("slow", tensors))
        self.model.load_state_dict(weights)
        hidden = state.without_prefix("buffers", tensors)
        for name, buffer in hidden_buffers(self.model).items():  # a cache may have another shape
            if name in hidden and hidden[name].shape == buffer.shape:
                buffer.copy_(hidden[name])
        for prefix, part in self._stateful.items():
            part.load_state_dict(state.without_prefix(prefix, tensors))
        load_optimizer(self._steps.optimizer, state.without_prefix("optimizer", tensors))
        self._steps.graph.forget()
        for name, generator in self.generators().items():
            own = f"generator.{name}"
            if own in tensors or not name.startswith("model."):  # one of another device lacks it
                generator.set_state(tensors[own])
        self.batches, self.steps = int(values["batches"]), int(values["steps"])
        self.intake.load(values, state.without_prefix("standardize", tensors))
        for serving in self.servings:
            serving.publish()

    def _check_backbone(self, saved: str | None) -> None:
        """Raise if a checkpoint's features are of another backbone, by its checksum."""
        own = None if self.latent is None else self.latent.checksum()
        if own == saved:
            return
        if own is None:
            raise CheckpointError(
                "The checkpoint has features of a frozen backbone. Load it with the same model: "
                "ocar.LatentReplay(backbone, rest)."
            )
        if saved is None:
            raise CheckpointError(
                "The checkpoint has raw samples and no features. Load it with a model that has no "
                "frozen backbone."
            )
        raise CheckpointError(
            f"The checkpoint has features of another backbone: its checksum is {saved[:12]}, here "
            f"{own[:12]}. Load it with the same layers, weights and dtype."
        )

    @synchronized
    def _parts(self) -> tuple[Any, ...]:
        """Copies of what :func:`_make_again` needs."""
        tensors, values = self._state()
        own = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        method = self.settings, self.transform_settings, self.guard_settings
        model = copy_model(self.model)
        if self.latent is not None:
            model = LatentReplay(self.latent.backbone, model, dtype=self.latent.dtype)
        return model, *method, self.context.record, own, values

    def on_host(self) -> Self:
        """A copy whose model, with its frozen backbone, is on the CPU."""
        model, *others = self._parts()
        return _make_again(type(self), copy_model(model).cpu(), *others)

    def __deepcopy__(self, memo: object) -> Self:
        """A learner that goes on exactly, with a model of its own, in this process alone."""
        return _make_again(type(self), *self._parts())

    def __reduce__(self) -> tuple[Any, ...]:
        """The same by pickle."""
        for name, parameter in self.model.named_parameters():
            if parameter._backward_hooks:
                raise TypeError(
                    f"The learner cannot be pickled: {name!r} has a hook, which would be lost. "
                    "Remove it, or save the learner and load it with a model that has the hook."
                )
        return _make_again, (type(self), *self._parts())

    def __copy__(self) -> NoReturn:
        raise TypeError("A shallow copy would learn with the same model: use copy.deepcopy.")


S = TypeVar("S", bound=Saved)


def _make_again(
    kind: Callable[..., S],
    model: nn.Module,
    settings: LearnerSettings,
    transform: TransformSettings | None,
    guard: Guard | None,
    record: bool,
    tensors: Mapping[str, Tensor],
    values: Mapping[str, Any],
) -> S:
    learner = kind(model, settings, transform=transform, guard=guard, record=record)
    learner.load_state(tensors, values)
    return learner

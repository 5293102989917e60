"""The learner: an objective, a memory and a gradient transform, put together.

A learner takes one batch at a time and knows nothing of tasks. For each batch
it makes a few passes; each draws a replay batch, augments, and takes a step of
SGD on the joint batch with the transformed gradient. Then the batch is offered
to the memory. It can be asked for predictions at any moment.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ocar import state
from ocar.accel.backward import RecordedBackward
from ocar.accel.graph import Captured, release_memory
from ocar.accel.prediction import Repeated, RepeatedPrediction, SideBySidePrediction
from ocar.accel.streams import beside
from ocar.augment import scale_to_unit
from ocar.config import to_plain
from ocar.errors import CheckpointError, ConfigError, InputError, ModelError, NumericalError
from ocar.guard import Guard, GuardCounts, Verdict, make_guard
from ocar.inputs import Item, check_labels, check_length, check_samples, check_targets
from ocar.memory import MEMORIES
from ocar.methods.context import Context
from ocar.methods.objective import Step
from ocar.methods.settings import LearnerSettings
from ocar.methods.transform import Transform, TransformSettings
from ocar.models.head import GrowingHead
from ocar.models.resnet import lay_out_
from ocar.optimizer import fit_optimizer_, load_optimizer, save_optimizer
from ocar.rng import make_generator
from ocar.synchronized import alone

if TYPE_CHECKING:
    from ocar.serving import Serving


@dataclass(frozen=True, kw_only=True, eq=False)
class Report:
    """What one call of :meth:`Learner.learn` did."""

    loss: Tensor
    """Loss of the last pass before its step, a scalar on the model's device."""

    classes: int
    """Classes seen so far."""

    values: Mapping[str, float]
    """What the transform reports, such as ``tau`` and ``replay_weight``."""


class Learner:
    """Learns from a stream, one batch at a time.

    Use :func:`ocar.OCAR`, :func:`ocar.ER` or :func:`ocar.make_learner` to make one. It may be used
    from several threads; a call waits for the one at hand. See :class:`ocar.Serving` for
    predictions that do not.

    Args:
        model: Any module; its device is where everything happens.
        settings: Settings of a method.
        transform: What to do to the gradient; nothing by default.
        capture: On a GPU, capture the steps as CUDA graphs. A model that is changed by others
            while it learns, other than by values in its parameters, needs False.
        guard: When to back off from a batch, see :mod:`ocar.guard`; None for never.

    Attributes:
        batches: Stream batches learned.
        steps: Gradient steps taken.
        lock: Held by every call; hold it where several calls belong together.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: LearnerSettings,
        *,
        transform: TransformSettings | None = None,
        capture: bool = True,
        guard: Guard | None = Guard(),  # noqa: B008 (it is frozen)
    ) -> None:
        parameter = next((p for p in model.parameters() if p.requires_grad), None)
        if parameter is None:
            raise ModelError(
                f"{type(model).__name__} has no parameter that requires a gradient; "
                "there is nothing to learn."
            )
        lay_out_(model)
        self.lock = threading.RLock()
        self._servings: weakref.WeakSet[Serving] = weakref.WeakSet()
        self.model = model
        self.settings = settings
        self.transform_settings = transform
        self.device, self.dtype = parameter.device, parameter.dtype
        self.batches = 0
        self.steps = 0
        self._augment_generator = make_generator(settings.seed, "augment", self.device)
        self._head_generator = make_generator(settings.seed, "head")
        self._head = self._make_head()
        self.memory = MEMORIES[settings.memory_kind](
            settings.memory, extras=settings.extras, seed=settings.seed, device=self.device
        )
        self._context = self._make_context()
        self._objective = settings.make_objective(self._context)
        self._transform = self._make_transform()
        self._optimizer = settings.make_optimizer(self._parameters())
        self._guard_settings = guard
        self._guard = make_guard(guard, self._context, bounded=transform is not None)
        self._gradients = RecordedBackward(model, self.device)
        drawing = [self._augment_generator, *self._objective.generators]
        self._steps = Captured(
            self._take_steps,
            device=self.device,
            generators=[*drawing, *self._transform.generators],
            enabled=capture and self._objective.capturable,
        )
        self._capacity = 0
        self._item: Item | None = None
        self._outputs = 0
        self._average: dict[str, Tensor] | None = None
        if settings.prediction == "average":
            self._average = {name: p.detach().clone() for name, p in self._trainable().items()}

    def __repr__(self) -> str:
        transform = "" if self.transform_settings is None else f", {self.transform_settings!r}"
        return f"Learner({type(self.model).__name__}, {self.settings!r}{transform})"

    @property
    def classes(self) -> tuple[int, ...]:
        """The label that each column of :meth:`predict` stands for, in order of appearance."""
        return () if self._head is None else tuple(self._head.classes)

    @property
    def wants_boundaries(self) -> bool:
        """Whether :meth:`boundary` is to be called; see :func:`ocar.evaluate.evaluate`."""
        return self._objective.wants_boundaries

    @property
    def has_guard(self) -> bool:
        """Whether bad batches are backed off."""
        return self._guard_settings is not None

    @property
    def guarded(self) -> GuardCounts:
        """What the guard has done so far; on a GPU this waits for the device."""
        return self._guard.counts()

    @alone
    def boundary(self) -> None:
        """Say that a task has ended and another follows, to a method that wants to know."""
        if self.wants_boundaries:
            self._objective.boundary()

    # Learning

    @alone
    def learn(self, x: Tensor, y: Tensor) -> Report:
        """Take a few gradient steps on a new batch and replayed samples, then remember the batch.

        Args:
            x: Raw samples, ``(n, ...)``, uint8 or float, on any device.
            y: Labels, ``(n,)`` of integers, or regression targets, ``(n, outputs)``.

        Raises:
            InputError: The batch cannot be learned from. Nothing has changed.
        """
        x, y, units = self._admit(x, y)
        known = self._known()
        numbers = self._transform.begin(units, known=known)
        own_numbers = self._objective.begin(units, known=known)
        capacity = 0 if self._head is None else self._head.capacity
        grown = capacity != self._capacity
        if grown:
            self._steps.forget()
            fit_optimizer_(self._optimizer)
            self._capacity = capacity
        trusted = self._guard.trust(x)
        if self.settings.remembers_first:
            self._remember(x, y, units, accepted=trusted)
        active = torch.empty(0) if self._head is None else self._head.active
        changing = [torch.tensor(n, dtype=torch.float64) for n in (numbers, own_numbers)]
        slots, draws = self._draw()
        given = (x, y, slots, *changing, active)
        key = draws, self._transform.shape(len(self.classes))
        loss, replayed = self._take_guarded_steps(given, key, trusted, look=grown)
        if replayed:
            self._transform.replayed(self.settings.passes)
        self.steps += self.settings.passes
        if not self.settings.remembers_first:
            self._remember(x, y, units, accepted=self._guard.accepted)
        self._objective.learned()
        self.batches += 1
        for serving in self._servings:
            serving.learned()
        return Report(loss=loss, classes=known, values=self._transform.report())

    @alone
    def remember(self, x: Tensor, y: Tensor) -> None:
        """Offer a batch to the memory without learning from it now.

        Args:
            x: Raw samples, ``(n, ...)``.
            y: Labels, ``(n,)``, or regression targets, ``(n, outputs)``.

        Raises:
            InputError: The batch cannot be stored. Nothing has changed.
        """
        x, y, units = self._admit(x, y)
        trusted = self._guard.trust(x)
        self._remember(x, y, units, accepted=trusted)
        self._guard.refuse(trusted)

    @alone
    def release(self) -> None:
        """Give back memory of a GPU that only helps to learn faster; it is asked for again."""
        self._steps.release()
        release_memory(self.device)

    def check(self) -> None:
        """Raise what went wrong in steps that were not waited for, if anything did.

        On a GPU a step is only begun when :meth:`learn` returns. This waits for the device.

        Raises:
            NumericalError: A step gave numbers that are not finite.
        """
        self._transform.check()
        if self._guard.look():
            # On a GPU the memory has taken note of a batch that the device then refused.
            self.memory.reconcile()

    def _draw(self) -> tuple[Tensor, tuple[int, ...]]:
        """Slots of the memory to replay, ``(passes, n)`` on the host, and the size of each draw."""
        sizes = self._objective.draws(self.settings.draws)
        drawn = [self._draw_passes(size) for size in sizes]
        return torch.cat(drawn, dim=1), tuple(slots.shape[1] for slots in drawn)

    def _draw_passes(self, size: int) -> Tensor:
        """Slots of one draw for each pass, ``(passes, n)``."""
        passes, held = self.settings.passes, len(self.memory)
        if size > held and not self.settings.partial_replay:
            return torch.empty(passes, 0, dtype=torch.int64)
        if self.settings.replay == "kept":
            return self.memory.draw(size).expand(passes, -1)
        if self.settings.replay == "disjoint" and passes * size <= held:
            return self.memory.draw(passes * size).view(passes, size)
        return torch.stack([self.memory.draw(size) for _ in range(passes)])

    def _take_guarded_steps(
        self,
        given: tuple[Tensor, ...],
        key: tuple[tuple[int, ...], Hashable],
        trusted: Verdict,
        *,
        look: bool,
    ) -> tuple[Tensor, bool]:
        """The loss of all steps on a stream batch, NaN if they broke off, and whether a graph ran.

        Args:
            given: What :meth:`_take_steps` takes first.
            key: The size of each draw from memory, and what else the steps depend on.
            trusted: Whether the new samples are of a sane size.
            look: Whether to look at that also if the device must be waited for.
        """
        if (isinstance(trusted, bool) or look) and not trusted:
            self._guard.refuse(trusted)
            return self._no_loss(), False
        try:
            on_device = torch.empty(0) if isinstance(trusted, bool) else trusted
            return self._steps(*given, on_device, key=key)
        except NumericalError:
            if not self.has_guard:
                raise
            self._guard.take_back()
            return self._no_loss(), False

    def _no_loss(self) -> Tensor:
        return torch.full((), float("nan"), device=self.device)

    def _take_steps(
        self,
        x: Tensor,
        y: Tensor,
        slots: Tensor,
        numbers: Tensor,
        own_numbers: Tensor,
        active: Tensor,
        trusted: Tensor,
        *,
        key: tuple[tuple[int, ...], Hashable],
    ) -> Tensor:
        """All steps on a stream batch; on a GPU this is what is captured as a graph.

        Args:
            x: New samples, ``(n, ...)``.
            y: Their units or targets.
            slots: What to replay in each pass, ``(passes, m)``.
            numbers: What the transform's ``begin`` returned.
            own_numbers: What the objective's ``begin`` returned.
            active: Which outputs stand for a class; empty in regression.
            trusted: Whether the new samples are of a sane size; empty if that is known.
            key: The size of each draw from memory, and what the transform's ``shape`` returned.

        Returns:
            The loss of the last pass.
        """
        train_mode_(self.model)
        parameters = self._parameters()
        self._guard.begin(parameters, self._statistics())

        def join(index: int) -> Step:
            replay, extras = self.memory.gather(slots[index], check=False), {}
            raw, ys = x, y
            if len(replay):
                raw, ys = torch.cat([x, replay.x]), torch.cat([y, replay.y])
                extras = dict(replay.extras)
            return Step(
                x=self._normalize(self._augment(raw)),
                y=ys,
                raw=raw,
                new=x.shape[0],
                draws=key[0],
                extras=extras,
                index=index,
                active=None if self._head is None else active,
                numbers=numbers,
                own_numbers=own_numbers,
                trusted=trusted if trusted.numel() else None,
            )

        steps, lanes = [join(0)], beside(self.device)
        if len(slots) > 1:  # the inputs of the others are made beside the first
            lanes.start(1, lambda: steps.extend(map(join, range(1, len(slots)))), keep=steps)
        for index in range(len(slots)):
            if index == 1:
                lanes.join()
            loss = self._take_step(steps[index], parameters)
        self._guard.settle(loss, trusted)
        return loss

    def _take_step(self, step: Step, parameters: Sequence[nn.Parameter]) -> Tensor:
        for parameter in parameters:
            parameter.grad = None
        with self._gradients.prepared(), self._transform.watch(step):
            outcome = self._objective(self.model, step)
        seen = outcome.step or step
        outputs = self._transform.observe(seen, outcome.outputs, self.model)
        if step.index == 0:
            self._guard.ask(seen, outputs)
        self._gradients.backward(outcome.loss)
        self._transform.rewrite_()
        if self._optimizer is not None:
            self._optimizer.step()
        with torch.no_grad():
            if self._optimizer is None:
                moved = [p for p in parameters if p.grad is not None]
                weights: list[Tensor] = list(moved)
                grads = [p.grad for p in moved if p.grad is not None]
                torch._foreach_add_(weights, grads, alpha=-self.settings.lr)
            if self._average is not None:
                self._follow_weights()
        return outcome.loss.detach()

    def _known(self) -> int:
        """Classes seen so far; the head may have been told of more."""
        return 0 if self._head is None else len(self._head.seen)

    def _parameters(self) -> list[nn.Parameter]:
        """All that learns: of the model, then of the objective."""
        return [*self._trainable().values(), *self._objective.parameters()]

    def _statistics(self) -> list[Tensor]:
        """What steps change beside what learns: of the model, optimizer, average, transform."""
        states = () if self._optimizer is None else self._optimizer.state.values()
        tensors = [
            *self.model.buffers(),
            *(value for values in states for value in values.values()),
            *(self._average or {}).values(),
            *self._transform.statistics(),
        ]
        return [t for t in tensors if isinstance(t, Tensor) and t.is_floating_point()]

    def _remember(self, x: Tensor, y: Tensor, units: list[int], *, accepted: Verdict) -> None:
        accepted = self._guard.may_remember(accepted)
        if accepted is False:
            return
        extras = self._objective.extras(x)
        labels = units if self._head is not None else None
        on_device = accepted if isinstance(accepted, Tensor) else None
        self.memory.add(x, y, extras, labels=labels, accepted=on_device)

    # Predicting

    @alone
    @torch.no_grad()
    def predict(self, x: Tensor, *, chunk: int = 1024) -> Tensor:
        """Logits of each class seen, or the outputs of a regression; nothing changes.

        Args:
            x: Raw samples, ``(n, ...)``.
            chunk: Samples that go through the model at once.

        Returns:
            Shape ``(n, len(classes))``, column i for label ``classes[i]``.

        Raises:
            InputError: The samples are not such as were learned.
        """
        check_samples(x, like=self._item)
        with self._context.evaluating():
            parts = [self._predict_chunk(part) for part in x.split(chunk)]
        outputs = parts[0] if len(parts) == 1 else torch.cat(parts)
        return outputs if self._head is None else outputs[:, : len(self._head.classes)]

    def predict_repeatedly(self, x: Tensor) -> Repeated:
        """For predicting the same samples after every batch, faster.

        Args:
            x: Raw samples, ``(n, ...)``.

        Returns:
            Called as ``f(n, use)`` it gives what ``use`` makes of :meth:`predict` for the first n
            samples. On a GPU that is only begun, and goes on while the next batch is learned: call
            ``f.wait()`` before you look, and let ``use`` wait for nothing. There BatchNorm is
            folded into the convolutions of a ResNet, which is the same up to rounding.

        Raises:
            InputError: The samples are not such as were learned.
        """
        check_samples(x, like=self._item)
        return Repeated(x, make=self._make_prediction, context=self._context)

    def _make_prediction(self, x: Tensor) -> RepeatedPrediction:
        if not self._steps.enabled or self._objective.scores:
            return RepeatedPrediction(
                x, normalize=self._normalize, predict=self._evaluate, device=self.device
            )
        return SideBySidePrediction(
            x, normalize=self._normalize, model=self.model, weights=self._averaged()
        )

    @alone
    def _evaluate(self, x: Tensor) -> Tensor:
        with self._context.evaluating():
            return self._outputs_of(x)

    def _predict_chunk(self, x: Tensor) -> Tensor:
        return self._outputs_of(self._prepare(x))

    def _prepare(self, x: Tensor) -> Tensor:
        """From raw samples on any device to inputs of the model."""
        return self._normalize(x.to(self.device, non_blocking=True))

    def _outputs_of(self, x: Tensor) -> Tensor:
        if self._objective.scores:
            return self._objective.score(self._context.features(x)[0])
        if self._average is None:
            return self.model(x)
        return torch.func.functional_call(self.model, self._average, (x,))

    def _weights(self) -> dict[str, Tensor] | None:
        """What predicts, by name; None where that is more than the model with some weights."""
        if self._objective.scores or self.settings.trains_when_asked:
            return None
        return self._averaged()

    def _averaged(self) -> dict[str, Tensor]:
        """Parameters and buffers of the model, their moving average where there is one."""
        weights = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        return weights | (self._average or {})

    def _augment(self, x: Tensor) -> Tensor:
        augment = self.settings.augment
        return x if augment is None else augment(x, self._augment_generator)

    def _normalize(self, x: Tensor) -> Tensor:
        x = scale_to_unit(x) if self.settings.normalize is None else self.settings.normalize(x)
        return x.to(self.dtype)

    # Checking what comes in

    def _admit(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, list[int]]:
        """Check a batch whole, then give new labels their units.

        Returns:
            Samples on the model's device, their units or targets, and the units as numbers.
        """
        item = check_samples(x, like=self._item)
        check_length(x, y)
        if self._head is None:
            check_targets(y, dtype=self.dtype, outputs=self._check_model(x))
            units: list[int] = []
        else:
            labels = check_labels(y)
            self._check_model(x)
            units = self._head.admit(labels)
            y = torch.tensor(units)
        self._item = item
        return x.to(self.device, non_blocking=True), y, units

    def _check_model(self, x: Tensor) -> int:
        """Try a first sample, so that a model that cannot take it is found out at once.

        Returns:
            The number of outputs of the model.
        """
        if self._item is None:
            try:
                with self._context.evaluating():
                    outputs = self.model(self._normalize(x[:1].to(self.device)))
            except RuntimeError as error:
                raise InputError(
                    f"The model cannot take samples of shape {tuple(x.shape[1:])}: {error}"
                ) from error
            self._check_outputs(outputs)
            self._outputs = outputs.shape[-1]
        return self._outputs

    def _check_outputs(self, outputs: Tensor) -> None:
        wanted = outputs.shape[-1] if self._head is None else self._head.capacity
        if outputs.shape != (1, wanted):
            name = "" if self._head is None else f", the outputs of layer {self._head.name!r}"
            raise ModelError(
                f"The model must return shape (n, {wanted}){name}; it returned "
                f"{tuple(outputs.shape)} for one sample."
            )

    # Making the parts

    def _make_head(self) -> GrowingHead | None:
        if self.settings.likelihood == "gaussian":
            return None
        return GrowingHead(
            self.model,
            name=self.settings.head,
            classes=self.settings.classes,
            generator=self._head_generator,
        )

    def _make_context(self) -> Context:
        return Context(
            model=self.model,
            head=self._head,
            memory=self.memory,
            lr=self.settings.lr,
            likelihood=self.settings.likelihood,
            seed=self.settings.seed,
            device=self.device,
            dtype=self.dtype,
            normalize=self._normalize,
            augment=self._augment,
        )

    def _make_transform(self) -> Transform:
        reason = self.settings.refuses(self.transform_settings)
        if reason is not None:
            raise ConfigError(reason)
        if self.transform_settings is None:
            return Transform()
        return self.transform_settings.make(self._context, self._objective)

    def _trainable(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def _follow_weights(self) -> None:
        """Move the average towards the weights; units that are new in the head start with them."""
        assert self._average is not None
        for name, parameter in self._trainable().items():
            average = self._average[name]
            if average.shape != parameter.shape:
                grown = parameter.detach().clone()
                grown[: average.shape[0]] = average
                self._average[name] = grown
        weights: list[Tensor] = [p.detach() for p in self._trainable().values()]
        averages = [self._average[name] for name in self._trainable()]
        torch._foreach_lerp_(averages, weights, self.settings.average_rate)

    # Saving

    @alone
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all of the learner to one file: weights, memory, curvature, generators.

        The file appears whole or not at all. :func:`ocar.load` makes a learner of it
        that goes on exactly where this one is.

        Args:
            path: The file.
        """
        tensors, values = self.state()
        state.save_state(path, tensors, values)

    @alone
    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything that a restored learner needs: tensors by name, and plain values.

        Raises:
            NumericalError: A step since the last look gave numbers that are not finite.
        """
        self.check()
        tensors = {
            **state.with_prefix("model", self.model.state_dict()),
            **state.with_prefix("memory", self.memory.state_dict()),
            **state.with_prefix("objective", self._objective.state_dict()),
            **state.with_prefix("transform", self._transform.state_dict()),
            **state.with_prefix("optimizer", save_optimizer(self._optimizer)),
            **state.with_prefix("average", self._average or {}),
            **state.with_prefix("guard", self._guard.state_dict()),
            "generator.augment": self._augment_generator.get_state(),
            "generator.head": self._head_generator.get_state(),
        }
        transform = self.transform_settings
        values = {
            "method": type(self.settings).__name__,
            "settings": to_plain(self.settings),
            "transform": None if transform is None else type(transform).__name__,
            "transform_settings": None if transform is None else to_plain(transform),
            "guard": to_plain(self._guard_settings) if self._guard_settings else None,
            "classes": list(self.classes),
            "seen": [] if self._head is None else sorted(self._head.seen),
            "batches": self.batches,
            "steps": self.steps,
            "item": None if self._item is None else [list(self._item.shape), str(self._item.dtype)],
            "outputs": self._outputs,
        }
        return tensors, values

    @alone
    def load_state(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` gave, on a learner with the same settings.

        Raises:
            CheckpointError: The state is of another model or other settings.
        """
        weights = state.without_prefix("model", tensors)
        self._fit_head(weights, values["classes"], seen=values.get("seen", values["classes"]))
        state.check_names("model", weights, self.model.state_dict())
        if not state.all_finite(weights):
            raise CheckpointError("The checkpoint holds weights that are NaN or Inf.")
        average = state.without_prefix("average", tensors)
        if self._average is not None:
            state.check_names("moving average", average, self._trainable())
            self._average = {name: t.to(self.device, copy=True) for name, t in average.items()}
        self.model.load_state_dict(weights)
        self.memory.load_state_dict(state.without_prefix("memory", tensors))
        self._objective.load_state_dict(state.without_prefix("objective", tensors))
        self._transform.load_state_dict(state.without_prefix("transform", tensors))
        load_optimizer(self._optimizer, state.without_prefix("optimizer", tensors))
        self._guard.load_state_dict(state.without_prefix("guard", tensors))
        self._steps.forget()
        self._augment_generator.set_state(tensors["generator.augment"])
        self._head_generator.set_state(tensors["generator.head"])
        self.batches, self.steps = int(values["batches"]), int(values["steps"])
        self._item = None
        if values["item"] is not None:
            shape, dtype = values["item"]
            self._item = Item(torch.Size(shape), getattr(torch, dtype.removeprefix("torch.")))
        self._outputs = int(values["outputs"])
        for serving in self._servings:
            serving.publish()

    def _fit_head(
        self, weights: Mapping[str, Tensor], classes: list[int], *, seen: list[int]
    ) -> None:
        """Give the head the capacity that it has in a checkpoint, once the rest fits."""
        if self._head is None:
            return
        own = f"{self._head.name}."
        others = {n: t for n, t in self.model.state_dict().items() if not n.startswith(own)}
        given = {n: t for n, t in weights.items() if not n.startswith(own)}
        state.check_names("model", given, others)
        weight = weights.get(f"{own}weight")
        if weight is None or weight.shape[0] < self._head.capacity:
            found = "none" if weight is None else f"{weight.shape[0]} units"
            raise CheckpointError(
                f"The checkpoint is of another model: head {self._head.name!r} has {found}, "
                f"here {self._head.capacity}."
            )
        self._head.reserve(weight.shape[0])
        self._head.restore(classes, seen=seen)


def train_mode_(model: nn.Module) -> None:
    """Train mode, except for a frozen BatchNorm, whose statistics are frozen too."""
    modules = list(model.modules())
    frozen = [
        module
        for module in modules
        if isinstance(module, _BatchNorm) and module.affine and not module.weight.requires_grad
    ]
    learning = sum(module.training for module in modules)
    if learning == len(modules) - len(frozen) and not any(module.training for module in frozen):
        return
    model.train()
    for module in frozen:
        module.eval()

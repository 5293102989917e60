"""The learner: an objective, a memory and a gradient transform, put together.

For each batch of a stream a learner makes a few passes; each draws a replay batch, augments, and
takes a step of SGD on the joint batch with the transformed gradient. Then the batch is offered to
the memory. The learner knows nothing of tasks, and predicts at any moment.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, SupportsFloat

import torch
from torch import Tensor, nn

from ocar import accel
from ocar.averaging import SlowWeights
from ocar.closed_form import ClosedFormHead
from ocar.config import require
from ocar.errors import InputError, ModelError
from ocar.guard import BatchGuard, Guard, GuardCounts
from ocar.inputs import Intake
from ocar.methods.context import Context
from ocar.methods.objective import Begun
from ocar.methods.settings import LearnerSettings, check_shared
from ocar.methods.transform import Transform, TransformSettings
from ocar.models.check import check_model, may_draw
from ocar.models.latent import LatentReplay, learned_part
from ocar.models.modes import Learning
from ocar.prediction import Predicting
from ocar.rng import make_generator
from ocar.saved import Listener
from ocar.steps import Steps
from ocar.structure import Given, Inputs
from ocar.synchronized import Lock, drawing, outside_inference_mode, synchronized
from ocar.undo import Undo


@dataclass(frozen=True, kw_only=True, eq=False)
class Report:
    """What one call of :meth:`Learner.learn` did."""

    loss: Tensor  #: Loss of the last pass before its step, a scalar on the model's device.
    classes: int  #: Classes seen so far.
    values: Mapping[str, SupportsFloat]  #: What the transform reports: ``tau``, ``lr``, ...
    why: Mapping[str, str] = field(default_factory=dict)  #: How they were chosen, in words.


class Learner(Predicting):
    """Learns from a stream, one batch at a time.

    :func:`ocar.OCAR`, :func:`ocar.ER` and :func:`ocar.make_learner` make one. Several threads may
    use it; a call waits for the one in progress, but for those of :class:`ocar.Serving`.

    Args:
        model: Any module; the learner works on its device. Of a :class:`~ocar.LatentReplay` the
            memory stores features, and the rest learns.
        settings: Settings of a method.
        transform: Settings of a gradient transform; None for plain SGD.
        record: On a GPU, record the steps as CUDA graphs. Must be False if others replace tensors
            of the model while it learns.
        guard: When to back off from a batch, see :mod:`ocar.guard`; None for never.
        ranks: The processes that learn together, see :class:`ocar.Ranks`; None for one. With
            several nothing is recorded as a CUDA graph.

    Attributes:
        model: The model that learns.
        latent: The :class:`~ocar.LatentReplay` with the frozen backbone; None without one.
        batches: Stream batches given to :meth:`learn`, skipped ones included.
        steps: Gradient steps taken; on a GPU rolled-back ones are included.
        lock: Held by every call; hold it where several calls belong together.
        draws: Replaces PyTorch's global generators while the learner works.
    """

    @outside_inference_mode()
    def __init__(
        self,
        model: nn.Module,
        settings: LearnerSettings,
        *,
        transform: TransformSettings | None = None,
        record: bool = True,
        guard: Guard | None = Guard(),  # noqa: B008 (it is frozen)
        ranks: accel.Ranks | None = None,
    ) -> None:
        parameter = check_model(model)
        given = guard is None or isinstance(guard, Guard)
        require("guard", guard, given, "a Guard, or None for no guard")
        require("record", record, isinstance(record, bool), "True or False")
        settings.check_transform(transform)
        accel.lay_out_(model)
        self.lock = Lock()
        self.servings: weakref.WeakSet[Listener] = weakref.WeakSet()
        self.latent = model if isinstance(model, LatentReplay) else None
        self.model = model = learned_part(model)
        self.settings = settings
        self.transform_settings = transform
        self.guard_settings = guard
        self.ranks = ranks if ranks is not None and ranks.connected else None
        shared = None
        if self.ranks is not None:
            check_shared(self.ranks, settings, transform, guard)
            shared = accel.SharedModel(self.ranks, model)
        self.device, self.dtype = parameter.device, parameter.dtype
        self.batches = self.steps = 0
        self._head_generator = make_generator(settings.seed, "head")
        self.head = settings.make_head(model, self._head_generator)
        self.intake = Intake(settings, model, self.head, like=parameter, latent=self.latent)
        self.memory = settings.make_memory(self.device)
        if self.ranks is not None and self.ranks.memory == "sharded":
            self.memory.shard(self.ranks)
        residuals = settings.make_residuals(self.device)
        self.context = Context(
            model=model,
            head=self.head,
            memory=self.memory,
            lr=settings.lr,
            passes=settings.passes,
            likelihood=settings.likelihood,
            residuals=residuals,
            seed=settings.seed,
            device=self.device,
            dtype=self.dtype,
            record=record,
            normalize=self.intake.normalize,
            augment=self.intake.augment,
            targets=self.intake.standardize,
            curvature_scale=settings.curvature_scale,
            shared=shared,
        )
        self.objective = settings.make_objective(self.context)
        self.transform = (
            Transform() if transform is None else transform.make(self.context, self.objective)
        )
        own_code = (settings.normalize, settings.augment, self.memory, self.objective)
        self.draws = accel.OwnDraws(
            [make_generator(settings.seed, "model", d) for d in accel.host_and(self.device)],
            enabled=any(map(may_draw, (model, *own_code, self.transform))),
        )
        self.intake.draws = partial(self.draws, keep=False)
        if shared is not None:
            shared.draws, self.intake.shared = self.draws, shared
        bound = None
        if guard is not None and transform is not None:
            bound = guard.gaussian_kl if self.head is None else guard.kl
        self._guard = BatchGuard(
            guard,
            model=model,
            normalize=self.intake.rescale,
            bound=bound,
            distance=accel.half_square if residuals is None else residuals.divergence,
            shared=shared,
        )
        self.slow = SlowWeights(model, settings)
        self.closed_form = ClosedFormHead.make(
            settings.closed_form_head, self.context, self.objective
        )
        self.intake.trial = self._try_model
        self._stateful: dict[str, Any] = {  # by the prefix of their tensors
            "memory": self.memory,
            "objective": self.objective,
            "transform": self.transform,
            "guard": self._guard,
            **({} if self.closed_form is None else {"closed_form": self.closed_form}),
        }
        self._steps = Steps(
            settings,
            self.context,
            objective=self.objective,
            transform=self.transform,
            guard=self._guard,
            slow=self.slow,
            generator=self.intake.generator,
        )
        parts = (model, self.head, self.intake, self.slow, self._head_generator)
        fixed = self.transform.has_layers or self._steps.optimizer is not None
        self._fixed = Learning(model) if fixed else None
        self._undo = Undo(
            {self: ("batches", "steps"), self._steps: ("capacity",)},
            [*parts, *(self.memory, self.objective, self.transform)],
            guard=self._guard,
            optimizer=self._steps.optimizer,
            draws=self.draws,
            forget=self._forget_recordings,
        )

    def __repr__(self) -> str:
        transform = "" if self.transform_settings is None else f", {self.transform_settings!r}"
        return f"Learner({type(self.model).__name__}, {self.settings!r}{transform})"

    @property
    def classes(self) -> tuple[int, ...]:
        """The label of each column of :meth:`predict`, in order of appearance."""
        return () if self.head is None else tuple(self.head.classes)

    @property
    def _known(self) -> int:
        """How many classes have been seen."""
        return 0 if self.head is None else len(self.head.seen)

    @property
    def _active(self) -> Tensor | None:
        """Which outputs stand for a class, ``(outputs,)`` of bool; None in regression."""
        return None if self.head is None else self.head.active

    @property
    def wants_boundaries(self) -> bool:
        """Whether :meth:`boundary` is to be called; see :func:`ocar.evaluate.evaluate`."""
        return self.objective.wants_boundaries

    @property
    def guarded(self) -> GuardCounts:
        """What the guard has done so far; on a GPU this waits for the device."""
        return self._guard.counts()

    @drawing
    def boundary(self) -> None:
        """A task has ended and another follows; for methods that want to know."""
        if self.wants_boundaries:
            self.objective.boundary()

    # Learning

    @drawing
    def learn(self, x: Given, y: Given) -> Report:
        """Take a few gradient steps on a new batch and replayed samples, then remember the batch.

        Args:
            x: Raw samples, ``(n, ...)``, on any device: a tensor or an array. uint8 and floating
                point are measured numbers; integers and bool are given to the model as they are.
                For a model of several inputs a tuple, given to it as ``model(*x)``, or a
                dictionary, ``model(**x)``, of tensors or arrays ``(n, ...)``.
            y: Labels, ``(n,)`` of integers, or regression targets, ``(n, outputs)``.

        Raises:
            InputError: The batch cannot be learned from.
            ModelError: The first batch shows that the model cannot learn.

        Whatever is raised, an interrupt included, undoes the batch if there is a guard: nothing
        has changed then.
        """
        with self._undo:
            first = not (self.steps if self.objective.learns else self.memory.seen)
            loss = self._learn(x, y)
            accepted = self._guard.verdict.accepted
            # A GPU is waited for while nothing has been learned: then all can be undone there too.
            sure = bool(accepted) if first else accel.known(accepted)
            if sure is False:
                self._undo.restore()
            values, why = self.transform.report(), self.transform.why()
            report = Report(loss=loss, classes=self._known, values=values, why=why)
            self._guard.end()
            self.batches += 1
        for serving in self.servings:
            serving.learned()
        return report

    def _learn(self, given: Given, labels: Given) -> Tensor:
        """Learn and remember a batch; returns the loss."""
        if self.objective.learns and not torch.is_grad_enabled():
            raise InputError("learn() needs gradients. Call it outside torch.no_grad().")
        self._check_learning()
        x, y, units = self._take(given, labels)
        samples = len(x) + sum(self.settings.draws)
        begun = Begun(
            units=units,
            known=self._known,
            largest=-1 if self.head is None else self.head.largest,
            step=self.steps,
            outputs=self.intake.outputs,
            samples=samples,
            keep=self._undo.keep,
        )
        numbers = self._steps.begin(begun)
        trusted = self._guard.trust(x, y)
        if not self.objective.learns:
            self._remember(x, y, units, accepted=self._guard.remembers(x, trusted))
            self._guard.refuse(trusted)
            if accel.known(trusted) is None:
                self._undo.restore_rows(unless=trusted)
            return torch.zeros((), device=self.device)
        remembers_first = self.settings.remembers_first
        if remembers_first:
            self._remember(x, y, units, accepted=self._guard.remembers(x, trusted))
        loss = self._steps.take(x, y, trusted, numbers)
        accepted = self._guard.verdict.accepted
        if (sure := accel.known(accepted)) is not False:
            self.steps += self.settings.passes
            if sure is None:
                self._undo.restore_rows(unless=accepted)
            if not remembers_first:
                self._remember(x, y, units, accepted=self._guard.kept)
            self.objective.learned()
        return loss

    def _take(self, given: Given, labels: Given) -> tuple[Inputs, Tensor, list[int]]:
        """Check a batch, and fit the units, the slow weights and the scale to it."""
        if self.ranks is not None:
            given, labels = self.ranks.gather_batch(
                given, labels, device=self.device, dtype=self.dtype
            )
        x, y, units = self.intake.take(given, labels)
        self.slow.fit()  # the head may have grown
        self.intake.follow(x, y, self._undo.keep)
        return x, y, units

    @drawing
    def remember(self, x: Given, y: Given) -> None:
        """Offer a batch to the memory without learning from it now; takes what ``learn`` takes."""
        with self._undo:
            x, y, units = self._take(x, y)
            trusted = self._guard.trust(x, y)
            self._remember(x, y, units, accepted=self._guard.remembers(x, trusted))
            self._guard.refuse(trusted)
            if (sure := accel.known(trusted)) is False:
                self._undo.restore()
            elif sure is None:
                self._undo.restore_rows(unless=trusted)
            self._guard.end()

    @synchronized
    def forget(self, x: Given = None, *, label: int | None = None) -> int:
        """Remove samples from the memory, so that they are neither replayed nor saved again.

        What was learned from them stays: weights, curvature, running mean and variance. With
        several ranks every rank must call this with the same samples or label.

        Args:
            x: Raw samples, ``(n, ...)``; every stored sample that equals one of them is removed.
            label: A class; all its stored samples are removed. Predictions still know it.

        Returns:
            How many stored samples were removed.

        Raises:
            InputError: Neither or both were given, or stored samples cannot be found by ``x``.
        """
        if (x is None) == (label is None):
            raise InputError("Give either the samples to forget, x, or their class, label=...")
        if label is not None and self.head is None:
            raise InputError("A regression has no classes. Give the samples to forget, x.")
        if label is not None and not hasattr(label, "__index__"):
            raise InputError(f"label must be an integer; given {label!r}.")
        if x is not None and self.latent is not None:
            raise InputError(
                "The memory stores features of a frozen backbone, in which a sample cannot be "
                "found. Forget its class: label=..."
            )
        self.check()
        if x is None:
            unit = self.classes.index(label) if label in self.classes else -1
            found = self.memory.slots[self.memory.labels == unit]
        else:
            found = self.memory.find(self.intake.check(x))
        if self.ranks is not None:
            self.ranks.require_equal("samples to forget", f"those in slots {found.tolist()}")
        if len(found):
            self.memory.remove(found)
            self.load_state(*self._state())  # drops whatever was computed from the memory
        return len(found)

    @synchronized
    def accept_scale(self) -> None:
        """Trust inputs and targets of the scale of the last batches that the guard refused for it.

        For a scale that has changed for good; ``learner.guarded.in_a_row`` says how many
        batches were refused in a row.
        """
        self._guard.accept_scale()

    @synchronized
    def release(self) -> None:
        """Give back memory of a GPU that only makes learning faster."""
        self._steps.graph.release()
        self.objective.release()
        if self.closed_form is not None:
            self.closed_form.release()
        accel.release_memory(self.device)

    def check(self) -> None:
        """Wait for all steps; on a GPU :meth:`learn` returns before its steps are done.

        Raises:
            NumericalError: A step gave numbers that are not finite, and there is no guard.
            ModelError: Other parameters learn than at the start, and the method follows them.
        """
        self._check_learning()
        self.transform.check()
        if self._guard.check():
            self.memory.reconcile()  # the host has counted a batch that the device then refused

    def _check_learning(self) -> None:
        """Raise if other parameters learn than at the start, and the method has state of them."""
        changed = None if self._fixed is None else self._fixed.changes(self.model)
        if changed:
            raise ModelError(
                f"The layer or requires_grad of {', '.join(changed)} has changed since the learner "
                "was made, and this method has curvature or an optimizer for the parameters that "
                "learned then. Set it back, or make a learner of the model as it is now."
            )

    def _try_model(self, model: nn.Module, x: Inputs) -> None:
        """Raise a ``ModelError`` if a part of the learner cannot use the model."""
        self.transform.try_model(model, x)
        if self.closed_form is not None:
            self.closed_form.try_model(x)

    def _forget_recordings(self) -> None:
        """Drop what was recorded on a GPU, because tensors that it uses were replaced."""
        self._steps.graph.forget()
        if self.closed_form is not None:
            self.closed_form.forget()

    def _remember(self, x: Inputs, y: Tensor, units: list[int], *, accepted: Tensor) -> None:
        # The first samples fill all slots, so they must be known to be good.
        sure = accel.known(accepted) if self.memory.seen else bool(accepted)
        if sure is False:
            return
        known: dict[str, Tensor] = {}
        if self.memory.uses:
            with self.context.evaluating():
                outputs = self.context.forward_shared(self.intake.normalize(x))
            targets = self.intake.standardize(y.to(self.device))
            known = self.objective.known(outputs, targets, self._active)
            if "outputs" in known:
                known = {**known, "outputs": self.intake.targets.invert(known["outputs"])}
        self.memory.add(
            x,
            y,
            self.objective.extras(x),
            labels=units if self.head is not None else None,
            known=known,
            accepted=None if sure else accepted,
            keep=self._undo.keep if sure or self.settings.remembers_first else None,
        )

    @synchronized
    def curvature_table(self) -> str:
        """Which parameters have which curvature, and their share, as a table to print.

        A first batch may show that a weight is used in a way that has no curvature.
        """
        return self.transform.curvature_table(self.model)

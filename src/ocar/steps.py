"""The gradient steps on one stream batch.

This is the method, written once: the same Python runs eagerly and is recorded as a CUDA graph.
Numbers that change from batch to batch are in tensors, and so are decisions that depend on data.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from ocar import accel
from ocar.averaging import SlowWeights
from ocar.errors import NumericalError
from ocar.guard import BatchGuard
from ocar.memory.memory import Batch
from ocar.methods.context import Context
from ocar.methods.distillation import Distillation
from ocar.methods.objective import Begun, Objective, Outcome, Step
from ocar.methods.settings import LearnerSettings
from ocar.methods.transform import Transform
from ocar.models.modes import train_mode_, which_learn
from ocar.optimizer import fit_optimizer_
from ocar.structure import Inputs, cat, from_parts, parts_of


class Steps:
    """Takes the gradient steps of a learner, whose parts it is given.

    Attributes:
        optimizer: Takes the steps; None for plain SGD.
        capacity: Units of the head in the last steps.
    """

    def __init__(
        self,
        settings: LearnerSettings,
        context: Context,
        *,
        objective: Objective,
        transform: Transform,
        guard: BatchGuard,
        slow: SlowWeights,
        generator: torch.Generator,
    ) -> None:
        self.settings = settings
        self.context = context
        self.objective = objective
        self.transform = transform
        self.guard = guard
        self.slow = slow
        self._distillation: Distillation | None = None
        if settings.distillation:
            teach, shared = slow.teach, context.shared
            teacher = teach if shared is None else partial(shared.call, teach)
            self._distillation = Distillation(settings, teacher, context.residuals)
        self.optimizer = settings.make_optimizer(self.parameters())
        self._lr = 1.0 if settings.lr is None else settings.lr  # else it is in the gradient
        self._backward = accel.Backward(context.model)
        self.graph = accel.Graph(
            self._take_all,
            device=context.device,
            generators=[generator, *objective.generators, *transform.generators],
            enabled=context.record and objective.recordable and context.shared is None,
        )
        self.capacity = 0

    def parameters(self) -> list[nn.Parameter]:
        """All that learns: of the model, then of the objective."""
        own = [p for p in self.context.model.parameters() if p.requires_grad]
        return [*own, *self.objective.parameters()]

    def begin(self, batch: Begun) -> list[Tensor]:
        """Tell the parts that a batch begins; returns their numbers for its steps."""
        rate = self.settings.slow_rate_at(batch.step // self.settings.passes)
        numbers = (self.transform.begin(batch), self.objective.begin(batch), rate)
        return [torch.tensor(own, dtype=torch.float64) for own in numbers]

    def take(self, x: Inputs, y: Tensor, trusted: Tensor, numbers: Sequence[Tensor]) -> Tensor:
        """Take the steps on a stream batch; returns the last loss, NaN if the batch was refused.

        Args:
            x: New samples on the model's device, ``(n, ...)``.
            y: Their units or targets.
            trusted: Whether the samples are of a sane scale.
            numbers: What :meth:`begin` returned.
        """
        head, device = self.context.head, self.context.device
        if accel.known(trusted) is False:
            self.guard.refuse(trusted)
            return torch.full((), float("nan"), device=device)
        capacity = 0 if head is None else head.capacity
        if capacity != self.capacity:
            self.graph.forget()
            fit_optimizer_(self.optimizer)
            self.capacity = capacity
        active = torch.empty(0) if head is None else head.active
        drawn = [self._draw(size) for size in self.objective.draws(self.settings.draws)]
        sizes = tuple(slots.shape[1] for slots in drawn)
        learn = which_learn(self.context.model)
        key = sizes, learn, self.transform.shape(0 if head is None else len(head.classes))
        parts = parts_of(x)
        loss: Tensor | tuple[Tensor, ...]
        try:
            slots = torch.cat(drawn, dim=1)
            others = y, slots, *numbers, active, trusted
            loss = self.graph(*parts.values(), *others, key=(tuple(parts), *key))
        except NumericalError:
            if self.guard.settings is None:
                raise
            self.guard.roll_back()
            loss = torch.full((), float("nan"), device=device)
        assert isinstance(loss, Tensor)
        return loss

    def _draw(self, size: int) -> Tensor:
        """Slots of the memory to replay in each pass, ``(passes, n)`` on the host."""
        passes, memory = self.settings.passes, self.context.memory
        if size > len(memory) and not self.settings.partial_replay:
            return torch.empty(passes, 0, dtype=torch.int64)
        if self.settings.replay == "kept":
            return memory.draw(size).expand(passes, -1)
        if self.settings.replay == "disjoint" and passes * size <= len(memory):
            return memory.draw(passes * size).view(passes, size)
        return torch.stack([memory.draw(size) for _ in range(passes)])

    def _take_all(
        self,
        *tensors: Tensor,
        key: tuple[tuple[str, ...], tuple[int, ...], Hashable, Hashable],
    ) -> Tensor:
        """All steps on a stream batch; on a GPU this is recorded.

        Args:
            *tensors: The parts of new samples, each ``(n, ...)``; their units or targets; what to
                replay in each pass, ``(passes, m)``; numbers of the transform; numbers of the
                objective; how far the slow weights go; which outputs stand for a class, empty in
                regression; whether the new samples are of a sane scale.
            key: The names of the parts, the size of each draw from memory, which parameters learn,
                and the shape of the transform.
        """
        names, draws, *_ = key
        x = from_parts(dict(zip(names, tensors, strict=False)))
        y, slots, numbers, own_numbers, rate, active, trusted = tensors[len(names) :]
        train_mode_(self.context.model)
        parameters = self.parameters()

        def gather(index: int) -> Batch:
            return self.context.memory.gather(slots[index], check=False)

        def join(index: int, replay: Batch) -> Step:
            raw, ys, extras = x, y, {}
            if len(replay):
                raw, ys = cat([x, replay.x]), torch.cat([y, replay.y])
                extras = dict(replay.extras)
            return Step(
                x=self.context.normalize(self.context.augment(raw)),
                y=self.context.targets(ys),
                raw=raw,
                new=len(x),
                draws=draws,
                extras=extras,
                index=index,
                active=None if self.context.head is None else active,
                numbers=numbers,
                own_numbers=own_numbers,
                new_share=self.settings.share_of_new,
            )

        new = None if self.settings.remembers_first else x
        others = [*self.transform.tensors(), *self.objective.tensors()]
        begin = partial(self.guard.begin, parameters, self._statistics(), others, new=new)
        # A graph starts sooner with one first node.
        first, _ = accel.parallel(partial(join, 0, gather(0)), begin)
        later = range(1, len(slots))
        loss, rest = accel.parallel(
            partial(self._take, first, parameters, rate),
            lambda: [join(i, gather(i)) for i in later],
        )
        for step in rest:
            loss = self._take(step, parameters, rate)
        self.guard.commit(loss, self.transform.ok(), trusted)
        if self.settings.has_slow and not self.settings.slow_at_steps:
            self.slow.follow(rate * self.guard.verdict.accepted)
        return loss

    def _take(self, step: Step, parameters: Sequence[nn.Parameter], rate: Tensor) -> Tensor:
        """One gradient step; returns its loss."""
        for parameter in parameters:
            parameter.grad = None
        with self._backward.forward(), self.transform.watch(step):
            outcome = self._evaluate(step)
        seen = outcome.step or step
        outputs = self.transform.observe(seen, outcome.outputs, self.context.forward_shared)
        jobs = [partial(self._differentiate, outcome.loss), partial(self.transform.prepare, seen)]
        if step.index == 0:
            ask = partial(self.guard.ask, replayed=seen.replayed, active=seen.active)
            jobs.append(partial(ask, seen.x, outputs))
        accel.parallel(*jobs)
        self.transform.rewrite_()
        if self.optimizer is not None:
            self.optimizer.step()
        else:
            moved: list[Tensor] = [p for p in parameters if p.grad is not None]
            grads = [p.grad for p in parameters if p.grad is not None]
            with torch.no_grad():
                torch._foreach_add_(moved, grads, alpha=-self._lr)
        if self.settings.has_slow and self.settings.slow_at_steps:
            self.slow.follow(rate)
        return outcome.loss.detach()

    def _evaluate(self, step: Step) -> Outcome:
        """The loss of one step."""
        if self._distillation is None:
            return self.objective(self.context.forward_shared, step)
        return self._distillation(self.objective, self.context.forward_shared, step)

    def _differentiate(self, loss: Tensor) -> None:
        """The gradients of a loss."""
        self._backward(loss)
        if self.context.shared is not None:
            own = [p for p in self.context.model.parameters() if p.requires_grad]
            self.context.shared.sum_gradients_(own)
            self.context.shared.average_statistics_()

    def _statistics(self) -> list[Tensor]:
        """What steps change beside what learns: of the model, the optimizer, the slow weights."""
        states = () if self.optimizer is None else self.optimizer.state.values()
        tensors = [
            *self.context.model.buffers(),
            *(value for values in states for value in values.values()),
            *self.slow.tensors(),
        ]
        return [t for t in tensors if isinstance(t, Tensor) and t.is_floating_point()]

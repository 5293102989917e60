"""Curvature as a gradient preconditioner.

It is not an optimizer. In any training loop::

    with curvature.record():
        outputs = model(x)
    curvature.update(outputs)  # before the graph is freed
    loss(outputs, y).backward()
    curvature.precondition_()  # rewrites .grad
    optimizer.step()

A step without ``update`` uses the last inverse again.

A kind of curvature is a subclass of :class:`~ocar.curvature.layerwise.LayerCurvature` that chooses
the blocks of the layers, see :mod:`ocar.curvature.blocks`. An object without a model has settings
only, see :mod:`ocar.curvature.specification`.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from ocar import accel
from ocar.config import require
from ocar.curvature.blocks import Blocks, Seen, layer_of
from ocar.curvature.cost import Work
from ocar.curvature.recorder import Recorder
from ocar.curvature.schedule import at_step
from ocar.curvature.selection import Selection
from ocar.curvature.specification import Specification
from ocar.curvature.table import table
from ocar.errors import CheckpointError, ConfigError, InputError, ModelError, NumericalError
from ocar.models.modes import Learning, is_compiled
from ocar.rng import make_generator
from ocar.state import with_prefix, without_prefix
from ocar.structure import Inputs, call

C = TypeVar("C", bound="Curvature")
P = ParamSpec("P")
R = TypeVar("R")


def full_precision(method: Callable[Concatenate[C, P], R]) -> Callable[Concatenate[C, P], R]:
    """Run a method without gradients and outside autocast, which would round the factors."""

    @wraps(method)
    def run(self: C, /, *args: P.args, **kwargs: P.kwargs) -> R:
        self._require_model()
        kind = self.device.type
        rounding = torch.is_autocast_enabled(kind)  # leaving autocast takes longer than this look
        outside = torch.autocast(kind, enabled=False) if rounding else nullcontext()
        with torch.no_grad(), outside:
            return method(self, *args, **kwargs)

    return run


@dataclass(eq=False, repr=False)
class Curvature(Specification, ABC):
    """Base of the preconditioners.

    Attributes:
        blocks: The statistics, and how they solve.
        step: Gradient steps taken: calls of :meth:`precondition_`.
        norm_ratio: ‖gradient after‖ / ‖gradient before‖ of the last step, with ``track_norms``.
        ok: Whether all estimates since :meth:`begin` were finite, a scalar of bool.
        most_classes: Only this many first outputs can stand for a class; None for all. An exact
            root leaves out the columns of the others.
        units: Units that the head counts as, a scalar, in the scale of its G and for when this
            starts again; None for the number of outputs that stand for a class.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.step = 0
        self.norm_ratio: Tensor | None = None
        self.most_classes: int | None = None
        self.units: Tensor | None = None
        self._shared: accel.SharedModel | None = None
        self._inverse_damping = 0.0  # τ of the present inverse; 0 if there is none
        if self.model is not None:
            self._start()

    def _start(self) -> None:
        """Set up what needs the model."""
        trainable = [p for p in self.model.parameters() if p.requires_grad]
        if not trainable:
            kind = type(self.model).__name__
            raise ModelError(f"{kind} has no parameter that requires a gradient.")
        if is_compiled(self.model):
            raise ModelError(
                f"{type(self.model).__name__} is compiled, and then does not call the hooks by "
                "which its curvature is recorded. Give the model itself, before torch.compile."
            )
        self.device = trainable[0].device
        self._fixed = Learning(self.model)
        self.selection = Selection(self.model, exclude=self.exclude, include=self.include)
        self.head = self._find_head()
        self.generator = make_generator(self.seed, "fisher", self.device)
        self.ok = torch.ones((), dtype=torch.bool, device=self.device)
        self._not_inverted = torch.zeros((), dtype=torch.int64, device=self.device)
        self._recorder = Recorder({}, self.model)
        self._seen: dict[str, Seen] = {}
        self._sums: dict[Blocks[Any], Callable[[], None]] = {}  # on their way between ranks
        self._batches = 0
        self._unseen: Set[str] = set()  # layers that the last forward pass did not show
        self.blocks = self._make_blocks()

    def _require_model(self) -> None:
        if not hasattr(self, "generator"):
            name = type(self).__name__
            raise ConfigError(
                f"{name} has no model. Give it one, {name}(model, ...), or give it to a learner: "
                "OCAR(model, curvature=...)."
            )

    def _require_same_parameters(self) -> None:
        """Raise if other parameters learn than at the start: their statistics are missing."""
        self._require_model()
        if changed := self._fixed.changes(self.model):
            raise ModelError(
                f"The layer or requires_grad of {', '.join(changed)} has changed since "
                f"{type(self).__name__} was made. Set it back, or make another of the model as it "
                "is now."
            )

    def share(self, shared: accel.SharedModel | None) -> None:
        """Estimate from the samples of all ranks.

        Raises:
            ConfigError: This kind of curvature works on one device only.
        """
        if shared is not None:
            raise ConfigError(
                f"{type(self).__name__} cannot be shared out over ranks. Use KFAC, EKFAC or FOOF, "
                "or one device."
            )

    def _find_head(self) -> str | None:
        # Also among frozen layers: a frozen head is still the head.
        linear = [n for n, m in self.model.named_modules() if isinstance(m, nn.Linear)]
        if self.head is None:
            return linear[-1] if linear else None
        known = self.head in dict(self.model.named_modules())
        require("head", self.head, known, f"the name of a layer: {', '.join(linear)}")
        return self.head

    # What a kind of curvature implements

    @abstractmethod
    def _make_blocks(self) -> list[Blocks[Any]]:
        """The blocks of the model."""

    @abstractmethod
    def _see(
        self, outputs: Tensor, columns: Tensor, weights: Tensor | None, active: Tensor | None
    ) -> dict[str, Seen]:
        """What each layer of the blocks saw.

        Args:
            outputs: What the model returned, ``(n, outputs)``, with its graph.
            columns: The Fisher's root with √weight multiplied in, ``(columns, n, outputs)``.
            weights: One weight a sample, ``(n,)``; None for equal ones.
            active: Which outputs stand for a class, ``(outputs,)`` of bool; None for all.
        """

    # What it offers

    def update(
        self,
        outputs: Tensor,
        *,
        weights: Tensor | None = None,
        targets: Tensor | None = None,
        active: Tensor | None = None,
        variance: Tensor | None = None,
    ) -> None:
        """Take the curvature of a batch into the moving average, and renew the inverse.

        Args:
            outputs: What the model returned inside :meth:`record`, ``(n, outputs)``, with its
                graph: call this before the graph is freed.
            weights: One non-negative weight a sample, ``(n,)``; 1 by default.
            targets: The labels, needed by ``fisher="empirical"`` alone.
            active: Which outputs stand for a class, ``(outputs,)`` of bool; all by default. When
                their number changes, the head's G starts again.
            variance: σ² of each output, ``(outputs,)``, in a regression; by default that of the
                settings.

        Raises:
            ModelError: No forward pass was recorded, or the outputs are not its; or other
                parameters learn than when the curvature was made.
            NumericalError: The curvature of the batch is not finite, or the averages have no
                inverse. On a GPU :meth:`check` raises this, so that nothing waits here.
        """
        self._require_same_parameters()
        before: dict[str, Tensor] = {}
        if accel.known(self.ok) is not None:
            before = {name: value.clone() for name, value in self.state_dict().items()}
        self.begin()
        self.estimate(outputs, weights=weights, targets=targets, active=active, variance=variance)
        damping = at_step(self.damping, self.step)
        self.renew(damping, at_step(self.ema, self.step))
        self._inverse_damping = damping
        finite = accel.known(self.ok)
        if finite is None:
            return
        try:
            self.check()
        finally:
            if not finite:
                self.load_state_dict(before)

    def precondition_(self) -> None:
        """Multiply the gradients with the damped inverse, in place.

        Raises:
            ModelError: Other parameters learn than when the curvature was made.
        """
        self._require_same_parameters()
        self.rewrite_()
        self.step += 1

    # The parts of a step, as a learner calls them. All but begin may be part of a CUDA graph.

    def begin(
        self,
        keep: Callable[[Iterable[Tensor]], object] = lambda tensors: None,
        work: Work | None = None,
    ) -> None:
        """Called before the steps on a batch, outside any recording.

        Args:
            keep: Called with averages that are about to be changed.
            work: The gradient steps on the batch, to bound the cost of the curvature by theirs.
                Only the first batch counts. None for no bound.
        """
        self._require_model()
        if work is not None and not any(block.ready for block in self.blocks):
            self._bound_cost(work)
        self.ok.fill_(True)
        for block in self.blocks:
            block.fit()
            if block.is_due(self._batches):
                keep(block.tensors())
                block.refresh()
        self._batches += 1

    def _bound_cost(self, work: Work) -> None:
        """Choose a form of the curvature that is cheap enough; there are no statistics yet."""

    def record(self) -> Recorder:
        """A context for the forward pass that :meth:`update` will use."""
        self._require_model()
        return self._recorder

    def try_recording(self, x: Inputs) -> None:
        """Raise a ``ModelError`` if a forward pass on these inputs cannot be recorded."""
        with self.record():
            call(self.model, x)
        self._recorder.clear()

    def follow(self) -> AbstractContextManager[object]:
        """A context for the forward pass of the loss; with it :meth:`apply_` may be faster."""
        stack = ExitStack()
        if self._shared is not None:  # the gradient is a sum over ranks
            return stack
        for block in self.blocks:
            stack.enter_context(block.following())
        return stack

    @full_precision
    def estimate(
        self,
        outputs: Tensor,
        *,
        weights: Tensor | None = None,
        targets: Tensor | None = None,
        active: Tensor | None = None,
        variance: Tensor | None = None,
    ) -> None:
        """Estimate the curvature of a batch; see :meth:`update`. It must be renewed afterwards."""
        if self._recorder.layers and not self._recorder.records:
            raise ModelError("No forward pass was recorded. Call the model inside record().")
        if outputs.dim() != 2 or not len(outputs):
            raise InputError(
                "outputs must have shape (n, outputs) with at least one sample; "
                f"given {tuple(outputs.shape)}."
            )
        if weights is not None and weights.shape != outputs.shape[:1]:
            raise InputError(
                f"weights must have one number for each of the {outputs.shape[0]} samples; "
                f"given shape {tuple(weights.shape)}."
            )
        if active is not None and active.shape != outputs.shape[1:]:
            raise InputError(
                f"active must have one entry for each of the {outputs.shape[1]} outputs; "
                f"given shape {tuple(active.shape)}."
            )
        likelihood = self.distribution(outputs, active, variance, most=self.most_classes)
        columns = self.root.columns(likelihood, self.generator, targets)
        if weights is not None:
            columns = columns * weights.to(columns.dtype).sqrt().view(1, -1, 1)
        self._seen = self._see(outputs, columns, weights, active)
        if self._shared is not None:  # they travel during the backward pass of the loss
            for block, seen in self._seen_blocks():
                block.estimate(seen)
                own = block.buffer, block.estimated(seen)
                self._sums[block] = self._shared.start_average_(*own, len(outputs))

    def _seen_blocks(self) -> Iterator[tuple[Blocks[Any], dict[str, Seen]]]:
        """The blocks with an estimate, and what their layers saw."""
        for block in self.blocks:
            seen = {name: self._seen[name] for name in block.layers if name in self._seen}
            if seen:
                yield block, seen

    @full_precision
    def renew(self, damping: Tensor | float, ema: Tensor | float) -> None:
        """Take the last estimate into the averages with weight ``ema``, and derive the inverse.

        An estimate that is not finite makes :attr:`ok` false and changes nothing. What this reads
        stays until :meth:`rewrite_`: a parallel backward pass must not reuse its memory.
        """
        for block, seen in self._seen_blocks():
            if self._shared is None:
                block.estimate(seen)
            else:
                self._sums.pop(block)()
            ok, inverted = block.renew(seen, ema, damping).unbind()
            self.ok &= ok
            self._not_inverted += ok & ~inverted

    def apply_(self) -> None:
        """Apply the inverse to the gradients, in place; see :meth:`rewrite_`."""
        for block in self.blocks:
            block.precondition_()

    @full_precision
    def rewrite_(self) -> None:
        """:meth:`precondition_` without counting a step, which a recording could not."""
        self._seen = {}
        if self.track_norms:
            before = self._gradient_norm()
            self.apply_()
            self.norm_ratio = self._gradient_norm() / before
        else:
            self.apply_()

    def check(self) -> None:
        """Raise a ``NumericalError`` if anything went wrong since the last call.

        On a GPU this waits, and an inverse that was not found is only warned of.
        """
        ok, failed = bool(self.ok), int(self._not_inverted)
        self.ok.fill_(True)
        self._not_inverted.zero_()
        if not ok:
            listed = ", ".join(name for block in self.blocks for name in block.infinite())
            where = f" in layer(s) {listed}" if listed else ""
            raise NumericalError(
                f"The curvature of a batch was not finite{where}, by step {self.step}. "
                "Nothing was changed. Check the inputs for extreme values, or try a smaller "
                "learning rate."
            )
        if failed:
            for block in self.blocks:
                if (reason := block.buffer.derived.pop("reason", None)) is not None:
                    raise NumericalError(reason)
            warnings.warn(
                f"{failed} time(s) by step {self.step} a layer's curvature could not be inverted "
                "in single precision; the inverse before was used again. A larger damping helps.",
                stacklevel=2,
            )

    def check_at_once(self) -> None:
        """:meth:`check` unless that would wait for the device."""
        if accel.known(self.ok) is not None:
            self.check()

    def _gradient_norm(self) -> Tensor:
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        if not grads:
            return torch.zeros((), device=self.device)
        return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))

    def eigenvalues(self) -> dict[str, Tensor]:
        """Eigenvalues of the damped curvature, ascending, for each layer."""
        damping = at_step(self.damping, self.step)
        return {
            name: block.eigenvalues(layer, damping)
            for block in self.blocks
            for name, layer in block.layers.items()
            if name in block.ready
        }

    def covered(self) -> dict[str, str]:
        """The kind of curvature of each parameter that has one, by name.

        Whether all uses of a weight are known is known after a first forward pass; before it, this
        is the best case.
        """
        kinds = {
            parameter: block.about
            for block in self.blocks
            for name, layer in block.layers.items()
            if name not in self._unseen
            for parameter in layer.parameters
        }
        return {name: kinds[p] for name, p in self.model.named_parameters() if p in kinds}

    def table(self) -> str:
        """Which parameters have which curvature, and their share; see :meth:`covered`."""
        self._require_model()
        return table(self.model, self.covered())

    def memory_usage(self) -> int:
        """Bytes of all statistics and inverses."""
        return sum(block.memory_usage() for block in self.blocks)

    # State

    def tensors(self) -> list[Tensor]:
        """Tensors that :meth:`renew` changes, for a roll back."""
        return [tensor for block in self.blocks for tensor in block.tensors()]

    def state_dict(self, *, checked: bool = True) -> dict[str, Tensor]:
        """Averages, step, generator, and the damping from which the inverse can be derived.

        Args:
            checked: False to take the state of a model whose layers were replaced since.

        Raises:
            ModelError: Other parameters learn than when the curvature was made.
        """
        if checked:
            self._require_same_parameters()
        return {
            **with_prefix("averages", self._averages()),
            "step": torch.tensor(self.step),
            "inverse_damping": torch.tensor(self._inverse_damping, dtype=torch.float64),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` gave.

        Raises:
            CheckpointError: A name is missing or unknown, or a shape does not fit.
        """
        plain = {"step", "inverse_damping", "generator"}
        unknown = [k for k in state if k not in plain and not k.startswith("averages.")]
        missing = sorted(plain - set(state))
        if unknown or missing:
            raise CheckpointError(f"Curvature state: missing {missing}, unknown {unknown}.")
        self._load_averages(without_prefix("averages", state))
        self.generator.set_state(state["generator"].cpu())
        self.step = int(state["step"])
        self._inverse_damping = float(state["inverse_damping"])
        for block in self.blocks:
            if self._inverse_damping > 0 and block.ready:
                block.prepare(self._inverse_damping)

    def _averages(self) -> dict[str, Tensor]:
        """The averages by name, for a checkpoint."""
        state: dict[str, Tensor] = {}
        for block in self.blocks:
            block.fit()
            state |= block.state()
        return state

    def _load_averages(self, averages: Mapping[str, Tensor]) -> None:
        """Check and take what :meth:`_averages` gave."""
        shapes = {name: shape for block in self.blocks for name, shape in block.shapes().items()}
        shapes |= dict.fromkeys([f"{name}.count" for name in shapes], ())
        given = {name: tuple(average.shape) for name, average in averages.items()}
        layers = {layer_of(name) for name in given}
        unknown = sorted(layers - {layer_of(name) for name in shapes})
        if unknown:
            raise CheckpointError(f"The checkpoint has curvature of {unknown[0]!r}, no layer here.")
        wrong = {name: shape for name, shape in given.items() if shapes.get(name) != shape}
        missing = [name for name in shapes if layer_of(name) in layers and name not in given]
        if wrong or missing:
            raise CheckpointError(
                f"The checkpoint has other curvature: {wrong or missing}. "
                f"Here: { ({name: shapes.get(name) for name in wrong or missing}) }."
            )
        for block in self.blocks:
            block.load(
                {n: average for n, average in averages.items() if layer_of(n) in block.layers}
            )

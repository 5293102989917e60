"""Curvature as a gradient preconditioner.

It is not an optimizer. In any training loop::

    with curvature.record():
        outputs = model(x)
    curvature.update(outputs)  # before the graph is freed
    loss(outputs, y).backward()
    curvature.precondition_()  # rewrites .grad
    optimizer.step()

``update`` may be left out in some steps: the last inverse is used again.

A kind of curvature is a subclass of :class:`~ocar.curvature.layerwise.LayerCurvature` that says
which blocks the layers have, see :mod:`ocar.curvature.blocks`. An object without a model is a
specification: ``bind`` gives it one.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass, fields, replace
from functools import wraps
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar

import torch
from torch import Tensor, nn

from ocar import accel
from ocar.config import require, require_one_of
from ocar.curvature.fisher import Categorical, FisherRoot, Gaussian, parse_root
from ocar.errors import CheckpointError, ConfigError, InputError, ModelError, NumericalError
from ocar.rng import make_generator
from ocar.state import with_prefix, without_prefix

Schedule = float | Callable[[int], float]
"""A hyper-parameter: a number, or a function of the number of gradient steps taken."""

LikelihoodName = Literal["categorical", "gaussian"]

C = TypeVar("C", bound="Curvature")
P = ParamSpec("P")
R = TypeVar("R")


def at_step(schedule: Schedule, step: int) -> float:
    """The value of a schedule at a step."""
    return schedule(step) if callable(schedule) else schedule


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
class Curvature(ABC):
    """Base of the preconditioners.

    Attributes:
        step: Gradient steps taken: calls of :meth:`precondition_`.
        norm_ratio: ‖gradient after‖ / ‖gradient before‖ of the last step, with ``track_norms``.
        ok: Whether all estimates since :meth:`begin` were finite, a scalar of bool.
        most_classes: Only this many first outputs can stand for a class; None for all. An exact
            root leaves out the columns of the others.
    """

    model: nn.Module = None  # type: ignore[assignment]
    """The model whose gradients are preconditioned; None for a specification."""

    _: KW_ONLY

    damping: Schedule = 1e-3
    """τ, a number or a function of the step."""

    ema: Schedule = 0.1
    """Weight of a new estimate in the moving average, in (0, 1]. The first is taken whole."""

    fisher: str | FisherRoot = "sketched(2)"
    """Root of the Fisher: ``"exact"``, ``"sketched(r)"``, ``"sampled(m)"``, ``"top(m)"`` or
    ``"empirical"``, see :mod:`ocar.curvature.fisher`."""

    likelihood: LikelihoodName = "categorical"
    """``"categorical"`` for logits, ``"gaussian"`` for regression."""

    variance: float = 1.0
    """σ² of a Gaussian likelihood."""

    head: str | None = None
    """Name of the layer that makes the outputs; by default the last linear layer."""

    track_norms: bool = False
    """Keep the ratio of gradient norms in ``norm_ratio``."""

    seed: int = 0
    """Seed of the random roots."""

    def __post_init__(self) -> None:
        check_schedule("damping", self.damping, "larger than 0", lambda v: 0 < v < float("inf"))
        check_schedule("ema", self.ema, "in (0, 1]", lambda v: 0 < v <= 1)
        require_one_of("likelihood", self.likelihood, ("categorical", "gaussian"))
        valid = 0 < self.variance < float("inf")
        require("variance", self.variance, valid, "larger than 0")
        self.root = parse_root(self.fisher)
        self.step = 0
        self.norm_ratio: Tensor | None = None
        self.most_classes: int | None = None
        self._inverse_damping = 0.0  # τ of the present inverse; 0 if there is none
        if self.model is not None:
            self._start()

    def _start(self) -> None:
        """Set up what needs the model."""
        trainable = [p for p in self.model.parameters() if p.requires_grad]
        if not trainable:
            name = type(self.model).__name__
            raise ModelError(f"{name} has no parameter that requires a gradient.")
        self.device = trainable[0].device
        self.head = self._find_head()
        self.generator = make_generator(self.seed, "fisher", self.device)
        self.ok = torch.ones((), dtype=torch.bool, device=self.device)
        self._not_inverted = torch.zeros((), dtype=torch.int64, device=self.device)

    def arguments(self) -> dict[str, Any]:
        """The arguments that make it again, without the model."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "model"}

    def bind(self, model: nn.Module, **arguments: Any) -> Self:
        """The same kind of curvature for a model.

        Args:
            model: The model.
            **arguments: Arguments in place of the present ones.
        """
        return replace(self, model=model, **arguments)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.arguments().items())
        model = "" if self.model is None else f"{type(self.model).__name__}, "
        return f"{type(self).__name__}({model}{shown})"

    def _find_head(self) -> str | None:
        # Also among frozen layers: a frozen head is still the head.
        linear = [n for n, m in self.model.named_modules() if isinstance(m, nn.Linear)]
        if self.head is None:
            return linear[-1] if linear else None
        if self.head not in dict(self.model.named_modules()):
            raise ConfigError(
                f"Invalid head={self.head!r}. Must be the name of a layer: {', '.join(linear)}."
            )
        return self.head

    # What a kind of curvature implements

    @abstractmethod
    def record(self) -> AbstractContextManager[object]:
        """A context for the forward pass that :meth:`update` will use."""

    @abstractmethod
    def estimate(
        self,
        outputs: Tensor,
        *,
        weights: Tensor | None = None,
        targets: Tensor | None = None,
        active: Tensor | None = None,
    ) -> None:
        """Estimate the curvature of a batch; see :meth:`update`. It must be renewed afterwards."""

    @abstractmethod
    def renew(self, damping: Tensor | float, ema: Tensor | float) -> None:
        """Take the last estimate into the averages, and derive the inverse from them.

        An estimate that is not finite makes :attr:`ok` false and changes nothing.

        Args:
            damping: τ.
            ema: Weight of the new estimate.
        """

    @abstractmethod
    def apply_(self) -> None:
        """Apply the inverse to the gradients, in place."""

    @abstractmethod
    def tensors(self) -> list[Tensor]:
        """Tensors that :meth:`renew` changes, for a roll back."""

    @abstractmethod
    def eigenvalues(self) -> dict[str, Tensor]:
        """Eigenvalues of the damped curvature, ascending, for each block."""

    @abstractmethod
    def memory_usage(self) -> int:
        """Bytes of all statistics and inverses."""

    @abstractmethod
    def _averages(self) -> dict[str, Tensor]:
        """The averages by name, for a checkpoint."""

    @abstractmethod
    def _load_averages(self, averages: Mapping[str, Tensor]) -> None:
        """Check and take what :meth:`_averages` gave."""

    @abstractmethod
    def _invert(self, damping: float) -> None:
        """Derive the inverse from the averages as they are."""

    def follow(self) -> AbstractContextManager[None]:
        """A context for the forward pass of the loss; with it :meth:`apply_` may be faster."""
        return nullcontext()

    def begin(self) -> None:
        """Called before the steps on a batch, outside any recording.

        Raises:
            ConfigError: This is a specification without a model.
        """
        self._require_model()
        self.ok.fill_(True)

    def _require_model(self) -> None:
        if not hasattr(self, "generator"):
            name = type(self).__name__
            raise ConfigError(
                f"{name} has no model. Give it one, {name}(model, ...), or give it to a learner: "
                "OCAR(model, curvature=...)."
            )

    # What it offers

    def update(
        self,
        outputs: Tensor,
        *,
        weights: Tensor | None = None,
        targets: Tensor | None = None,
        active: Tensor | None = None,
    ) -> None:
        """Take the curvature of a batch into the moving average, and renew the inverse.

        Args:
            outputs: What the model returned inside :meth:`record`, ``(n, outputs)``, with its
                graph: call this before the graph is freed.
            weights: One non-negative weight a sample, ``(n,)``; 1 by default.
            targets: The labels, needed by ``fisher="empirical"`` alone.
            active: Which outputs stand for a class, ``(outputs,)`` of bool; all by default. When
                their number changes, the head's G starts again.

        Raises:
            ModelError: No forward pass was recorded, or the outputs are not its.
            NumericalError: The curvature of the batch is not finite, or the averages have no
                inverse. On a GPU :meth:`check` raises this, so that nothing waits here.
        """
        self._require_model()
        before: dict[str, Tensor] = {}
        if accel.known(self.ok) is not None:
            before = {name: value.clone() for name, value in self.state_dict().items()}
        self.begin()
        self.estimate(outputs, weights=weights, targets=targets, active=active)
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
        """Multiply the gradients with the damped inverse, in place."""
        self.rewrite_()
        self.step += 1

    @full_precision
    def rewrite_(self) -> None:
        """:meth:`precondition_` without counting a step, which a recording could not."""
        if self.track_norms:
            before = self._gradient_norm()
            self.apply_()
            self.norm_ratio = self._gradient_norm() / before
        else:
            self.apply_()

    def check(self) -> None:
        """Say what went wrong since the last call, if anything. On a GPU this waits.

        Raises:
            NumericalError: The curvature of the last batch was not finite, or nothing could be
                inverted.
        """
        ok, failed = bool(self.ok), int(self._not_inverted)
        self.ok.fill_(True)
        self._not_inverted.zero_()
        if not ok:
            raise NumericalError(
                f"The curvature of a batch was not finite{self._where()}, by step {self.step}. "
                "Nothing was changed. Check the inputs for extreme values, or try a smaller "
                "learning rate."
            )
        if failed:
            reason = self._reason()
            if reason is not None:
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

    def _where(self) -> str:
        """In which layers an estimate was not finite, where that is known."""
        return ""

    def _reason(self) -> str | None:
        """Why there is no inverse, where that is known."""
        return None

    def _gradient_norm(self) -> Tensor:
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        if not grads:
            return torch.zeros((), device=self.device)
        return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))

    def _columns(
        self, outputs: Tensor, weights: Tensor | None, targets: Tensor | None, active: Tensor | None
    ) -> Tensor:
        """The Fisher's root for a batch with √weight multiplied in, ``(columns, n, outputs)``."""
        if outputs.dim() != 2:
            raise InputError(f"outputs must have shape (n, outputs); given {tuple(outputs.shape)}.")
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
        if self.likelihood == "gaussian":
            root = self.root.columns(Gaussian(outputs, self.variance), self.generator, targets)
        else:
            root = self.root.columns(
                Categorical(outputs, active, most=self.most_classes), self.generator, targets
            )
        if weights is None:
            return root
        return root * weights.to(root.dtype).sqrt().view(1, -1, 1)

    def state_dict(self) -> dict[str, Tensor]:
        """Averages, step, generator, and the damping from which the inverse can be derived."""
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
        if self._inverse_damping > 0:
            self._invert(self._inverse_damping)


def check_schedule(
    name: str, schedule: Schedule, allowed: str, valid: Callable[[float], bool]
) -> None:
    """Raise if a hyper-parameter is out of range; a schedule is judged by its value at step 0."""
    value = at_step(schedule, 0)
    if not valid(value):
        shown = f"{name}(0)={value!r}" if callable(schedule) else f"{name}={value!r}"
        raise ConfigError(f"Invalid {shown}. Must be {allowed}.")

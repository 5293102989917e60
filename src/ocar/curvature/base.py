"""What every curvature has in common: capture, update, precondition.

A curvature is a gradient preconditioner, not an optimizer. In any training loop::

    with curvature.capture():
        outputs = model(x)
    curvature.update(outputs, weights=w)  # before the graph is freed
    loss(outputs, y).backward()
    curvature.precondition_()  # rewrites .grad
    optimizer.step()

``update`` may be left out in some steps: the last inverse is used again.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Concatenate, Literal, ParamSpec, TypeVar, cast

import torch
from torch import Tensor, nn

from ocar.accel.streams import is_capturing
from ocar.curvature.fisher import Categorical, FisherRoot, Gaussian, parse_root
from ocar.curvature.recorder import Capture
from ocar.errors import CheckpointError, ConfigError, InputError, ModelError, NumericalError
from ocar.rng import make_generator

Schedule = float | Callable[[int], float]
"""A hyper-parameter: a number, or a function of the number of gradient steps taken.

In a captured step the function is called with a scalar tensor and must return one."""

LikelihoodName = Literal["categorical", "gaussian"]

_C = TypeVar("_C", bound="Curvature")
_P = ParamSpec("_P")
_R = TypeVar("_R")


def at_step(schedule: Schedule, step: int) -> float:
    """The value of a schedule at a step."""
    return schedule(step) if callable(schedule) else schedule


def at_clock(schedule: Schedule, clock: Tensor) -> Tensor | float:
    """The value of a schedule at a step that only the device knows."""
    return cast("Callable[[Tensor], Tensor]", schedule)(clock) if callable(schedule) else schedule


def full_precision(
    method: Callable[Concatenate[_C, _P], _R],
) -> Callable[Concatenate[_C, _P], _R]:
    """Run a method without gradients and outside autocast, which would round the factors."""

    @wraps(method)
    def run(self: _C, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        kind = self._device.type
        rounding = torch.is_autocast_enabled(kind)  # to leave it takes longer than to look
        outside = torch.autocast(kind, enabled=False) if rounding else nullcontext()
        with torch.no_grad(), outside:
            return method(self, *args, **kwargs)

    return run


class Curvature(ABC):
    """Base of the preconditioners.

    Args:
        model: The model whose gradients are preconditioned.
        damping: τ, a number or a function of the step.
        ema: Weight of a new estimate in the moving average, in (0, 1].
        fisher: Root of the Fisher, see :mod:`ocar.curvature.fisher`.
        likelihood: ``"categorical"`` for logits, ``"gaussian"`` for regression.
        variance: σ² of a Gaussian likelihood.
        track_norms: Keep the ratio of gradient norms in :attr:`norm_ratio`.
        seed: Seed of the random roots.

    Attributes:
        most_classes: Where outputs are spare: no class is beyond the first so many. An exact root
            leaves out the columns of the others on a GPU too, which cannot be asked for the number.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        damping: Schedule,
        ema: Schedule,
        fisher: str | FisherRoot,
        likelihood: LikelihoodName,
        variance: float,
        track_norms: bool,
        seed: int,
    ) -> None:
        check_schedule("damping", damping, "larger than 0", lambda value: 0 < value < float("inf"))
        check_schedule("ema", ema, "in (0, 1]", lambda value: 0 < value <= 1)
        if likelihood not in ("categorical", "gaussian"):
            raise ConfigError(f"Invalid {likelihood=}. Must be 'categorical' or 'gaussian'.")
        if not 0 < variance < float("inf"):
            raise ConfigError(f"Invalid {variance=}. Must be larger than 0.")
        trainable = [p for p in model.parameters() if p.requires_grad]
        if not trainable:
            raise ModelError(f"{type(model).__name__} has no parameter that requires a gradient.")
        self.model = model
        self.damping = damping
        self.ema = ema
        self.fisher = parse_root(fisher)
        self.most_classes: int | None = None
        self.likelihood = likelihood
        self.variance = variance
        self.track_norms = track_norms
        self.seed = seed
        self.step = 0
        """Gradient steps taken: calls of :meth:`precondition_`."""
        self.norm_ratio: Tensor | None = None
        """‖gradient after‖ / ‖gradient before‖ of the last step, with ``track_norms``."""
        self._device = trainable[0].device
        self.generator = make_generator(seed, "fisher", self._device)
        self._stale = False
        self._inverse_step = -1
        self.clock: Tensor | None = None
        """The step as a scalar on the device, where steps are captured as a graph."""
        self._trouble = torch.zeros(2, dtype=torch.int64, device=self._device)

    @abstractmethod
    def capture(self) -> Capture:
        """A context manager for the forward pass that :meth:`update` will use."""

    def follow(self) -> AbstractContextManager[None]:
        """A context manager for the forward pass of the loss that is to be differentiated.

        It may be left out; with it :meth:`precondition_` may be faster.
        """
        return nullcontext()

    @abstractmethod
    def update(
        self,
        outputs: Tensor,
        *,
        weights: Tensor | None = None,
        targets: Tensor | None = None,
        active: Tensor | None = None,
        accepted: Tensor | None = None,
    ) -> None:
        """Take the curvature of a batch into the moving average.

        Args:
            outputs: What the model returned inside :meth:`capture`, ``(n, outputs)``,
                with its graph: call this before the graph is freed.
            weights: One non-negative weight a sample, ``(n,)``; 1 by default.
            targets: The labels, needed by ``fisher="empirical"`` alone.
            active: Which outputs exist, ``(outputs,)`` of bool; all by default.
            accepted: A scalar of bool on the device; where it is False the averages stay as they
                are. In a captured step they do too if the curvature is not finite, and
                :meth:`check` says nothing of it.
        """

    @abstractmethod
    def _invert(self, damping: float) -> None:
        """Derive the inverse from the averages."""

    @abstractmethod
    def _rewrite_gradients(self) -> None:
        """Apply the inverse to every ``.grad`` that is covered."""

    @abstractmethod
    def _averages(self) -> dict[str, Tensor]:
        """The averages by name, for a checkpoint."""

    @abstractmethod
    def _load_averages(self, averages: Mapping[str, Tensor]) -> None:
        """Check and take what :meth:`_averages` gave."""

    @abstractmethod
    def eigenvalues(self) -> dict[str, Tensor]:
        """Eigenvalues of the damped curvature, ascending, for each block."""

    @abstractmethod
    def memory_usage(self) -> int:
        """Bytes of all factors and inverses."""

    @full_precision
    def precondition_(self) -> None:
        """Multiply the gradients with the damped inverse, in place.

        The inverse is renewed when :meth:`update` was called since the last time.
        """
        self.refresh()
        if self.track_norms:
            before = self._gradient_norm()
            self._rewrite_gradients()
            self.norm_ratio = self._gradient_norm() / before
        else:
            self._rewrite_gradients()
        if not is_capturing(self._device):  # then :meth:`replayed` counts
            self.step += 1

    @full_precision
    def refresh(self) -> None:
        """Renew the inverse now, if :meth:`update` was called since the last time."""
        if self._stale:
            self._renew_inverse(self.step)

    def replayed(self, steps: int, *, renewed: int) -> None:
        """A graph of so many captured steps has run.

        Args:
            steps: Gradient steps in it.
            renewed: In which of them the inverse was renewed last, from 0.
        """
        self._inverse_step, self._stale = self.step + renewed, False
        self.step += steps

    def check(self) -> None:
        """Look whether captured steps had trouble, which cannot be said at once.

        This waits for the device.

        Raises:
            NumericalError: A batch had a curvature that was not finite.
        """
        if self._device.type != "cuda":
            return
        infinite, failed = self._trouble.tolist()
        self._trouble.zero_()
        if infinite:
            raise NumericalError(
                f"The curvature of a batch was not finite, by step {self.step}. "
                "Check the inputs for extreme values, or try a smaller learning rate."
            )
        if failed:
            warnings.warn(
                f"{failed} time(s) by step {self.step} a layer's curvature could not be inverted "
                "in single precision; the inverse before was used again. A larger damping helps.",
                stacklevel=2,
            )

    def _renew_inverse(self, step: int) -> None:
        self._invert(at_step(self.damping, step))
        self._inverse_step = step
        self._stale = False

    def _gradient_norm(self) -> Tensor:
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        if not grads:
            return torch.zeros((), device=self._device)
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
            root = self.fisher.columns(Gaussian(outputs, self.variance), self.generator, targets)
        else:
            root = self.fisher.columns(
                Categorical(outputs, active, most=self.most_classes), self.generator, targets
            )
        if weights is None:
            return root
        return root * weights.to(root.dtype).sqrt().view(1, -1, 1)

    def state_dict(self) -> dict[str, Tensor]:
        """Averages, step and generator; the inverse is derived from them.

        The step at which the inverse was made is kept too, so that a restored
        curvature goes on exactly.
        """
        state = {f"averages.{name}": value for name, value in self._averages().items()}
        state["step"] = torch.tensor(self.step)
        state["inverse_step"] = torch.tensor(-1 if self._stale else self._inverse_step)
        state["generator"] = self.generator.get_state()
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` gave.

        Raises:
            CheckpointError: A name is missing or unknown, or a shape does not fit.
        """
        plain = {"step", "inverse_step", "generator"}
        unknown = [k for k in state if k not in plain and not k.startswith("averages.")]
        missing = sorted(plain - set(state))
        if unknown or missing:
            raise CheckpointError(f"Curvature state: missing {missing}, unknown {unknown}.")
        prefix = "averages."
        self._load_averages(
            {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
        )
        self.generator.set_state(state["generator"].cpu())
        self.step = int(state["step"])
        inverse_step = int(state["inverse_step"])
        self._stale = inverse_step == -1 and bool(self._averages())
        if inverse_step >= 0:
            self._renew_inverse(inverse_step)


def check_schedule(
    name: str, schedule: Schedule, allowed: str, valid: Callable[[float], bool]
) -> None:
    """Refuse a hyper-parameter out of range, a schedule by its value at step 0."""
    value = at_step(schedule, 0)
    if not valid(value):
        shown = f"{name}(0)={value!r}" if callable(schedule) else f"{name}={value!r}"
        raise ConfigError(f"Invalid {shown}. Must be {allowed}.")

"""OCAR inside Avalanche: a plugin that preconditions the gradient of a strategy.

The strategy keeps its model, loss, memory and optimizer. The plugin records the forward pass of
each training iteration, updates the curvature with the mini-batch, in which replayed samples weigh
more than new ones, and rewrites the gradients after the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ocar.curvature import Curvature
from ocar.errors import InputError, MissingPackageError, ModelError
from ocar.install import install_line
from ocar.methods.objective import Begun
from ocar.methods.ocar import OCARSettings, OCARTransform

try:
    from avalanche.benchmarks.utils.data_loader import ReplayDataLoader
    from avalanche.models import IncrementalClassifier, MultiTaskModule
    from avalanche.training.plugins import SupervisedPlugin
except ImportError as error:
    raise MissingPackageError(
        f"The plugin needs Avalanche, and {error}: {install_line('avalanche')}"
    ) from error

__all__ = ["OCARPlugin", "OCARSettings", "replayed_by_loader"]


class OCARPlugin(SupervisedPlugin):
    """Gives a supervised strategy of Avalanche the curvature-aware gradient.

    Put it after plugins that change the loss, and before plugins that use gradients. OCAR is meant
    for plain SGD. Its learning rate at the first experience is also the initial damping, unless
    ``settings.tau`` is given.

    An iteration of the first epoch over an experience is a stream batch; further epochs are further
    passes over it. So with ``fisher_passes="first"`` the curvature is updated in the first epoch
    only, which suits the experiences of one mini-batch that ``split_online_stream`` makes; use
    ``"every"`` for longer ones.

    A head may grow (``IncrementalClassifier``). Models with one head a task are refused.

    Example::

        settings = OCARSettings(tau_step=6e-7, ema=0.01, n_new=2)
        plugins = [ReplayPlugin(mem_size=100), OCARPlugin(settings)]
        strategy = Naive(model=model, optimizer=SGD(model.parameters(), lr=1e-4), plugins=plugins)

    Args:
        settings: Settings of the transform.
        head: Name of the output layer; by default the last linear one.
        replayed: From the strategy to a mask of the replayed samples in ``strategy.mb_y``, ``(n,)``
            bool. By default :func:`replayed_by_loader`, which fits ``ReplayPlugin``.
        seed: Seed of the random root of the Fisher.

    Attributes:
        transform: The transform; None before the first experience.
        classes: The labels seen in new samples.
    """

    def __init__(
        self,
        settings: OCARSettings,
        *,
        head: str | None = None,
        replayed: Callable[[Any], Tensor] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.settings = settings
        self.head = head
        self.replayed = replayed
        self.seed = seed
        self.transform: OCARTransform | None = None
        self.classes: set[int] = set()
        self._parameters: list[nn.Parameter] = []
        self._watching = ExitStack()

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Make the curvature, or adapt it to a changed model."""
        model = strategy.model
        parameters = list(model.parameters())
        if self.transform is not None and [*map(id, parameters)] == [*map(id, self._parameters)]:
            return
        if any(isinstance(module, MultiTaskModule) for module in model.modules()):
            raise ModelError(
                f"{type(model).__name__} chooses an output layer by the task label. OCAR needs one "
                "output layer for all samples, such as nn.Linear or IncrementalClassifier."
            )
        lr = strategy.optimizer.param_groups[0]["lr"]
        curvature = self.settings.make_curvature(
            model, lr=lr, head=self.head, likelihood="categorical", seed=self.seed
        )
        if self.transform is None:
            self.transform = OCARTransform(self.settings, curvature, joint=True, lr=lr, passes=1)
        else:
            carry_over(self.transform.curvature, curvature)
            self.transform.curvature = curvature
        self._parameters = parameters

    def before_forward(self, strategy: Any, **kwargs: Any) -> None:
        """Count the classes of new samples, and start to record the forward pass."""
        assert self.transform is not None
        self._watching.close()  # after an iteration that raised
        if strategy.clock.train_exp_epochs == 0:
            labels = strategy.mb_y[~self._replayed(strategy)].tolist()
            self.classes.update(labels)
            step = self.transform.curvature.step
            self.transform.begin(Begun(units=labels, known=len(self.classes), step=step))
        self._watching.enter_context(self.transform.curvature.follow())
        if self._renews(strategy) and self.settings.fisher_forward == "shared":
            self._watching.enter_context(self.transform.curvature.record())

    def after_forward(self, strategy: Any, **kwargs: Any) -> None:
        """Update the curvature with the mini-batch."""
        self._watching.close()
        if not self._renews(strategy):
            return
        assert self.transform is not None
        curvature, outputs = self.transform.curvature, strategy.mb_output
        if self.settings.fisher_forward == "own":
            with curvature.record():
                outputs = strategy.forward()
        weights = torch.ones(len(outputs), device=outputs.device)
        weights[self._replayed(strategy)] = self.transform.replay_weight
        active = active_outputs(strategy.model, outputs)
        if self.settings.head_size == "labels":
            curvature.units = torch.tensor(max(self.classes) + 1, device=outputs.device)
        curvature.update(outputs, weights=weights, targets=strategy.mb_y, active=active)

    def after_backward(self, strategy: Any, **kwargs: Any) -> None:
        """Precondition the gradients."""
        assert self.transform is not None
        self.transform.curvature.precondition_()

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Raise errors of steps that ran asynchronously."""
        assert self.transform is not None
        self.transform.check()

    def report(self) -> dict[str, float]:
        """τ, the weight of replayed samples, and the ratio of norms if it is tracked."""
        values = {} if self.transform is None else self.transform.report()
        return {name: float(value) for name, value in values.items()}

    def _renews(self, strategy: Any) -> bool:
        return strategy.clock.train_exp_epochs == 0 or self.settings.fisher_passes == "every"

    def _replayed(self, strategy: Any) -> Tensor:
        if self.replayed is None:
            return replayed_by_loader(strategy)
        mask = self.replayed(strategy)
        if mask.dtype != torch.bool or mask.shape != strategy.mb_y.shape[:1]:
            raise InputError(
                f"replayed must give a bool for each of {len(strategy.mb_y)} samples; "
                f"given {mask.dtype} of shape {tuple(mask.shape)}."
            )
        return mask


def replayed_by_loader(strategy: Any) -> Tensor:
    """Which samples of the mini-batch a ``ReplayDataLoader`` took from memory, ``(n,)`` bool.

    It puts them after the new ones. There are ``batch_size`` new ones, fewer in an epoch's last
    mini-batch. Without such a loader all samples are new.

    Raises:
        InputError: No such loader makes this mini-batch; ``OCARPlugin`` needs ``replayed``.
    """
    loader, labels = strategy.dataloader, strategy.mb_y
    mask = torch.zeros(len(labels), dtype=torch.bool, device=labels.device)
    if not isinstance(loader, ReplayDataLoader):
        return mask
    size, done = loader.batch_sizes[0], strategy.clock.train_epoch_iterations
    new = min(size, len(loader.datasets[0]) - done * size)
    behind = len(labels) - new
    if loader.distributed_sampling or not 0 <= behind <= sum(loader.batch_sizes[1:]):
        raise InputError(
            f"Of {len(labels)} samples {new} should be new and at most "
            f"{sum(loader.batch_sizes[1:])} replayed. Say which are: OCARPlugin(replayed=...)."
        )
    mask[new:] = True
    return mask


def active_outputs(model: nn.Module, outputs: Tensor) -> Tensor:
    """Which outputs stand for a class, ``(outputs,)`` bool: all that are not masked."""
    masked = [m for m in model.modules() if isinstance(m, IncrementalClassifier) and m.masking]
    if masked:
        units: Tensor = masked[-1].active_units
        return units.bool()
    return torch.ones(outputs.shape[1], dtype=torch.bool, device=outputs.device)


def carry_over(old: Curvature, new: Curvature) -> None:
    """Copy the curvature of a model to that of the same model with a larger head.

    Raises:
        ModelError: More than the outputs of the head has changed.
    """
    head = getattr(new, "head", None)
    state = old.state_dict(checked=False)
    name = f"averages.{head}.G"
    if head is not None and name in state:
        outputs: Any = new.model.get_submodule(head).out_features
        missing = outputs - state[name].shape[-1]  # rows and columns of 0 for new outputs
        state[name] = functional.pad(state[name], (0, missing, 0, missing))
    try:
        new.load_state_dict(state)
    except ValueError as error:
        raise ModelError(
            f"The model has changed in other ways than by outputs of {head!r}: {error}"
        ) from error

"""What a learner is given: checked before something changes, then made inputs of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ocar import accel
from ocar.augment import scale_to_unit
from ocar.errors import CheckpointError, InputError, OcarError
from ocar.methods.settings import LearnerSettings
from ocar.models.head import GrowingHead, check_shape
from ocar.models.latent import LatentReplay
from ocar.models.modes import evaluating
from ocar.rng import make_generator
from ocar.standardize import Keep, RunningScale, load_scale

_TRIED = 7  # samples of the first batch: with one alone, places and samples cannot be told apart

_LOOKUPS = (nn.Embedding, nn.EmbeddingBag)  # a model with one may be given indices


class Item(NamedTuple):
    """Shape and type of one sample of a stream."""

    shape: torch.Size
    dtype: torch.dtype


def check_samples(x: Tensor, *, like: Item | None) -> Item:
    """Shape and type of raw samples ``(n, ...)``.

    Raises:
        InputError: They are not finite, of the wrong type, or unlike those before (``like``).
    """
    if not isinstance(x, Tensor) or x.dim() < 2:
        raise InputError(f"x must be a tensor (n, ...) of samples; given {_shown(x)}.")
    if x.dtype != torch.uint8 and not x.is_floating_point():
        raise InputError(f"x must be uint8 or floating point; given {x.dtype}.")
    item = Item(x.shape[1:], x.dtype)
    if like is not None and item != like:
        raise InputError(
            f"x must hold samples of shape {tuple(like.shape)} and {like.dtype}, as before; "
            f"given {tuple(item.shape)} and {item.dtype}."
        )
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        bad = int((~torch.isfinite(x)).flatten(1).any(1).sum())
        raise InputError(f"x must be finite; {bad} of {x.shape[0]} samples hold NaN or Inf.")
    return item


def _check_labels(y: Tensor) -> list[int]:
    """Labels as integers on the host."""
    if y.dim() != 1 or y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise InputError(
            f"y must be integer labels of shape (n,); given {y.dtype} of shape {tuple(y.shape)}."
        )
    labels: list[int] = y.tolist()
    if min(labels) < 0:
        raise InputError(f"Labels must be at least 0; given {min(labels)}.")
    return labels


def _shown(value: object) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__


class Intake:
    """Checks batches, gives new labels their units, and makes inputs of the model.

    Args:
        settings: Say how samples are normalised and augmented.
        model: The model that learns.
        head: Its output layer; None in regression.
        like: A parameter; inputs have its device and type.
        latent: Has the frozen backbone in front of the model, if there is one.

    Attributes:
        trial: What else to try with the model and some inputs before the first batch.
        draws: A context in which layers may draw random numbers without a trace.
        item: Shape and type of the samples; None before the first.
        stored: Shape and type of what the memory stores of them: features behind a backbone.
        outputs: Outputs of the model; 0 before the first sample.
        generator: Draws the augmentation.
        inputs: Mean and variance of the samples so far, if they are standardised.
        targets: Those of the regression targets.
    """

    def __init__(
        self,
        settings: LearnerSettings,
        model: nn.Module,
        head: GrowingHead | None,
        *,
        like: nn.Parameter,
        latent: LatentReplay | None = None,
    ) -> None:
        self.item: Item | None = None
        self.stored: Item | None = None
        self.outputs = 0
        self.trial: Callable[[nn.Module, Tensor], None] = _nothing
        self.draws: Callable[[], AbstractContextManager[None]] = nullcontext
        self.generator = make_generator(settings.seed, "augment", like.device)
        self.inputs, self.targets = RunningScale(), RunningScale()
        self._settings = settings
        self._model = model
        self._head = head
        self._device, self._dtype = like.device, like.dtype
        # A method and no module: nothing of a frozen backbone has to be undone.
        self._features = None if latent is None else latent.features
        self._takes_indices = any(isinstance(m, _LOOKUPS) for m in model.modules())
        self._tried = False

    def prepare(self, x: Tensor, inputs: RunningScale | None = None) -> Tensor:
        """From raw samples on any device to inputs of the model; ``inputs`` are statistics."""
        return (inputs or self.inputs)(self._rescale(self.features(x))).to(self._dtype)

    def features(self, x: Tensor) -> Tensor:
        """From raw samples on any device to stored ones on the model's: features, or the same."""
        x = x.to(self._device, non_blocking=True)
        return x if self._features is None else self._features(self._rescale_raw(x))

    def normalize(self, x: Tensor) -> Tensor:
        """From stored samples on the model's device to inputs of the model."""
        return self.inputs(self._rescale(x)).to(self._dtype)

    def rescale(self, x: Tensor) -> Tensor:
        """As :meth:`normalize`, but not standardised: the scale that the user chose."""
        return self._rescale(x).to(self._dtype)

    def _rescale(self, x: Tensor) -> Tensor:
        return x if self._features is not None else self._rescale_raw(x)

    def _rescale_raw(self, x: Tensor) -> Tensor:
        normalize = self._settings.normalize
        return scale_to_unit(x) if normalize is None else normalize(x)

    def standardize(self, y: Tensor) -> Tensor:
        """From raw targets on the model's device to what the model is to predict."""
        return self.targets(y).to(y.dtype)

    def standardizes(self, dtype: torch.dtype) -> bool:
        """Whether inputs of a type, or the targets, are standardised."""
        return self._standardizes_inputs(dtype) or self._standardizes_targets

    def _standardizes_inputs(self, dtype: torch.dtype) -> bool:
        wanted = self._settings.standardize
        by_default = self._settings.normalize is None and dtype.is_floating_point
        by_default = self._features is not None or (by_default and not self._takes_indices)
        return by_default if wanted is None else wanted

    @property
    def _standardizes_targets(self) -> bool:
        return self._head is None and self._settings.standardize is not False

    def follow(self, x: Tensor, y: Tensor, keep: Keep) -> None:
        """Take a batch of :meth:`take` into the statistics; ``keep`` is called before."""
        if self._standardizes_inputs(x.dtype):
            self.inputs.update(self._rescale(x), keep)
        if self._standardizes_targets:
            self.targets.update(y.to(self._device, non_blocking=True), keep)

    def augment(self, x: Tensor) -> Tensor:
        """From stored samples to augmented ones, another draw each time; features as they are."""
        return x if self._features is not None else self._augment_raw(x)

    def _augment_raw(self, x: Tensor) -> Tensor:
        augment = self._settings.augment
        return x if augment is None else augment(x, self.generator)

    def _encode(self, x: Tensor) -> Tensor:
        """From raw samples to stored ones on the model's device; before a backbone augmented."""
        x = x.to(self._device, non_blocking=True)
        if self._features is None:
            return x
        with _fails_as_input_error("backbone", x):
            features = self.features(self._augment_raw(x))
        finite = torch.isfinite(features).all()
        # Nothing waits for a GPU but the first batch; later ones are the guard's.
        if (bool(finite) if self.stored is None else accel.known(finite)) is False:
            raise InputError(
                f"The backbone gives NaN or Inf as {features.dtype}. If float16 is too small for "
                "its features, give LatentReplay another dtype."
            )
        return features

    def take(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, list[int]]:
        """Check a whole batch, then give new labels their units.

        Returns:
            Samples on the model's device, their units or targets, and the units on the host.

        Raises:
            InputError: The batch cannot be learned from. Nothing has changed.
        """
        if torch.is_inference_mode_enabled():
            raise InputError("A learner cannot change in torch.inference_mode(). Leave it first.")
        item = check_samples(x, like=self.item)
        if x.shape[0] == 0:
            raise InputError("The batch is empty; it must have at least one sample.")
        if not isinstance(y, Tensor) or y.dim() == 0 or len(y) != len(x):
            raise InputError(
                f"y must have one entry for each of {len(x)} samples; given {_shown(y)}."
            )
        # A tensor that was made in inference mode cannot be part of a backward pass; a copy can.
        x, y = (t.clone() if t.is_inference() else t for t in (x, y))
        units: list[int] = []
        labels = [] if self._head is None else _check_labels(y)
        x = self._encode(x)
        self._try_model(x)
        if self._head is None:
            self._check_targets(y)
        else:
            units = self._head.register(labels)
            y = torch.tensor(units)
        self.item, self.stored = item, Item(x.shape[1:], x.dtype)
        return x, y, units

    def _check_targets(self, y: Tensor) -> None:
        if y.dtype != self._dtype or y.shape[1:] != (self.outputs,):
            raise InputError(
                f"y must be {self._dtype} of shape (n, {self.outputs}); given {y.dtype} of shape "
                f"{tuple(y.shape)}."
            )
        if not bool(torch.isfinite(y).all()):
            raise InputError("y must be finite; it holds NaN or Inf.")

    def _try_model(self, x: Tensor) -> None:
        """Try the first samples, so that a model that cannot take them fails before it changes."""
        if self._tried:
            return
        with _fails_as_input_error("model", x):
            inputs = self.normalize(x[:_TRIED])
            with self.draws(), evaluating(self._model):
                outputs = self._outputs(inputs)
                with torch.enable_grad():
                    self.trial(self._model, inputs)
        self.outputs, self._tried = self.outputs or outputs, True

    def _outputs(self, x: Tensor) -> int:
        """How many outputs the model has."""
        if self._head is not None:
            self._head.check_outputs(self._model, x)
            return self._head.capacity
        outputs: Tensor = self._model(x)
        check_shape(outputs, rows=len(x))
        return outputs.shape[-1]

    def state(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        stored = {} if self._features is None else {"stored": _plain(self.stored)}
        return {"item": _plain(self.item), "outputs": self.outputs, **stored}

    def statistics(self) -> dict[str, Tensor]:
        """Mean and variance of inputs and targets, for a checkpoint."""
        both = {"inputs": self.inputs.values, "targets": self.targets.values}
        return {name: values for name, values in both.items() if values is not None}

    def load(self, state: Mapping[str, Any], statistics: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state` and :meth:`statistics` gave.

        Raises:
            CheckpointError: They are of other samples, or of a learner that did not standardise.
        """
        item = _item(state["item"])
        stored = item if self._features is None else _item(state["stored"])
        outputs = int(state["outputs"])
        has_inputs = stored is not None and self._standardizes_inputs(stored.dtype)
        has_targets = item is not None and self._standardizes_targets
        inputs = stored.shape if stored is not None and has_inputs else None
        targets = torch.Size([outputs]) if has_targets else None
        self.inputs.values = load_scale("inputs", statistics, inputs, self._device)
        self.targets.values = load_scale("targets", statistics, targets, self._device)
        self.item, self.stored, self.outputs = item, stored, outputs


def _plain(item: Item | None) -> list[Any] | None:
    return None if item is None else [list(item.shape), str(item.dtype)]


def _item(plain: list[Any] | None) -> Item | None:
    """The inverse of :func:`_plain`."""
    if plain is None:
        return None
    shape, name = plain
    dtype = getattr(torch, str(name).removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise CheckpointError(f"The checkpoint has samples of unknown type {name!r}.")
    return Item(torch.Size(shape), dtype)


@contextmanager
def _fails_as_input_error(part: str, x: Tensor) -> Iterator[None]:
    """Raise an ``InputError`` that names the shape of samples x, whatever a forward pass raises."""
    try:
        yield
    except OcarError:
        raise
    except Exception as error:  # what a forward pass raises can be anything
        raise InputError(
            f"The {part} cannot take samples of shape {tuple(x.shape[1:])}: {error}"
        ) from error


def _nothing(model: nn.Module, x: Tensor) -> None:
    """Nothing else is tried."""

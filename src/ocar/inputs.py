"""What a learner is given: checked before something changes, then made inputs of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ocar import accel
from ocar.augment import scale_to_unit
from ocar.errors import InputError, OcarError
from ocar.items import Items, check_samples, from_plain, items_of, to_plain, unnamed
from ocar.methods.settings import LearnerSettings
from ocar.models.check import buffers_kept, check_call
from ocar.models.head import GrowingHead, check_shape
from ocar.models.latent import LatentReplay
from ocar.models.modes import evaluating
from ocar.rng import make_generator
from ocar.standardize import InputScale, Keep, RunningScale, load_scale
from ocar.structure import (
    Given,
    Inputs,
    apply,
    apply_whole,
    as_inputs,
    as_targets,
    call,
    describe,
    one_tensor,
    parts_of,
    with_name,
)

_TRIED = 7  # samples of the first batch: with one alone, places and samples cannot be told apart

_AS_THEY_ARE = (
    " (A model is given integers as they are, for an embedding. Give numbers as floating point.)"
)

_MIXED = "The model is given numbers as {}, the type of its first parameter that learns."

_LOOKUPS = (nn.Embedding, nn.EmbeddingBag)  # a model with one may be given indices


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
        shared: Shares passes of the backbone out over ranks; None on one device.
        item: Shape and type of the samples, or of their parts; None before the first.
        stored: The same of what the memory stores of them: features behind a backbone.
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
        self.item: Items | None = None
        self.stored: Items | None = None
        self.outputs = 0
        self.trial: Callable[[nn.Module, Inputs], None] = _nothing
        self.draws: Callable[[], AbstractContextManager[None]] = nullcontext
        self.shared: accel.SharedModel | None = None
        self.generator = make_generator(settings.seed, "augment", like.device)
        self.inputs, self.targets = InputScale(), RunningScale()
        self._settings = settings
        self._model = model
        self._head = head
        self._device, self._dtype = like.device, like.dtype
        mixed = any(p.is_floating_point() and p.dtype != like.dtype for p in model.parameters())
        self._mixed = f" ({_MIXED.format(like.dtype)})" if mixed else ""
        # A method and no module: nothing of a frozen backbone has to be undone.
        self._features = None if latent is None else latent.features
        self._takes_indices = any(isinstance(m, _LOOKUPS) for m in model.modules())
        self._tried = False

    def prepare(self, x: Inputs, inputs: InputScale | None = None) -> Inputs:
        """From raw samples on any device to inputs of the model; ``inputs`` are statistics."""
        return apply(self._cast, (inputs or self.inputs)(self._rescale(self.features(x))))

    def features(self, x: Inputs) -> Inputs:
        """From raw samples on any device to stored ones on the model's: features, or the same."""
        x = x.to(self._device, non_blocking=True)
        return x if self._features is None else self._features(self._rescale_raw(x))

    def _features_shared(self, x: Inputs) -> Inputs:
        """As :meth:`features`; all ranks have the samples, and each computes a share."""
        if self.shared is None:
            return self.features(x)
        return self.shared.call(lambda rows: one_tensor(self.features(rows)), x)

    def normalize(self, x: Inputs) -> Inputs:
        """From stored samples on the model's device to inputs of the model."""
        return apply(self._cast, self.inputs(self._rescale(x)))

    def rescale(self, x: Inputs) -> Inputs:
        """As :meth:`normalize`, but not standardised: the scale that the user chose."""
        return apply(self._cast, self._rescale(x))

    def _rescale(self, x: Inputs) -> Inputs:
        return x if self._features is not None else self._rescale_raw(x)

    def _rescale_raw(self, x: Inputs) -> Inputs:
        normalize = self._settings.normalize
        if normalize is None:
            return apply(lambda part: scale_to_unit(part) if _measures(part.dtype) else part, x)
        return apply_whole(normalize, x)

    def _cast(self, part: Tensor) -> Tensor:
        """Numbers in the type of the model; integers are indices, and stay."""
        return part.to(self._dtype) if _measures(part.dtype) else part

    def standardize(self, y: Tensor) -> Tensor:
        """From raw targets on the model's device to what the model is to predict."""
        return self.targets(y).to(y.dtype)

    def standardizes(self, x: Inputs) -> bool:
        """Whether a part of the inputs, or the targets, are standardised."""
        parts = {name: part.dtype for name, part in parts_of(x).items()}
        if self._features is not None:
            parts = {"": self._dtype}
        return bool(self._standardized(parts)) or self._standardizes_targets

    def _standardized(self, parts: Mapping[str, torch.dtype]) -> list[str]:
        """The names of the parts that are standardised, of all with their types."""
        wanted = self._settings.standardize
        if wanted is None:
            by_default = self._settings.normalize is None and not self._takes_indices
            by_default = by_default or self._features is not None
            return [n for n, dtype in parts.items() if by_default and dtype.is_floating_point]
        return [n for n, dtype in parts.items() if wanted and _measures(dtype)]

    @property
    def _standardizes_targets(self) -> bool:
        return self._head is None and self._settings.standardize is not False

    def follow(self, x: Inputs, y: Tensor, keep: Keep) -> None:
        """Take a batch of :meth:`take` into the statistics; ``keep`` is called before."""
        if names := self._standardized({name: p.dtype for name, p in parts_of(x).items()}):
            self.inputs.update(self._rescale(x), names, keep)
        if self._standardizes_targets:
            self.targets.update(y.to(self._device, non_blocking=True), keep)

    def augment(self, x: Inputs) -> Inputs:
        """From stored samples to augmented ones, another draw each time; features as they are."""
        return x if self._features is not None else self._augment_raw(x)

    def _augment_raw(self, x: Inputs) -> Inputs:
        augment = self._settings.augment
        return x if augment is None else apply_whole(augment, x, self.generator)

    def _encode(self, x: Inputs) -> Inputs:
        """From raw samples to stored ones on the model's device; before a backbone augmented."""
        x = x.to(self._device, non_blocking=True)
        if self._features is None:
            return x
        with fails_as_input_error("backbone", x):
            x = self._augment_raw(x)
            features = one_tensor(self._features_shared(x))
        finite = torch.isfinite(features).all()
        # Nothing waits for a GPU but the first batch; later ones are the guard's.
        if (bool(finite) if self.stored is None else accel.known(finite)) is False:
            raise InputError(
                f"The backbone gives NaN or Inf as {features.dtype}. If float16 is too small for "
                "its features, give LatentReplay another dtype."
            )
        return features

    def check(self, x: Given) -> Inputs:
        """Samples as tensors; raise an ``InputError`` if they are unlike those before."""
        samples = as_inputs(x)
        check_samples(samples, like=self.item)
        return samples

    def take(self, x: Given, y: Given) -> tuple[Inputs, Tensor, list[int]]:
        """Check a whole batch, then give new labels their units.

        Returns:
            Samples on the model's device, their units or targets, and the units on the host.

        Raises:
            InputError: The batch cannot be learned from. Nothing has changed.
        """
        if torch.is_inference_mode_enabled():
            raise InputError("A learner cannot change in torch.inference_mode(). Leave it first.")
        x, y = as_inputs(x), as_targets(y, self._dtype)
        item = check_samples(x, like=self.item)
        self._check_method(x)
        if len(x) == 0:
            raise InputError("The batch is empty; it must have at least one sample.")
        if y.dim() == 0 or len(y) != len(x):
            raise InputError(
                f"y must have one entry for each of {len(x)} samples; given {tuple(y.shape)}."
            )
        x, y = apply(_apart, x), _apart(y)
        units: list[int] = []
        labels = [] if self._head is None else _check_labels(y)
        x = self._encode(x)
        self._try_model(x)
        if self._head is None:
            self._check_targets(y)
        else:
            units = self._head.register(labels)
            y = torch.tensor(units)
        self.item, self.stored = item, items_of(x)
        return x, y, units

    def _check_method(self, x: Inputs) -> None:
        """Raise if the method, or a function of its settings, needs images or one tensor."""
        settings = self._settings
        measures = isinstance(x, Tensor) and _measures(x.dtype)
        if settings.needs_numbers and not measures:
            raise InputError(
                f"This method takes one tensor of uint8 or floating point: "
                f"{settings.needs_numbers}. Given {_type(x)}. Use another method, such as OCAR."
            )
        for name, function in (("normalize", settings.normalize), ("augment", settings.augment)):
            ours = type(function).__module__.startswith("ocar.")
            if ours and not measures:
                raise InputError(
                    f"{name}={type(function).__name__} takes images, one tensor of uint8 or "
                    f"floating point; given {_type(x)}. Leave it out, or give a function of your "
                    "own, which gets and returns the tuple or dictionary."
                )

    def _check_targets(self, y: Tensor) -> None:
        if y.dtype != self._dtype or y.shape[1:] != (self.outputs,):
            raise InputError(
                f"y must be {self._dtype} of shape (n, {self.outputs}); given {y.dtype} of shape "
                f"{tuple(y.shape)}."
            )
        if not bool(torch.isfinite(y).all()):
            raise InputError("y must be finite; it holds NaN or Inf.")

    def _try_model(self, x: Inputs) -> None:
        """Try the first samples, so that a model that cannot take them fails before it changes."""
        if self._tried:
            return
        with fails_as_input_error("model", x, self._mixed):
            inputs = apply(torch.clone, self.normalize(x[:_TRIED]))
            with self.draws(), evaluating(self._model), buffers_kept(self._model):
                outputs = self._outputs(inputs)
                check_call(self._model, inputs)
                with torch.enable_grad():
                    self.trial(self._model, inputs)
        self.outputs, self._tried = self.outputs or outputs, True

    def _outputs(self, x: Inputs) -> int:
        """How many outputs the model has."""
        if self._head is not None:
            self._head.check_outputs(self._model, x)
            return self._head.capacity
        outputs = call(self._model, x)
        check_shape(outputs, rows=len(x))
        return outputs.shape[-1]

    def state(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        stored = {} if self._features is None else {"stored": to_plain(self.stored)}
        return {"item": to_plain(self.item), "outputs": self.outputs, **stored}

    def statistics(self) -> dict[str, Tensor]:
        """Mean and variance of inputs and targets, for a checkpoint."""
        inputs = {name: scale.values for name, scale in self.inputs.parts.items()}
        both = {**with_name("inputs", inputs), "targets": self.targets.values}
        return {name: values for name, values in both.items() if values is not None}

    def load(self, state: Mapping[str, Any], statistics: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state` and :meth:`statistics` gave.

        Raises:
            CheckpointError: They are of other samples, or of a learner that did not standardise.
        """
        items = from_plain(state["item"])
        stored = items if self._features is None else from_plain(state["stored"])
        outputs = int(state["outputs"])
        targets = torch.Size([outputs]) if items and self._standardizes_targets else None
        scales = {}
        for part in self._standardized({name: item.dtype for name, item in stored.items()}):
            (name,) = with_name("inputs", {part: None})
            scales[part] = RunningScale()
            scales[part].values = load_scale(name, statistics, stored[part].shape, self._device)
        self.targets.values = load_scale("targets", statistics, targets, self._device)
        self.inputs.parts = scales
        self.item, self.stored, self.outputs = unnamed(items), unnamed(stored), outputs


@contextmanager
def fails_as_input_error(part: str, x: Inputs, hint: str = "") -> Iterator[None]:
    """Raise an ``InputError`` that names the shape of samples x, whatever a forward pass raises.

    But for a lack of memory, which is not the fault of the samples.
    """
    try:
        yield
    except (OcarError, *accel.OUT_OF_MEMORY):
        raise
    except Exception as error:  # what a forward pass raises can be anything
        shown = f"shape {tuple(x.shape[1:])}" if isinstance(x, Tensor) else describe(x)
        indices = not all(_measures(part.dtype) for part in parts_of(x).values())
        raise InputError(
            f"The {part} cannot take samples of {shown}: {error}{_AS_THEY_ARE * indices}{hint}"
        ) from error


def _measures(dtype: torch.dtype) -> bool:
    """Whether numbers of a type are measured, and not indices or a mask."""
    return dtype.is_floating_point or dtype == torch.uint8


def _apart(tensor: Tensor) -> Tensor:
    """A tensor that can be part of a backward pass, which must not go on into the user's graph."""
    return tensor.clone() if tensor.is_inference() else tensor.detach()


def _type(x: Inputs) -> str:
    """What samples are, in a message."""
    return f"{x.dtype}" if isinstance(x, Tensor) else describe(x)


def _nothing(model: nn.Module, x: Inputs) -> None:
    """Nothing else is tried."""

"""The output layer of a model, with room for classes that have not been seen.

An online learner does not know the number of classes in advance. A head that grew
by one unit for each class would change the shape of every step. This head has a
capacity, masks units without a class, and doubles when it is full. A masked head
gets the same update as one that has just the units it needs.

Not every layer can grow. One that cannot serves a learner that is given its classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from ocar.accel import MASKED
from ocar.errors import CheckpointError, InputError, ModelError
from ocar.models.modes import uncompiled
from ocar.state import check_names
from ocar.structure import Inputs, call

_STEP = 10.0  # between the outputs of two units in a trial
_LARGEST = 6e4  # that float16 can hold


class GrowingHead:
    """Binds the labels of a stream to the units of a model's output layer.

    When the layer is full, its weight and bias are enlarged in place, so that the
    parameters remain the same objects.

    Args:
        model: Any module that ends in a linear layer.
        name: Name of that layer; by default the last ``nn.Linear`` of the model.
        classes: Labels that the first units stand for from the start.
        generator: Draws the weights of units that are added.

    Attributes:
        seen: Labels that have appeared; other labels in ``classes`` were given at the start.
        active: Which units stand for a class, ``(capacity,)`` of bool.
        fixed: Why the layer cannot grow; empty if it can.

    Raises:
        ModelError: There is no such linear layer, it does not train, or it would have to grow and
            cannot.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        generator: torch.Generator,
        name: str | None = None,
        classes: Sequence[int] = (),
    ) -> None:
        self.name, self.layer = find_linear_head(model, name)
        self.fixed = why_fixed(model, self.layer)
        if self.fixed and not 0 < len(classes) <= self.capacity:
            raise self._cannot_grow(len(classes))
        self._given = len(classes)
        self.generator = generator
        self.seen: set[int] = set()
        self._unit: dict[int, int] = {}
        self.active = torch.zeros(0, dtype=torch.bool)
        self.register(classes)
        self.seen.clear()

    @property
    def classes(self) -> list[int]:
        """The label of each unit in use."""
        return list(self._unit)

    @property
    def largest(self) -> int:
        """The largest label of a unit in use; -1 without any."""
        return max(self._unit, default=-1)

    @property
    def capacity(self) -> int:
        """Units of the layer, used or not."""
        return self.layer.out_features

    def _cannot_grow(self, classes: int) -> ModelError:
        given = f"{classes} given" if classes else "none given"
        return ModelError(
            f"The output layer {self.name!r} cannot grow as classes appear: {self.fixed}. Give at "
            f"most {self.capacity} labels that it has units for, classes=range({self.capacity}) "
            f"({given}), or name another output layer, head=..."
        )

    def register(self, labels: Sequence[int]) -> list[int]:
        """The unit of each label, any integer; a new label gets the next free unit.

        Raises:
            InputError: There are more labels than units, and the layer cannot grow.
        """
        known = len(self._unit)
        if self.fixed and len(self._unit.keys() | set(labels)) > self.capacity:
            new = sorted(set(labels) - self._unit.keys())
            raise InputError(
                f"There is no unit for {'label' if len(new) == 1 else 'labels'} "
                f"{', '.join(map(str, new))}: {known} of {self.capacity} units stand for classes, "
                f"and the output layer {self.name!r} cannot grow: {self.fixed}."
            )
        self.seen.update(labels)
        for label in labels:
            self._unit.setdefault(label, len(self._unit))
        self.reserve(len(self._unit))
        if len(self._unit) != known or self.active.shape[0] != self.capacity:
            weight = self.layer.weight
            self.active = torch.arange(self.capacity, device=weight.device) < len(self._unit)
        return [self._unit[label] for label in labels]

    def fit_checkpoint(
        self,
        model: nn.Module,
        weights: Mapping[str, Tensor],
        classes: Sequence[int],
        *,
        seen: Iterable[int],
    ) -> None:
        """Take over the capacity and the labels of a checkpoint, once its other weights fit.

        ``classes`` has the label of each unit in use, ``seen`` those that have appeared.

        Raises:
            CheckpointError: The checkpoint is of another model.
        """
        if not self.fixed:
            own = set(map(id, self.layer.parameters()))
            named = model.named_parameters(remove_duplicate=False)
            names = {n for n, p in named if id(p) in own}  # more than two if it has two names
            others = {n: t for n, t in model.state_dict().items() if n not in names}
            check_names("model", {n: t for n, t in weights.items() if n not in names}, others)
            weight = weights.get(f"{self.name}.weight".removeprefix("."))
            if weight is None or weight.shape[0] < self.capacity:
                found = "none" if weight is None else f"{weight.shape[0]} units"
                raise CheckpointError(
                    f"The checkpoint is of another model: head {self.name!r} has {found}, "
                    f"here {self.capacity}."
                )
            self.reserve(weight.shape[0])
        self._unit, self.active = {}, torch.zeros(0, dtype=torch.bool)
        self.register(classes)
        self.seen = set(seen)

    def check_outputs(self, model: nn.Module, x: Inputs) -> None:
        """Try whether the outputs of a model are those of this layer, however many units it has.

        The layer's outputs are replaced by falling numbers, then by rising ones. The difference of
        what comes out must fall, whatever else the model, which is in eval mode, adds.

        Raises:
            ModelError: They are not, or the layer would have to grow and cannot.
        """
        outputs = self._answer(model, x, self.capacity)
        rising = self._answer(model, x, self.capacity, slope=1.0)
        listed = f"Name the output layer, head=..., one of {', '.join(_linear(model))}."
        if outputs is None or rising is None:
            raise ModelError(
                f"Layer {self.name!r} is taken for the output layer, and {type(model).__name__} "
                f"does not call it. {listed}"
            )
        check_shape(outputs, rows=len(x), units=self.capacity, head=self.name)
        if not _is_falling(outputs - rising):
            raise ModelError(
                f"The outputs of the model are not those of layer {self.name!r}, which is taken "
                f"for the output layer. {listed}"
            )
        low, high = torch.stack([outputs, rising]).aminmax()
        if low >= 0 and high <= 1:
            raise ModelError(
                "The model returns probabilities, numbers in [0, 1]. It must return logits, the "
                f"outputs of layer {self.name!r}: leave out the Softmax or Sigmoid at its end."
            )
        if self.fixed:
            return
        try:
            more = self._answer(model, x, 2 * self.capacity)
            grown = more is not None and more.shape == (len(x), 2 * self.capacity)
            reason = "" if grown else "with twice as many units the model returns no more outputs"
        except Exception as error:  # noqa: BLE001 (a forward pass can raise anything)
            reason = f"with twice as many units the model fails: {_first_line(error)}"
        if reason:
            self.fixed = reason
            if not self._given:
                raise self._cannot_grow(0)

    def _answer(
        self, model: nn.Module, x: Inputs, units: int, *, slope: float = -1.0
    ) -> Tensor | None:
        """What a model returns if this layer had so many units; None if it is not called."""
        called = False

        def replace(module: nn.Module, inputs: tuple[object, ...], output: Tensor) -> Tensor:
            nonlocal called
            called = True
            places = torch.arange(units, device=output.device) - units / 2
            numbers = (slope * places * min(_STEP, _LARGEST / units)).to(output.dtype)
            return numbers.expand(*output.shape[:-1], units).clone()

        with uncompiled(model), self.layer.register_forward_hook(replace, prepend=True):
            outputs = call(model, x)
        return outputs if called else None

    def reserve(self, units: int) -> None:
        """Double the capacity until there are at least ``units``."""
        if units > self.capacity:
            doublings = math.ceil(math.log2(units / self.capacity))
            enlarge_linear_(self.layer, self.capacity * 2**doublings, generator=self.generator)


def mask_logits(logits: Tensor, active: Tensor) -> Tensor:
    """Logits ``(n, capacity)`` in which unused units have −1000: their probability is exactly 0."""
    return torch.where(active, logits, MASKED)


def why_fixed(model: nn.Module, layer: nn.Linear) -> str:
    """Why a linear layer of a model cannot be given more outputs; empty if it can."""
    more = sorted({name.partition(".")[0] for name in layer.state_dict()} - {"weight", "bias"})
    if more:  # such as weight_norm and spectral_norm
        return f"its weight is computed from {', '.join(more)}"
    own = {id(p): name for name, p in layer.named_parameters(recurse=False)}
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            if module is not layer and id(parameter) in own:
                return f"it shares its {own[id(parameter)]} with layer {name!r}"
    return ""


def check_shape(
    outputs: object, *, rows: int, units: int | None = None, head: str | None = None
) -> None:
    """Raise a ``ModelError`` unless a model returned a tensor ``(rows, units)``.

    In regression there may be any number of units, and no head, the name of the output layer.
    """
    wanted = f"The model must return shape (n, {units or 'outputs'})"
    wanted += "" if head is None else f", the outputs of layer {head!r}"
    if not isinstance(outputs, Tensor):
        raise ModelError(
            f"{wanted}, as a tensor; it returned a {type(outputs).__name__}. Give a module that "
            "calls it and returns the logits alone."
        )
    if not outputs.is_floating_point():
        raise ModelError(f"{wanted}, of floating point; it returned {outputs.dtype}.")
    if not outputs.shape[-1:].numel():
        raise ModelError(f"{wanted}, with at least one output; it returned {tuple(outputs.shape)}.")
    if outputs.dim() != 2 or outputs.shape != (rows, units or outputs.shape[-1]):
        samples = "one sample" if rows == 1 else f"{rows} samples"
        advice = "" if head is None else " Name the output layer, head=..., if it is another."
        raise ModelError(f"{wanted}; it returned {tuple(outputs.shape)} for {samples}.{advice}")


def _is_falling(outputs: Tensor) -> bool:
    """Whether each row falls, ``(n, units)``."""
    falling = bool((outputs.float().diff() <= 0).all())
    return falling and (outputs.shape[1] == 1 or bool((outputs[:, 0] > outputs[:, -1]).all()))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _linear(model: nn.Module) -> dict[str, nn.Linear]:
    return {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}


def find_linear_head(model: nn.Module, name: str | None = None) -> tuple[str, nn.Linear]:
    """The linear layer that makes a model's outputs, and its name.

    Raises:
        ModelError: There is no such layer, or its weight does not train.
    """
    layers = _linear(model)
    listed = ", ".join(layers) or "none"
    if not layers:
        raise ModelError(
            f"{type(model).__name__} has no nn.Linear layer. An output layer of that kind is "
            "needed, since classes are added to it as they appear."
        )
    chosen = name if name is not None else list(layers)[-1]
    if chosen not in layers:
        raise ModelError(f"Invalid head={name!r}. Must name a linear layer of the model: {listed}.")
    layer = layers[chosen]
    if not layer.out_features:
        raise ModelError(
            f"The output layer {chosen!r} has no units. Give it at least one: more are added as "
            "classes appear."
        )
    if not any(p.requires_grad for name, p in layer.named_parameters() if name != "bias"):
        raise ModelError(f"The output layer {chosen!r} is frozen; it must train. Layers: {listed}.")
    return chosen, layer


@torch.no_grad()
def enlarge_linear_(layer: nn.Linear, outputs: int, *, generator: torch.Generator) -> None:
    """Give a linear layer more outputs; present outputs keep their weights.

    New weights are drawn on the host, as ``nn.Linear`` draws its own: uniformly within ±1/√inputs.
    """
    bound = 1 / math.sqrt(layer.in_features)
    for parameter in layer.parameters(recurse=False):
        shape = (outputs - layer.out_features, *parameter.shape[1:])
        new = torch.empty(shape, dtype=parameter.dtype).uniform_(-bound, bound, generator=generator)
        set_data_(parameter, torch.cat([parameter.data, new.to(parameter.device)]))
        parameter.grad = None
    layer.out_features = outputs


def set_data_(tensor: Tensor, data: Tensor) -> None:
    """Give a parameter other numbers, of any shape and of its type.

    As long as a graph of the old shape exists, PyTorch refuses gradients of the new one: it takes
    the same node for both. A user may hold such a graph, by one output of the model. Numbers of
    another type make PyTorch drop the node.
    """
    if tensor.shape != data.shape:
        other = torch.float32 if tensor.dtype == torch.float16 else torch.float16
        tensor.data = data.new_empty(0, dtype=other)
    tensor.data = data

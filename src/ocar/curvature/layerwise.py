"""Curvature that is block-diagonal, one block a layer: the base of K-FAC and its kin.

A kind of curvature says which :mod:`~ocar.curvature.blocks` its layers have. This module records,
pulls back the root of the Fisher, and hands each block what its layers saw.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ocar import accel
from ocar.config import require_one_of
from ocar.curvature.blocks import Blocks, Head, Seen, Sharing
from ocar.curvature.curvature import Curvature, at_step, full_precision
from ocar.curvature.layers import NORM_LAYERS, Layer, make_layer
from ocar.curvature.recorder import Recorder, reject_shared_parameters, warn_uncovered
from ocar.errors import CheckpointError, ConfigError, ModelError

Weighting = Literal["gradients", "both"]


@dataclass(eq=False, repr=False)
class LayerCurvature(Curvature):
    """Curvature that is block-diagonal: each layer has a block.

    Linear layers (with any leading dimensions) and 1-d and 2-d convolutions, embeddings, and on
    request normalisation layers have curvature. Frozen parameters get nothing. Other layers keep
    their gradient, and one warning names them. The head's G starts again when the number of active
    outputs changes.
    """

    weighting: Weighting = field(default="gradients", kw_only=True)
    """Sample weights enter ``"gradients"`` (G alone, as OCAR's authors do) or ``"both"`` (A as
    Σ w aaᵀ / Σ w too)."""

    sharing: Sharing = field(default="expand", kw_only=True)
    """``"expand"`` or ``"reduce"``, see :mod:`ocar.curvature.blocks`."""

    norm_layers: bool = field(default=False, kw_only=True)
    """Give normalisation layers one small block for each unit."""

    exclude: Sequence[str] = field(default=(), kw_only=True)
    """Names of layers that keep their plain gradient."""

    def __post_init__(self) -> None:
        require_one_of("weighting", self.weighting, ("gradients", "both"))
        require_one_of("sharing", self.sharing, ("expand", "reduce"))
        super().__post_init__()

    def _start(self) -> None:
        super()._start()
        self._head: Head | None = None
        if self.head is not None:
            active = torch.full((), -1, dtype=torch.int64, device=self.device)
            self._head = Head(name=self.head, active=active)
        self.layers = self._find_layers()
        self.blocks = self._make_blocks()
        modules = {name: layer.module for name, layer in self.layers.items()}
        self._recorder = Recorder(modules, self.model)
        self._seen: dict[str, Seen] = {}
        self._batched = True
        self._batches = 0

    @abstractmethod
    def kinds(self) -> Mapping[type[Layer], type[Blocks[Any]]]:
        """The blocks of each kind of layer; other layers keep their gradient."""

    def _find_layers(self) -> dict[str, Layer]:
        modules = dict(self.model.named_modules())
        unknown = [name for name in self.exclude if name not in modules]
        if unknown:
            raise ConfigError(f"Invalid exclude: the model has no layer {', '.join(unknown)}.")
        layers: dict[str, Layer] = {}
        uncovered: dict[str, nn.Module] = {}
        for name, module in modules.items():
            if name in self.exclude:
                continue
            layer = make_layer(name, module)
            is_norm = isinstance(module, NORM_LAYERS)
            covered = layer is not None and type(layer) in self.kinds()
            if layer is not None and covered and (self.norm_layers or not is_norm):
                layers[name] = layer
            elif not is_norm and any(p.requires_grad for p in module.parameters(recurse=False)):
                uncovered[name] = module
        if not layers:
            raise ModelError(
                f"{type(self.model).__name__} has no trainable Linear, Conv1d, Conv2d or Embedding "
                "layer to take the curvature of."
            )
        reject_shared_parameters({name: layer.module for name, layer in layers.items()})
        warn_uncovered(uncovered, stacklevel=6)
        return layers

    def _make_blocks(self) -> list[Blocks[Any]]:
        blocks = []
        for kind, make in self.kinds().items():
            own = {name: layer for name, layer in self.layers.items() if type(layer) is kind}
            if own:
                blocks.append(make(own, sharing=self.sharing, head=self._head))
        return blocks

    def record(self) -> Recorder:
        """A context for the forward pass that :meth:`update` will use."""
        self._require_model()
        return self._recorder

    def follow(self) -> AbstractContextManager[None]:
        """For the forward pass of the loss, inside or outside of :meth:`record`."""
        stack = ExitStack()
        for block in self.blocks:
            stack.enter_context(block.following())
        return stack  # type: ignore[return-value]

    def begin(self) -> None:
        """Called before the steps on a batch, outside any recording."""
        super().begin()
        for block in self.blocks:
            block.fit()
            block.refresh(self._batches)
        self._batches += 1

    @full_precision
    def estimate(
        self,
        outputs: Tensor,
        *,
        weights: Tensor | None = None,
        targets: Tensor | None = None,
        active: Tensor | None = None,
    ) -> None:
        """Estimate the statistics of all layers.

        What needs no gradients is estimated in parallel with the pull-back of the Fisher's root.
        """
        inputs, samples = dict(self._recorder.inputs), outputs.shape[0]
        if not inputs:
            raise ModelError("No forward pass was recorded. Call the model inside record().")
        input_weights = weights if self.weighting == "both" else None
        columns = self._columns(outputs, weights, targets, active)
        early = {
            name: Seen(*self.layers[name].by_sample(x, x.unsqueeze(0), samples), input_weights)
            for name, x in inputs.items()
        }
        gradients, *_ = accel.parallel(
            lambda: self._pull_back(outputs, columns),
            *(
                lambda block=block: block.estimate_inputs(_of(block, early))
                for block in self.blocks
            ),
        )
        if not gradients:
            raise ModelError(
                "The outputs do not come from the recorded forward pass. Give update() what the "
                "model returned inside record()."
            )
        if not self._seen and not any(block.ready for block in self.blocks):
            unused = {n: layer.module for n, layer in self.layers.items() if n not in gradients}
            warn_uncovered(unused, stacklevel=5)
        self._seen = {
            name: Seen(*self.layers[name].by_sample(inputs[name], g, samples), input_weights)
            for name, g in gradients.items()
        }
        self._recorder.clear()
        if self._head is not None:
            layer = self.model.get_submodule(self._head.name)
            every = torch.full_like(self._head.active, len(layer.weight))  # type: ignore[arg-type]
            count = every if active is None else active.sum()
            for block in self.blocks:
                block.restart_head(count != self._head.active)
            self._head.active.copy_(count)

    @full_precision
    def renew(self, damping: Tensor | float, ema: Tensor | float) -> None:
        """Estimate what needs gradients, average, and derive the inverses."""
        for block in self.blocks:
            seen = _of(block, self._seen)
            if seen:
                block.estimate(seen)
                ok, inverted = block.renew(seen, ema, damping).unbind()
                self.ok &= ok
                self._not_inverted += ok & ~inverted
        self._seen = {}

    @full_precision
    def apply_(self) -> None:
        """Apply the inverses to the gradients, in place."""
        for block in self.blocks:
            block.precondition_()

    def _pull_back(self, outputs: Tensor, columns: Tensor) -> dict[str, Tensor]:
        if self._batched:
            try:
                return self._recorder.pull_back(outputs, columns)
            except RuntimeError as error:
                # If one after another fails too, batching was not the reason.
                gradients = self._recorder.pull_back(outputs, columns, batched=False)
                warnings.warn(
                    "The backward pass of this model cannot be batched; the columns of the "
                    f"Fisher are computed one after another, which is slower: {error}",
                    stacklevel=4,
                )
                self._batched = False
                return gradients
        return self._recorder.pull_back(outputs, columns, batched=False)

    def _where(self) -> str:
        listed = ", ".join(name for block in self.blocks for name in block.infinite())
        return f" in layer(s) {listed}" if listed else ""

    def _reason(self) -> str | None:
        reasons = (block.buffer.derived.pop("reason", None) for block in self.blocks)
        return next((reason for reason in reasons if reason is not None), None)

    def tensors(self) -> list[Tensor]:
        """Averages, counts, and the number of active outputs."""
        own = [] if self._head is None else [self._head.active]
        return [*own, *(tensor for block in self.blocks for tensor in block.tensors())]

    def eigenvalues(self) -> dict[str, Tensor]:
        """Eigenvalues of the damped curvature, ascending, for each layer."""
        damping = at_step(self.damping, self.step)
        return {
            name: block.eigenvalues(layer, damping)
            for block in self.blocks
            for name, layer in block.layers.items()
            if name in block.ready
        }

    def memory_usage(self) -> int:
        """Bytes of all statistics and inverses."""
        return sum(block.memory_usage() for block in self.blocks)

    def _averages(self) -> dict[str, Tensor]:
        state: dict[str, Tensor] = {}
        for block in self.blocks:
            block.fit()
            state |= block.state()
        if self._head is not None and state:
            state["active_outputs"] = self._head.active
        return state | ({"batches": torch.tensor(self._batches)} if state else {})

    def _load_averages(self, averages: Mapping[str, Tensor]) -> None:
        averages = dict(averages)
        active = averages.pop("active_outputs", None)
        batches = int(averages.pop("batches", 0))
        by_layer = {name.removesuffix(".count").rpartition(".")[0] for name in averages}
        unknown = sorted(by_layer - self.layers.keys())
        if unknown:
            raise CheckpointError(f"The checkpoint has curvature of {unknown[0]!r}, no layer here.")
        states = []
        for block in self.blocks:
            own = tuple(f"{name}." for name in block.layers)
            states.append({n: value for n, value in averages.items() if n.startswith(own)})
            block.check_state(states[-1])
        self._batches = batches
        for block, state in zip(self.blocks, states, strict=True):
            block.load(state)
        if self._head is not None:
            self._head.active.fill_(-1)
            if active is not None:
                self._head.active.copy_(active)

    def _invert(self, damping: float) -> None:
        for block in self.blocks:
            if block.ready:
                block.prepare(damping)


def _of(block: Blocks[Any], seen: Mapping[str, Seen]) -> dict[str, Seen]:
    """What the layers of a block saw, in their order."""
    return {name: seen[name] for name in block.layers if name in seen}

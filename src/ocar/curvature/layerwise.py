"""Curvature that is block-diagonal, one block a layer: the base of K-FAC and its kin.

A kind of curvature says which :mod:`~ocar.curvature.blocks` its layers have. This module records,
pulls back the root of the Fisher, and hands each block what its layers saw.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ocar import accel
from ocar.config import require, require_one_of
from ocar.curvature.blocks import Blocks, Head, Seen, Sharing
from ocar.curvature.cost import Work, find_parts, warn_split
from ocar.curvature.curvature import Curvature
from ocar.curvature.layers import NORM_LAYERS, Layer, MatrixLayer, make_layer
from ocar.curvature.recorder import Recorder, reject_shared_parameters, warn_uncovered
from ocar.errors import CheckpointError, ConfigError, ModelError
from ocar.structure import Inputs, call

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

    max_cost: float | None = field(default=1.5, kw_only=True)
    """Operations of the curvature that a learner allows, divided by those of its gradient steps. To
    keep to it, the curvature of wide layers is split, see :mod:`ocar.curvature.cost`; None for
    never."""

    def __post_init__(self) -> None:
        valid = self.max_cost is None or self.max_cost > 0
        require("max_cost", self.max_cost, valid, "larger than 0, or None for no bound")
        require_one_of("weighting", self.weighting, ("gradients", "both"))
        require_one_of("sharing", self.sharing, ("expand", "reduce"))
        super().__post_init__()

    def _start(self) -> None:
        self._batched = True
        self._locations: dict[str, int] = {}
        super()._start()
        modules = {name: layer.module for name, layer in self.layers.items()}
        self._recorder = Recorder(modules, self.model)

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
        warn_uncovered(uncovered, stacklevel=8)
        return layers

    def _make_blocks(self) -> list[Blocks[Any]]:
        active = torch.full((), -1, dtype=torch.int64, device=self.device)
        self._head = None if self.head is None else Head(name=self.head, active=active)
        self.layers = self._find_layers()
        blocks = []
        for kind, make in self.kinds().items():
            own = {name: layer for name, layer in self.layers.items() if type(layer) is kind}
            if own:
                blocks.append(make(own, sharing=self.sharing, head=self._head))
        return blocks

    def _matrices(self) -> dict[str, MatrixLayer]:
        """The linear layers and convolutions."""
        return {n: layer for n, layer in self.layers.items() if isinstance(layer, MatrixLayer)}

    def try_recording(self, x: Inputs) -> None:
        """See :meth:`Curvature.try_recording`."""
        with self.record() as recorder:
            call(self.model, x)
        for name, seen in recorder.inputs.items():
            layer = self.layers[name]
            by_sample, _ = layer.by_sample(seen, seen.unsqueeze(0), len(x))
            if isinstance(layer, MatrixLayer):
                self._locations[name] = layer.locations(by_sample)
        recorder.clear()

    def _bound_cost(self, work: Work) -> None:
        """Split wide layers if the curvature would cost more than ``max_cost``."""
        if self.max_cost is None or not work.samples:
            return
        layers = self._matrices()
        parts, cost = find_parts(layers, self._locations, work, max_cost=self.max_cost)
        for name, layer in layers.items():
            layer.parts = parts.get(name, 1)
        if parts:
            warn_split({name: layers[name] for name in parts}, cost, stacklevel=8)

    def _see(
        self, outputs: Tensor, columns: Tensor, weights: Tensor | None, active: Tensor | None
    ) -> dict[str, Seen]:
        """Pull the columns back; in parallel estimate what needs no gradients."""
        inputs, samples = dict(self._recorder.inputs), outputs.shape[0]
        input_weights = weights if self.weighting == "both" else None

        def seen_by(name: str, g: Tensor) -> Seen:
            return Seen(*self.layers[name].by_sample(inputs[name], g, samples), input_weights)

        early = {name: seen_by(name, x.unsqueeze(0)) for name, x in inputs.items()}

        def estimate_inputs(block: Blocks[Any]) -> None:
            block.estimate_inputs({name: early[name] for name in block.layers if name in early})

        gradients, *_ = accel.parallel(
            lambda: self._pull_back(outputs, columns),
            *(partial(estimate_inputs, block) for block in self.blocks),
        )
        if not gradients:
            raise ModelError(
                "The outputs do not come from the recorded forward pass. Give update() what the "
                "model returned inside record()."
            )
        if not self._seen and not any(block.ready for block in self.blocks):
            unused = {n: layer.module for n, layer in self.layers.items() if n not in gradients}
            warn_uncovered(unused, stacklevel=6)
        self._recorder.clear()
        self._restart_head(active)
        return {name: seen_by(name, g) for name, g in gradients.items()}

    def _restart_head(self, active: Tensor | None) -> None:
        """Count the active outputs; the head's G starts again if their number has changed."""
        if self._head is not None:
            layer = self.model.get_submodule(self._head.name)
            every = torch.full_like(self._head.active, len(layer.weight))  # type: ignore[arg-type]
            count = every if active is None else active.sum()
            for block in self.blocks:
                block.restart_head(count != self._head.active)
            self._head.active.copy_(count)

    def _pull_back(self, outputs: Tensor, columns: Tensor) -> dict[str, Tensor]:
        if not self._batched:
            return self._recorder.pull_back(outputs, columns, batched=False)
        try:
            return self._recorder.pull_back(outputs, columns)
        except RuntimeError as error:
            # If one after another fails too, batching was not the reason.
            gradients = self._recorder.pull_back(outputs, columns, batched=False)
            self._batched = False
            warnings.warn(
                "The backward pass of this model cannot be batched; the columns of the Fisher are "
                f"computed one after another, which is slower: {error}",
                stacklevel=4,
            )
            return gradients

    def tensors(self) -> list[Tensor]:
        """Averages, counts, and the number of active outputs."""
        return [*([] if self._head is None else [self._head.active]), *super().tensors()]

    def _averages(self) -> dict[str, Tensor]:
        state = super()._averages()
        if self._head is not None and state:
            state["active_outputs"] = self._head.active
        return state | ({"batches": torch.tensor(self._batches)} if state else {})

    def _load_averages(self, averages: Mapping[str, Tensor]) -> None:
        averages = dict(averages)
        active = averages.pop("active_outputs", None)
        batches = int(averages.pop("batches", 0))
        before = {name: layer.parts for name, layer in self._matrices().items()}
        for name, layer in self._matrices().items():
            if f"{name}.A" in averages:
                layer.parts = layer.parts_of(averages[f"{name}.A"])
        try:
            super()._load_averages(averages)
        except CheckpointError:
            for name, layer in self._matrices().items():
                layer.parts = before[name]
            raise
        self._batches = batches
        if self._head is not None:
            self._head.active.fill_(-1)
            if active is not None:
                self._head.active.copy_(active)

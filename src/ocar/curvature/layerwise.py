"""Block-diagonal curvature, one block per layer: the base of K-FAC, E-KFAC and FOOF.

A kind of curvature chooses the :mod:`~ocar.curvature.blocks` of its layers. This module records the
layers, pulls back the root of the Fisher, and gives each block the inputs and gradients of its
layers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from ocar import accel
from ocar.config import require, require_options
from ocar.curvature.blocks import Blocks, Head, Seen, Sharing
from ocar.curvature.cost import Work, find_parts, warn_split
from ocar.curvature.curvature import Curvature
from ocar.curvature.found import find_layers, kind_of, uncovered, warn_uncovered
from ocar.curvature.layers import Layer, MatrixLayer, NormLayer
from ocar.curvature.recorder import Recorder
from ocar.curvature.samples import Samples
from ocar.curvature.selection import no_parameters
from ocar.errors import CheckpointError, ConfigError, ModelError
from ocar.structure import Inputs, call

Weighting = Literal["gradients", "both"]

_TRIED = 5  # samples whose gradients show their places; of few, some are there by chance


@dataclass(eq=False, repr=False)
class LayerCurvature(Curvature):
    """Curvature that is block-diagonal: each layer has a block.

    Linear layers (with any leading dimensions), 1-d and 2-d convolutions and transposed
    convolutions, ``nn.MultiheadAttention``, embeddings, parameters ``(1, ...)`` that are added to
    all samples, and on request normalisation layers have curvature. Frozen parameters get nothing.
    Other layers keep their gradient, and one warning names them. The head's G starts again when the
    number of active outputs changes.
    """

    weighting: Weighting = field(default="gradients", kw_only=True)
    """Sample weights enter ``"gradients"`` (G alone, as OCAR's authors do) or ``"both"`` (A as
    Σ w aaᵀ / Σ w too)."""

    sharing: Sharing = field(default="expand", kw_only=True)
    """``"expand"`` or ``"reduce"``, see :mod:`ocar.curvature.blocks`."""

    norm_layers: bool = field(default=False, kw_only=True)
    """Give normalisation layers one small block for each unit."""

    max_cost: float | None = field(default=1.5, kw_only=True)
    """Operations of the curvature that a learner allows, divided by those of its gradient steps. To
    keep to it, the curvature of wide layers is split, see :mod:`ocar.curvature.cost`; None for
    never."""

    def __post_init__(self) -> None:
        require_options(self)
        valid = self.max_cost is None or self.max_cost > 0
        require("max_cost", self.max_cost, valid, "larger than 0, or None for no bound")
        super().__post_init__()

    def _start(self) -> None:
        self._locations: dict[str, int] = {}
        super()._start()
        self._recorder = Recorder(self.layers, self.model)
        self._samples = Samples(self.layers)

    def share(self, shared: accel.SharedModel | None) -> None:
        """Estimate from the samples of all ranks; estimates of a block are means over samples."""
        coupled = any(isinstance(layer.module, _BatchNorm) for layer in self.layers.values())
        if shared is not None and coupled:
            raise ConfigError(
                "norm_layers=True cannot be shared out over ranks where there is BatchNorm. Use "
                "norm_layers=False, or exclude these layers."
            )
        self._shared = shared
        if shared is not None:
            for block in self.blocks:
                block.share(shared.ranks)

    @abstractmethod
    def kinds(self) -> Mapping[type[Layer], type[Blocks[Any]]]:
        """The blocks of each kind of layer; other layers keep their gradient."""

    def _find_layers(self) -> dict[str, Layer]:
        kinds = tuple(self.kinds())
        found = [
            layer
            for layer in find_layers(self.model, self.selection, head=self.head)
            if isinstance(layer, kinds) and (self.norm_layers or not isinstance(layer, NormLayer))
        ]
        if not found:
            raise no_parameters(self.model)
        layers = {layer.name: layer for layer in found}
        covered = {p for layer in found for p in layer.parameters}
        warn_uncovered(uncovered(self.model, self.selection, covered), stacklevel=8)
        return layers

    def _make_blocks(self) -> list[Blocks[Any]]:
        active = torch.full((), -1, dtype=torch.int64, device=self.device)
        self._head = None if self.head is None else Head(name=self.head, active=active)
        self.layers = self._find_layers()
        blocks = []
        for kind, make in self.kinds().items():
            own = {name: layer for name, layer in self.layers.items() if isinstance(layer, kind)}
            if own:
                blocks.append(make(own, sharing=self.sharing, head=self._head))
        return blocks

    def _matrices(self) -> dict[str, MatrixLayer]:
        """The linear layers and convolutions."""
        return {n: layer for n, layer in self.layers.items() if isinstance(layer, MatrixLayer)}

    def try_recording(self, x: Inputs) -> None:
        """See :meth:`Curvature.try_recording`."""
        with self.record() as recorder:
            outputs = call(self.model, x)
        self._find_samples(outputs, slice(0, len(outputs)))
        for name, seen in self._recorded(len(outputs)).items():
            if isinstance(layer := self.layers[name], MatrixLayer):
                self._locations[name] = sum(layer.locations(one.x, one.use) for one in seen.uses)
        recorder.clear()
        recorder.watch()  # in train mode the model may use its weights otherwise

    def _find_samples(self, outputs: Tensor, rows: slice) -> None:
        """Find where layers have the samples, which are some rows of the outputs."""
        records, samples = self._recorder.records, rows.stop - rows.start
        unknown = samples > 1 and outputs.requires_grad and not self._samples.known(records)
        if not unknown or accel.is_recording():
            return
        count = min(_TRIED, samples)
        seeds = torch.zeros_like(outputs).expand(count, *outputs.shape).clone()
        pattern = torch.arange(outputs.shape[1], device=outputs.device).cos().to(seeds)
        for column in range(count):
            seeds[column, rows.start + column] = pattern
        coupled = any(isinstance(m, _BatchNorm) and m.training for m in self.model.modules())
        gradients = self._recorder.pull_back(outputs, seeds)
        self._samples.find(records, gradients, samples, coupled=coupled)

    def _recorded(
        self,
        samples: int,
        gradients: Mapping[str, Sequence[Tensor]] | None = None,
        weights: Tensor | None = None,
    ) -> dict[str, Seen]:
        """What each layer saw; without gradients only their inputs count."""
        found = {}
        for name, records in self._samples.complete(self._recorder.records, samples).items():
            if gradients is not None and name not in gradients:
                continue
            uses = []
            for index, one in enumerate(records):
                g = one.x.unsqueeze(0) if gradients is None else gradients[name][index]
                x, g = self._samples.by_sample(name, index, one, g, samples)
                uses.append(Seen(x, g, weights, one.use))
            found[name] = replace(uses[0], others=tuple(uses[1:]))
        self._unseen = self.layers.keys() - found.keys()
        return found

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
        rows = slice(0, len(outputs))
        samples, input_weights = len(outputs), None
        if weights is not None and self.weighting == "both":
            input_weights = weights * (samples / weights.sum())
        if self._shared is not None:  # this rank has seen some of them
            rows = self._shared.share(samples).computed
            samples = len(range(*rows.indices(samples)))
            input_weights = None if input_weights is None else input_weights[rows]
        self._find_samples(outputs, rows)
        early = self._recorded(samples, weights=input_weights)

        def estimate_inputs(block: Blocks[Any]) -> None:
            block.estimate_inputs({name: early[name] for name in block.layers if name in early})

        gradients, *_ = accel.parallel(
            lambda: self._recorder.pull_back(outputs, columns),
            *(partial(estimate_inputs, block) for block in self.blocks),
        )
        if not gradients:
            raise ModelError(
                "The outputs do not come from the recorded forward pass. Give update() what the "
                "model returned inside record()."
            )
        seen = self._recorded(samples, gradients, input_weights)
        if not self._seen and not any(block.ready for block in self.blocks):
            unused = {n: kind_of(own) for n, own in self.layers.items() if n not in seen}
            warn_uncovered(unused, stacklevel=6)
        self._recorder.clear()
        self._restart_head(active)
        return seen

    def _restart_head(self, active: Tensor | None) -> None:
        """Count the head's units; its G starts again if their number has changed."""
        if self._head is not None:
            layer = self.model.get_submodule(self._head.name)
            every = torch.full_like(self._head.active, len(layer.weight))  # type: ignore[arg-type]
            count = every if active is None else active.sum()
            if self.units is not None:
                count = torch.maximum(count, self.units.to(count.dtype))
            for block in self.blocks:
                block.restart_head(count != self._head.active)
            self._head.active.copy_(count)

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

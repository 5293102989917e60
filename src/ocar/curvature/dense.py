"""The full Fisher of all parameters together, for models of a few thousand parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ocar.accel import linalg
from ocar.curvature.blocks import Blocks, Seen
from ocar.curvature.curvature import Curvature
from ocar.curvature.fisher import FisherRoot, separate
from ocar.curvature.layers import Layer
from ocar.curvature.selection import Selection, no_parameters
from ocar.errors import CheckpointError, ModelError

MAX_PARAMETERS = 20_000
"""Above this the matrix would take more than 3 GiB."""


class WholeModel(Layer):
    """The trainable parameters of a model, as if they were one layer."""

    def __init__(self, name: str, module: nn.Module, selection: Selection) -> None:
        super().__init__(name, module)
        self.selection = selection

    def __str__(self) -> str:
        return "the model"

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The trainable parameters, in the order of the rows of the Fisher."""
        return [p for p in self.module.parameters() if p in self.selection]

    @property
    def size(self) -> int:
        """How many numbers they are."""
        return sum(p.numel() for p in self.parameters)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """One matrix."""
        return {"F": (1, self.size, self.size)}


class DenseBlocks(Blocks[WholeModel]):
    """The Fisher of a whole model."""

    about = "full Fisher"

    def estimate(self, seen: Mapping[str, Seen]) -> None:
        """1/n Σ s sᵀ with the scores s, ``(scores, parameters)``."""
        for name, own in seen.items():
            place = self.buffer.estimate(f"{name}.F")[0]
            score = own.g.to(place.dtype)
            torch.mm(score.mT, score / len(own.x), out=place)

    def prepare(self, damping: Tensor | float) -> Tensor:
        """Invert the damped Fisher."""
        return self._invert_averages("F", damping)

    def precondition_(self) -> None:
        """Multiply all gradients with the inverse; a missing one counts as zero."""
        for name, inverse in self.buffer.derived.get("inverses", {}).items():
            parameters = self.layers[name].parameters
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
            row = torch.cat([grad.flatten() for grad in grads])
            result = inverse[0] @ row.to(inverse.dtype)
            parts = result.split([p.numel() for p in parameters])
            for parameter, part in zip(parameters, parts, strict=True):
                parameter.grad = part.view_as(parameter).to(parameter.dtype, copy=True)

    def eigenvalues(self, layer: WholeModel, damping: float) -> Tensor:
        """Eigenvalues of the damped Fisher."""
        values, _ = linalg.eigen(self.buffer.average(f"{layer.name}.F"), name=str(layer))
        return values[0] + damping

    def infinite(self) -> list[str]:
        """No layer can be named."""
        return []

    def fit(self) -> None:
        """A model that has grown starts again."""
        if self.shapes() != self.buffer.shapes:
            self.allocate()
            self.ready.clear()


@dataclass(eq=False, repr=False)
class DenseFisher(Curvature):
    """Preconditions gradients with (F + τI)⁻¹, F the averaged full Fisher.

    It has none of the approximations of :class:`~ocar.curvature.kfac.KFAC`, at a cost that only
    models of at most 20,000 parameters can bear. Samples are always independent (see
    :mod:`ocar.curvature.fisher`). An estimate after the model has grown is taken whole.
    """

    fisher: str | FisherRoot = field(default="exact", kw_only=True)
    """Root of the Fisher, see :mod:`ocar.curvature.fisher`."""

    def _make_blocks(self) -> list[Blocks[Any]]:
        self._whole = WholeModel("model", self.model, self.selection)
        if not self._whole.size:
            raise no_parameters(self.model)
        if self._whole.size > MAX_PARAMETERS:
            raise ModelError(
                f"{type(self.model).__name__} has {self._whole.size:,} trainable parameters; the "
                f"full Fisher is for at most {MAX_PARAMETERS:,}. Use KFAC."
            )
        return [DenseBlocks({"model": self._whole})]

    @property
    def average(self) -> Tensor:
        """The averaged Fisher, ``(parameters, parameters)``."""
        return self.blocks[0].buffer.average("model.F")[0]

    def _see(
        self, outputs: Tensor, columns: Tensor, weights: Tensor | None, active: Tensor | None
    ) -> dict[str, Seen]:
        """The score of every sample and column."""
        columns, parameters = separate(columns), self._whole.parameters
        scores = [
            columns.new_zeros(len(columns), p.numel()) if g is None else g.flatten(1)
            for p, g in zip(
                parameters, self._recorder.pull(outputs, parameters, columns), strict=True
            )
        ]
        return {"model": Seen(outputs.detach(), torch.cat(scores, dim=1), None)}

    def _averages(self) -> dict[str, Tensor]:
        counts = self.blocks[0].buffer.counts
        return {"model": self.average, "count": counts[0]} if int(counts) else {}

    def _load_averages(self, averages: Mapping[str, Tensor]) -> None:
        size = (self._whole.size,) * 2
        given = {name: tuple(value.shape) for name, value in averages.items()}
        if given not in ({}, {"model": size, "count": ()}):
            raise CheckpointError(
                f"The full Fisher needs one matrix of size {size}; the checkpoint has {given}."
            )
        names = {"model": "model.F", "count": "model.F.count"}
        state = {names[name]: value for name, value in averages.items()}
        self.blocks[0].load(state | ({"model.F": averages["model"][None]} if state else {}))

"""The layers of a model that have curvature, and the parameters that have none."""

from __future__ import annotations

import warnings
from collections.abc import Container, Mapping

from torch import nn

from ocar.curvature.layers import (
    NORM_LAYERS,
    AddedLayer,
    EmbeddingLayer,
    Layer,
    MatrixLayer,
    make_layers,
)
from ocar.errors import ModelError


def find_layers(
    model: nn.Module, selection: Container[nn.Parameter], *, head: str | None = None
) -> list[Layer]:
    """The layers whose weights are in the selection; those that share a weight are one.

    Args:
        model: The model.
        selection: The parameters that may have curvature.
        head: Name of the layer that makes the outputs. A layer that shares its weight has its name.

    Raises:
        ModelError: Layers of different kinds share a weight, and there is no curvature for that.
    """
    by_weight: dict[int, list[Layer]] = {}
    attended: set[nn.Module] = set()
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            attended.add(module.out_proj)  # it uses the weights without a call
        for layer in make_layers(name, module):
            if layer.weight in selection:
                layer.by_function |= module in attended
                if layer.bias is not None and layer.bias not in selection:
                    layer.bias_name = None
                by_weight.setdefault(id(layer.weight), []).append(layer)
    found = [_one_of(layers, head) for layers in by_weight.values()]
    _share_no_bias(found)
    return found


def _one_of(layers: list[Layer], head: str | None) -> Layer:
    """One layer for all that share a weight."""
    if len(layers) == 1:
        return layers[0]
    first = next((layer for layer in layers if layer.name == head), layers[0])
    kinds = {type(layer) for layer in layers}
    linear = all(isinstance(layer, MatrixLayer) and layer.is_linear for layer in layers)
    if kinds == {EmbeddingLayer, MatrixLayer}:
        lookup = next(layer for layer in layers if isinstance(layer, EmbeddingLayer))
        first = EmbeddingLayer(first.name, lookup.module, bias=None, by_function=True)
    elif kinds != {EmbeddingLayer} and not linear:
        raise _shared(layers[0], layers[1])
    elif len({id(layer.bias) for layer in layers}) > 1:
        first.bias_name = None  # each has a bias of its own, which keeps its gradient
    first.by_function |= any(layer.by_function for layer in layers)
    first.modules = [layer.module for layer in layers]
    return first


def _share_no_bias(layers: list[Layer]) -> None:
    """Raise if layers with different weights share a bias."""
    owners: dict[int, Layer] = {}
    for layer in layers:
        if layer.bias is not None:
            other = owners.setdefault(id(layer.bias), layer)
            if other is not layer:
                raise _shared(other, layer)


def _shared(one: Layer, other: Layer) -> ModelError:
    return ModelError(
        f"Layers {one.name!r} and {other.name!r} share a parameter. There is curvature for a "
        "weight that linear layers share, or that linear layers share with an embedding: untie "
        f"these, or use exclude=[{other.name!r}]."
    )


def uncovered(
    model: nn.Module, selection: Container[nn.Parameter], covered: Container[nn.Parameter]
) -> dict[str, str]:
    """Modules, or some of their parameters, that have no curvature, by name; and their kind.

    Normalisation layers are not listed: they keep their gradient unless that is asked for.
    """
    found = {}
    for name, module in model.named_modules():
        own = {n: p for n, p in module.named_parameters(recurse=False) if p in selection}
        without = [n for n, p in own.items() if p not in covered]
        if not without or isinstance(module, NORM_LAYERS):
            continue
        if name and len(without) == len(own):
            found[name] = type(module).__name__
        else:
            prefix = f"{name}." if name else ""
            found |= {prefix + key: "parameter" for key in without}
    return found


def kind_of(layer: Layer) -> str:
    """What a layer is, for a message."""
    return "parameter" if isinstance(layer, AddedLayer) else type(layer.module).__name__


def warn_uncovered(uncovered: Mapping[str, str], *, stacklevel: int = 4) -> None:
    """One warning that names what keeps its plain gradient, with its kind."""
    if uncovered:
        listed = ", ".join(f"{name} ({kind})" for name, kind in uncovered.items())
        warnings.warn(
            f"No curvature for {len(uncovered)} layer(s), which keep their plain gradient: "
            f"{listed}.",
            stacklevel=stacklevel,
        )

"""Layers as the curvature sees them.

**The layout**, used everywhere in this package. A layer with shared weights applies them at L
*locations* of each sample: the pixels of a convolution, the tokens of a sequence. Other layers have
L = 1. Groups split the channels.

* inputs ``a``: ``(n, groups, d_in, L)``, with a last row of ones if the layer has a bias
* output gradients ``g``: ``(columns, n, groups, d_out, L)``, one column for each column of the
  Fisher's root
* the gradient of weight and bias as a matrix: ``(groups, d_out, d_in)``

All three order the inputs of a convolution like its weight in memory.

A weight may be used several times in a forward pass: by a layer that is called twice, or by two
layers that share it. The locations of all uses count.
"""

from __future__ import annotations

from torch import nn

from ocar.curvature.diagonal_layers import (
    NORM_LAYERS,
    AddedLayer,
    DiagonalLayer,
    EmbeddingLayer,
    NormLayer,
)
from ocar.curvature.layer import ONCE, Layer, Use
from ocar.curvature.matrix_layers import MatrixLayer, ReversedLayer, TransposedLayer

__all__ = [
    "NORM_LAYERS",
    "ONCE",
    "AddedLayer",
    "DiagonalLayer",
    "EmbeddingLayer",
    "Layer",
    "MatrixLayer",
    "NormLayer",
    "ReversedLayer",
    "TransposedLayer",
    "Use",
    "make_layer",
    "make_layers",
]

_KINDS: tuple[tuple[type[nn.Module], type[Layer]], ...] = (
    (nn.Linear, MatrixLayer),
    (nn.Conv1d, MatrixLayer),
    (nn.Conv2d, MatrixLayer),
    (nn.ConvTranspose1d, TransposedLayer),
    (nn.ConvTranspose2d, TransposedLayer),
    (nn.Embedding, EmbeddingLayer),
    *((kind, NormLayer) for kind in NORM_LAYERS),
)
"""The kinds of modules that have a layer."""


def make_layer(name: str, module: nn.Module) -> Layer | None:
    """The layer of a module, or None where there is none for its kind."""
    weight, bias = module._parameters.get("weight"), module._parameters.get("bias")
    if weight is None or not weight.requires_grad:
        return None
    if bias is None and getattr(module, "bias", None) is not None:
        return None  # it is computed from other parameters
    if isinstance(module, nn.Embedding) and module.sparse:
        return None
    for kind, layer in _KINDS:
        if isinstance(module, kind):
            hidden = "forward" in module.__dict__ or type(module).forward is not kind.forward
            hidden |= layer in (TransposedLayer, EmbeddingLayer)
            return layer(name, module, by_function=hidden)
    return None


def make_layers(name: str, module: nn.Module) -> list[Layer]:
    """The layers of the parameters that a module has itself."""
    layer = make_layer(name, module)
    if layer is not None:
        return [layer]
    prefix = f"{name}." if name else ""
    own = {key: p for key, p in module._parameters.items() if p is not None and p.requires_grad}
    if type(module).__name__ == "Conv1D" and "weight" in own and own["weight"].dim() == 2:
        return [ReversedLayer(name, module, by_function=True)]
    if isinstance(module, nn.MultiheadAttention):
        # The weights of separate projections share one bias, which keeps its gradient.
        return [
            MatrixLayer(
                prefix + key,
                module,
                weight=f"{key}_weight",
                bias="in_proj_bias" if key == "in_proj" else None,
                by_function=True,
            )
            for key in ("in_proj", "q_proj", "k_proj", "v_proj")
            if f"{key}_weight" in own
        ]
    if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        weights = (key for key in own if key.startswith("weight"))
        return [
            MatrixLayer(prefix + key, module, weight=key, bias=f"bias{key[6:]}", by_function=True)
            for key in weights
        ]
    if type(module).__module__.startswith("torch.nn."):
        return []
    return [
        AddedLayer(prefix + key, module, weight=key, bias=None, by_function=True)
        for key, p in own.items()
        if p.dim() > 1 and p.shape[0] == 1
    ]

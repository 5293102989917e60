"""Latent replay: a frozen backbone in front of the network that learns.

Pellegrini et al., "Latent Replay for Real-Time Continual Learning" (2020). A sample goes through
the backbone once, when it arrives. The memory stores the features that come out, and replayed
samples skip the backbone.
"""

from __future__ import annotations

import hashlib
from typing import Self

import torch
from torch import Tensor, nn

from ocar.config import require
from ocar.errors import ModelError
from ocar.models.cut import cut
from ocar.structure import FLOATS, Inputs, apply, call, parts_of


class LatentReplay(nn.Module):
    """A model whose backbone is frozen; a learner stores its features and learns the rest.

    Raw samples are normalised and augmented before the backbone, once. Its features are
    standardised before the rest, unless the learner has ``standardize=False``. The backbone stays
    in eval mode.

    Args:
        backbone: From inputs ``(n, ...)`` to features ``(n, ...)``; it is frozen in place.
        rest: From features to outputs; the model that learns.
        dtype: Type in which the memory stores features, such as ``torch.float16`` for half of the
            bytes; by default that of the backbone. Its range must hold them.

    Raises:
        ModelError: Backbone and rest share a parameter.
    """

    def __init__(
        self, backbone: nn.Module, rest: nn.Module, *, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        valid = dtype is None or dtype in FLOATS
        require("dtype", dtype, valid, f"one of {', '.join(map(str, FLOATS))} or None")
        own = {id(p) for p in backbone.parameters()}
        if shared := [name for name, p in rest.named_parameters() if id(p) in own]:
            raise ModelError(
                f"The backbone cannot be frozen: the rest also uses its {', '.join(shared)}."
            )
        self.backbone = backbone.requires_grad_(False).eval()
        self.rest = rest
        self.dtype = dtype

    @classmethod
    def at(cls, model: nn.Module, layer: str, *, dtype: torch.dtype | None = None) -> Self:
        """A network, frozen up to a layer, included; it shares the layers of ``model``.

        Args:
            model: A network of one input.
            layer: Name of the layer, as in ``model.named_modules()``.
            dtype: Type in which the memory stores the outputs of the layer.

        Raises:
            ModelError: There is no such layer, or what follows it also needs what came before.
        """
        return cls(*cut(model, layer), dtype=dtype)

    def train(self, mode: bool = True) -> Self:
        """Train or eval mode of the rest."""
        super().train(mode)
        self.backbone.eval()
        return self

    @torch.no_grad()
    def features(self, x: Inputs) -> Tensor:
        """What the memory stores for inputs ``(n, ...)``, in its type."""
        if self.backbone.training:  # somebody has changed it
            self.backbone.eval()
        like = next(self.backbone.parameters(), None)
        if like is not None:
            x = apply(lambda part: part.to(like.dtype) if part.is_floating_point() else part, x)
        features = call(self.backbone, x)
        rows = next(iter(parts_of(x).values())).shape[:1]  # not len(x), which fixes n in a trace
        if not isinstance(features, Tensor) or features.shape[:1] != rows:
            given = tuple(features.shape) if isinstance(features, Tensor) else type(features)
            raise ModelError(
                f"The backbone must return one tensor ({len(x)}, ...) for {len(x)} samples; given "
                f"{given}."
            )
        if not features.is_floating_point():
            raise ModelError(f"The backbone must return floating point; given {features.dtype}.")
        return features if self.dtype is None else features.to(self.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs for inputs ``(n, ...)``; a learner also standardises the features."""
        like = next(self.rest.parameters())
        outputs: Tensor = self.rest(self.features(x).to(like.dtype))
        return outputs

    def sample_bytes(self, x: Tensor) -> int:
        """Bytes that the memory takes for the features of one sample, such as ``x[0]``."""
        features = self.features(x[None].to(next(self.parameters()).dtype))
        return features.numel() * features.element_size()

    def checksum(self) -> str:
        """SHA-256 of the backbone: names and kinds of its modules, its weights and buffers."""
        digest = hashlib.sha256(str(self.dtype).encode())
        for name, module in self.backbone.named_modules():
            digest.update(f"{name} {type(module).__name__};".encode())
        for name, tensor in self.backbone.state_dict().items():
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
            plain = tensor.detach().cpu().contiguous().reshape(-1)
            digest.update(plain.view(torch.uint8).numpy().data)
        return digest.hexdigest()


def learned_part(model: nn.Module) -> nn.Module:
    """The part of a model that learns: the rest after a frozen backbone, or all of it."""
    return model.rest if isinstance(model, LatentReplay) else model

"""A small transformer for sentences of token ids, made of linear layers and embeddings only.

Pre-norm blocks without dropout. The attention is written out, so that its four linear maps are
``nn.Linear`` layers, which every kind of curvature knows.

Vaswani et al., Attention Is All You Need, NeurIPS 2017.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from ocar.config import require, require_sizes


class Block(nn.Module):
    """Attention and a network of one hidden layer, each added to its input.

    ``width`` counts the features of a token; the heads of the attention must divide it.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_hidden = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.hidden, self.back = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Tokens ``(n, L, width)`` to the same; ``mask`` ``(n, L)`` is true where one is."""
        x = x + self.out(self._attend(self.norm_attention(x), mask))
        hidden: Tensor = self.back(functional.gelu(self.hidden(self.norm_hidden(x))))
        return x + hidden

    def _attend(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (
            layer(x).unflatten(2, (self.heads, -1)).transpose(1, 2)  # (n, heads, L, d)
            for layer in (self.query, self.key, self.value)
        )
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        scores = scores.masked_fill(~mask[:, None, None], -torch.inf)
        return (scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2)


class TextTransformer(nn.Module):
    """Embeddings of tokens and places, blocks, the mean over the tokens, ``head``.

    Args:
        length: Ids of a sentence, see :class:`~ocar.datasets.texts.HashedWords`.
        buckets: Different ids; 0 is padding.
        width: Features of a token.
        blocks: Blocks of attention.
        heads: Heads of the attention.
        classes: Outputs of ``head``; the learner masks units without a class.
    """

    def __init__(
        self,
        length: int,
        *,
        buckets: int = 8192,
        width: int = 64,
        blocks: int = 1,
        heads: int = 4,
        classes: int = 16,
    ) -> None:
        super().__init__()
        require_sizes(length=length, buckets=buckets, width=width, blocks=blocks, classes=classes)
        divides = heads >= 1 and width % heads == 0
        require("heads", heads, divides, f"at least 1: the heads must divide the width, {width}")
        self.token = nn.Embedding(buckets, width, padding_idx=0)
        self.place = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def features(self, ids: Tensor) -> Tensor:
        """Mean of the tokens' features, ``(n, width)``, of ids ``(n, length)``."""
        ids = ids.flatten(1).long()
        mask = ids != 0
        mask[:, 0] = True  # something to attend to in an empty sentence
        places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        x = self.token(ids) + self.place(places)
        for block in self.blocks:
            x = block(x, mask)
        count = mask.sum(dim=1, keepdim=True)
        mean: Tensor = (self.norm(x) * mask[..., None]).sum(dim=1) / count
        return mean

    def forward(self, ids: Tensor) -> Tensor:
        """Logits ``(n, classes)`` of ids ``(n, length)``."""
        logits: Tensor = self.head(self.features(ids))
        return logits

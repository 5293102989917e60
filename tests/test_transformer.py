"""The transformer for sentences against PyTorch's layers, and learned by OCAR."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import ocar
from ocar.errors import ConfigError
from ocar.models import TextTransformer
from ocar.models.transformer import Block

EXACT = {"rtol": 1e-10, "atol": 1e-10}


def sentences(n: int, length: int = 6, buckets: int = 30) -> Tensor:
    """Token ids of different lengths, padded by zeros."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, buckets, (n, length), generator=generator)
    ids[torch.arange(length) > torch.arange(n)[:, None] % length] = 0
    return ids


def test_a_block_is_that_of_pytorch() -> None:
    torch.manual_seed(0)
    block = Block(8, 2).double()
    theirs = nn.TransformerEncoderLayer(
        8, 2, 16, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    ).double()
    ours = (block.query, block.key, block.value)
    attention = theirs.self_attn
    with torch.no_grad():
        attention.in_proj_weight.copy_(torch.cat([layer.weight for layer in ours]))
        attention.in_proj_bias.copy_(torch.cat([layer.bias for layer in ours]))
    pairs = ((attention.out_proj, block.out), (theirs.linear1, block.hidden))
    for into, layer in (*pairs, (theirs.linear2, block.back)):
        into.load_state_dict(layer.state_dict())
    x, mask = torch.randn(5, 6, 8, dtype=torch.float64), sentences(5) != 0
    expected = theirs(x, src_key_padding_mask=~mask)
    torch.testing.assert_close(block(x, mask)[mask], expected[mask], **EXACT)


def test_padding_changes_nothing() -> None:
    torch.manual_seed(0)
    model = TextTransformer(6, buckets=30, width=8, heads=2, blocks=2, classes=4).double()
    ids = sentences(5)
    for row in ids:
        length = int((row != 0).sum())
        torch.testing.assert_close(model(row[None]), model(row[None, :length]), **EXACT)
    assert torch.isfinite(model(torch.zeros(1, 6, dtype=torch.int64))).all()
    assert not torch.allclose(model(ids[-1:]), model(ids[-1:].flip(1)))  # the order of words counts


def test_it_is_checked() -> None:
    with pytest.raises(ConfigError, match="the heads must divide the width"):
        TextTransformer(6, width=10, heads=4)


def test_ocar_learns_it_with_the_curvature_of_every_layer() -> None:
    torch.manual_seed(0)
    model = TextTransformer(6, buckets=30, width=8, heads=2, classes=4)
    x = sentences(24)
    y = x[:, 0] % 3  # of the first word
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of a layer without curvature
        learner = ocar.OCAR(model, memory=24, seed=0)
        for rows, labels in zip(x.repeat(25, 1).split(8), y.repeat(25).split(8), strict=True):
            learner.learn(rows, labels)
    said = torch.tensor(learner.classes)[learner.predict(x).argmax(1)]
    assert (said == y).float().mean() > 0.9

"""Networks for sequences and tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.parts import Group, Net, head

zoo = Group("sequences")


def last(kind: type[nn.RNNBase], **options: Any) -> nn.Module:
    """A recurrent network whose last output goes into the head."""
    sides = 2 if options.get("bidirectional") else 1
    return Net(
        lambda m, x: m.head(m.rnn(x)[0][:, -1]),
        rnn=kind(4, 16 // sides, batch_first=True, **options),
        head=head(),
    )


def attention() -> nn.Module:
    """Attention of one's own, with a causal mask of bool."""
    return Net(
        lambda m, x: m.head(
            F.scaled_dot_product_attention(*m.qkv(x).chunk(3, -1), attn_mask=m.mask).mean(1)
        ),
        qkv=nn.Linear(4, 48),
        head=head(),
        mask=nn.Buffer(torch.ones(8, 8, dtype=torch.bool).tril()),
    )


def masked() -> nn.Module:
    """The same with a mask of −∞."""
    model = attention()
    model.mask = nn.Buffer(torch.full((8, 8), -torch.inf).triu(1))
    return model


def cell_by_cell() -> nn.Module:
    """A recurrent cell in a loop."""

    def run(m: Any, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), 16)
        for step in x.unbind(1):
            state = m.cell(step, state)
        outputs: Tensor = m.head(state)
        return outputs

    return Net(run, cell=nn.GRUCell(4, 16), head=head())


def state_space() -> nn.Module:
    """A diagonal linear recurrence."""

    def run(m: Any, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), 16)
        for step in m.inputs(x).unbind(1):
            state = m.decay.sigmoid() * state + step
        outputs: Tensor = m.head(state.tanh())
        return outputs

    return Net(run, inputs=nn.Linear(4, 16), decay=nn.Parameter(torch.ones(16)), head=head())


def rope() -> nn.Module:
    """Rotary positions, in a complex buffer that is not saved."""
    angles = torch.outer(torch.arange(8.0), 10.0 ** -torch.arange(2.0))

    def run(m: Any, x: Tensor) -> Tensor:
        turned = torch.view_as_real(torch.view_as_complex(x.unflatten(2, (2, 2))) * m.turns)
        outputs: Tensor = m.head(m.a(turned.flatten(2)).relu().mean(1))
        return outputs

    turns = nn.Buffer(torch.polar(torch.ones_like(angles), angles), persistent=False)
    return Net(run, a=nn.Linear(4, 16), head=head(), turns=turns)


def transformer(**options: Any) -> nn.Module:
    """Embeddings, positions, one layer of a transformer."""
    return Net(
        lambda m, x: m.head(m.layer(m.embed(x.long()) + m.place).mean(1)),
        embed=nn.Embedding(30, 16),
        place=nn.Parameter(torch.randn(8, 16) / 10),
        layer=nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, **options),
        head=head(),
    )


def tied(units: int = 30) -> nn.Module:
    """A language model's head, which is the embedding."""
    model = Net(
        lambda m, x: m.head(m.a(m.embed(x.long()).mean(1)).relu()),
        embed=nn.Embedding(units, 16),
        a=nn.Linear(16, 16),
        head=nn.Linear(16, units, bias=False),
    )
    model.head.weight = model.embed.weight  # type: ignore[union-attr]
    return model


SEQUENCES: dict[str, Any] = {"fed": "sequences"}
TOKENS: dict[str, Any] = {"fed": "tokens"}
zoo("RNN", lambda: last(nn.RNN), **SEQUENCES)
zoo("LSTM", lambda: last(nn.LSTM), **SEQUENCES)
zoo("GRU, both ways", lambda: last(nn.GRU, bidirectional=True), **SEQUENCES)
zoo(
    "LSTM, two layers with dropout",
    batches=120,
    make=lambda: last(nn.LSTM, num_layers=2, dropout=0.2),
    **SEQUENCES,
)
zoo(
    "LSTM, time first",
    lambda: Net(
        lambda m, x: m.head(m.rnn(x.transpose(0, 1))[0][-1]), rnn=nn.LSTM(4, 16), head=head()
    ),
    **SEQUENCES,
)
zoo("recurrent cell in a loop", cell_by_cell, **SEQUENCES)
zoo("linear recurrence", state_space, **SEQUENCES)
zoo(
    "Conv1d",
    lambda: Net(lambda m, x: m.head(m.a(x.mT).relu().mean(2)), a=nn.Conv1d(4, 16, 3), head=head()),
    **SEQUENCES,
)
zoo(
    "dilated Conv1d, causal",
    lambda: Net(
        lambda m, x: m.head(m.b(F.pad(m.a(F.pad(x.mT, (1, 0))).relu(), (2, 0)))[..., -1]),
        a=nn.Conv1d(4, 16, 2),
        b=nn.Conv1d(16, 16, 2, dilation=2),
        head=head(),
    ),
    **SEQUENCES,
)
zoo(
    "MultiheadAttention",
    lambda: Net(
        lambda m, x: m.head(m.attend(h := m.a(x), h, h)[0].mean(1)),
        a=nn.Linear(4, 16),
        attend=nn.MultiheadAttention(16, 2, batch_first=True),
        head=head(),
    ),
    **SEQUENCES,
)
zoo(
    "attention with dropout of its own",
    lambda: Net(
        lambda m, x: m.head(m.attend(h := m.a(x), h, h, need_weights=False)[0].mean(1)),
        a=nn.Linear(4, 16),
        attend=nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True),
        head=head(),
    ),
    **SEQUENCES,
)
zoo("causal attention, mask of bool", attention, **SEQUENCES)
zoo(
    "causal attention, mask of −Inf",
    masked,
    refused="has NaN or Inf in mask, and a checkpoint refuses them",
    **SEQUENCES,
)
zoo("rotary positions", rope, **SEQUENCES)
zoo(
    "linear layer on time first",
    lambda: Net(
        lambda m, x: m.head(m.a(x.transpose(0, 1)).relu().mean(0)), a=nn.Linear(4, 16), head=head()
    ),
    **SEQUENCES,
)
zoo(
    "Embedding",
    lambda: Net(
        lambda m, x: m.head(m.embed(x.long()).mean(1)), embed=nn.Embedding(30, 16), head=head()
    ),
    **TOKENS,
)
zoo(
    "EmbeddingBag",
    lambda: Net(lambda m, x: m.head(m.embed(x.long())), embed=nn.EmbeddingBag(30, 16), head=head()),
    **TOKENS,
)
zoo("transformer", transformer, **TOKENS)
zoo("transformer without dropout", lambda: transformer(dropout=0.0), **TOKENS)
zoo(
    "sparse gradients",
    lambda: Net(
        lambda m, x: m.head(m.embed(x.long()).mean(1)),
        embed=nn.Embedding(30, 16, sparse=True),
        head=head(),
    ),
    **TOKENS,
)
zoo(
    "head tied to the embedding",
    tied,
    refused="cannot grow as classes appear: it shares its weight with layer 'embed'",
    **TOKENS,
)
zoo(
    "head tied to the embedding, classes given",
    tied,
    settings={"classes": range(30)},
    **TOKENS,
)

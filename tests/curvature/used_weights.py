"""Networks that use weights in ways that a call of a module does not show, and their inputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from learners.zoo.parts import Net
from torch import Tensor, nn
from torch.nn import functional as F


class SamePadding(nn.Conv2d):
    """Pads inside its own ``forward``, as TensorFlow does; its attributes say nothing of it."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(
            F.pad(x, (0, 1, 1, 2)),
            self.weight,
            self.bias,
            self.stride,
            0,
            self.dilation,
            self.groups,
        )


class OtherStride(nn.Conv2d):
    """Convolves with another stride and padding than its attributes say."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, bias=self.bias, stride=2, padding=(1, 0))


class Same(nn.Conv1d):
    """Padding by name, of a kernel of even size."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv1d(x, self.weight, self.bias, padding="same", dilation=2)


class Scaled(nn.Linear):
    """Multiplies its input before the product."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(3 * x, self.weight, self.bias)


class Shifted(nn.Embedding):
    """Positions that are computed from something else, such as a mask."""

    def forward(self, mask: Tensor) -> Tensor:
        return super().forward(mask.cumsum(1) + 1)


class Conv1D(nn.Module):
    """A linear layer as GPT-2 has it in transformers."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs))
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, x: Tensor) -> Tensor:
        flat = torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight)
        return flat.view(*x.shape[:-1], -1)


def after(layer: nn.Module, outputs: int) -> nn.Module:
    """A layer, Tanh, and a head."""
    return nn.Sequential(layer, nn.Tanh(), nn.Flatten(), nn.Linear(outputs, 3))


def attention(*, run: Callable[..., Tensor] | None = None, **options: object) -> nn.Module:
    """Attention among tokens, and a head."""

    def plain(m: Net, x: Tensor) -> Tensor:
        return m.head(m.attend(x, x, x)[0].mean(1))

    layer = nn.MultiheadAttention(4, 2, **{"batch_first": True, **options})
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return Net(run or plain, attend=layer, head=nn.Linear(4, 3))


def time_first(m: Net, x: Tensor) -> Tensor:
    x = x.transpose(0, 1)
    return m.head(m.attend(x, x, x, need_weights=False)[0].mean(0))


def crossed(m: Net, x: Tensor) -> Tensor:
    """Queries, keys and values of three kinds."""
    return m.head(m.attend(x[:, :2], x, x.tanh())[0].mean(1))


def encoded(m: Net, x: Tensor) -> Tensor:
    """Queries of one kind, keys and values of another."""
    return m.head(m.attend(x[:, :2], x, x, need_weights=False)[0].mean(1))


def masked(m: Net, x: Tensor) -> Tensor:
    hidden = torch.ones(3, 3, dtype=torch.bool).triu(1)
    return m.head(m.attend(x, x, x, attn_mask=hidden, average_attn_weights=False)[0].mean(1))


def separate(m: Net, x: Tensor) -> Tensor:
    return m.head(m.attend(x, x[..., :3], x[..., 1:3])[0].mean(1))


def recurrent(kind: type[nn.RNNBase], *, outputs: int = 4, **options: Any) -> nn.Module:
    """A recurrent network, and a head on all its outputs and on its last state."""

    def run(m: Net, x: Tensor) -> Tensor:
        hidden, last = m.rnn(x if m.rnn.batch_first else x.transpose(0, 1))
        state = last[0] if isinstance(last, tuple) else last
        return m.head(hidden.mean(1 if m.rnn.batch_first else 0)) + m.other(state[0])

    rnn = kind(4, 4, **{"batch_first": True, **options})
    size = options.get("proj_size", 4)
    return Net(run, rnn=rnn, head=nn.Linear(outputs, 3), other=nn.Linear(size, 3))


def stepwise(m: Net, x: Tensor) -> Tensor:
    state = None
    for time in range(x.shape[1]):
        state = m.cell(x[:, time], state)
    return m.head(state[0] if isinstance(state, tuple) else state)


def linear(run: Callable[..., Tensor], **parts: nn.Module | nn.Parameter) -> nn.Module:
    return Net(run, body=nn.Linear(4, 4), head=nn.Linear(4, 3), **parts)


def second(m: Net, x: Tensor) -> Tensor:
    """Samples in the second dimension."""
    return m.head(torch.tanh(m.body(x.transpose(0, 1))).mean(0))


def flat_second(m: Net, x: Tensor) -> Tensor:
    """Rows of one time after another, and for each time the samples."""
    rows = m.body(x.transpose(0, 1).reshape(-1, 4))
    return m.head(torch.tanh(rows).view(-1, len(x), 4).mean(0))


def parts_of_images(m: Net, x: Tensor, *, outer: bool = False) -> Tensor:
    """One convolution for two halves of each image."""
    halves = torch.stack(x[..., :4].chunk(2, dim=-1), dim=0 if outer else 1)
    found = torch.tanh(m.body(halves.flatten(0, 1))).flatten(1)
    whole = found.view(2, len(x), -1).sum(0) if outer else found.view(len(x), 2, -1).sum(1)
    return m.head(whole)


def windows(m: Net, x: Tensor, *, outer: bool = False) -> Tensor:
    """Attention among the tokens of each half."""
    halves = torch.stack(x.chunk(2, dim=1), dim=0 if outer else 1).flatten(0, 1)
    if not m.attend.batch_first:
        halves = halves.transpose(0, 1)
    found = m.attend(halves, halves, halves, need_weights=False)[0]
    found = (found if m.attend.batch_first else found.transpose(0, 1)).mean(1)
    return m.head(found.view(2, len(x), 4).sum(0) if outer else found.view(len(x), 2, 4).sum(1))


def encoder_second(m: Net, x: Tensor) -> Tensor:
    return m.head(m.layer(x.transpose(0, 1)).mean(0))


def ids_second(m: Net, x: Tensor) -> Tensor:
    return m.head(
        torch.tanh(m.body(m.embed(x.T.reshape(-1)).view(*x.T.shape, 4) + m.place)).mean(0)
    )


def without_bias(m: Net, x: Tensor) -> Tensor:
    """The weight of a layer in a function too."""
    hidden = torch.tanh(m.body(x))
    return m.head(hidden + F.linear(hidden, m.body.weight)).mean(1)


def with_bias(m: Net, x: Tensor) -> Tensor:
    hidden = F.linear(x, m.body.weight, m.body.bias)
    return m.head(torch.tanh(m.body(hidden)).mean(1))


def convolved_twice(m: Net, x: Tensor) -> Tensor:
    other = F.conv2d(x, m.body.weight, padding=1)[..., 1:-1, 1:-1]
    return m.head((torch.tanh(m.body(x)) + other).flatten(1))


def not_all_with_gradient(m: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = m.body(x).std()
    return m.head(torch.tanh(m.body(x) / scale).mean(1))


def scaled_output() -> nn.Module:
    model = linear(lambda m, x: m.head(torch.tanh(m.body(x)).mean(1)))
    model.body.register_forward_hook(lambda module, inputs, output: 3 * output)
    return model


def tied_by_function(m: Net, x: Tensor) -> Tensor:
    return F.linear(torch.tanh(m.body(m.embed(x))).mean(1), m.embed.weight)


def twice(m: Net, x: Tensor) -> Tensor:
    return m.head(m.body(torch.tanh(m.body(x))))


def shared(*, bias: bool) -> nn.Module:
    """Two linear layers with one weight; the second sees tokens."""
    first, second = nn.Linear(4, 4, bias=bias), nn.Linear(4, 4, bias=bias)
    second.weight = first.weight
    return Net(
        lambda m, x: m.head(m.second(torch.tanh(m.first(x))).mean(1)),
        first=first,
        second=second,
        head=nn.Linear(4, 3),
    )


def tied(*, tokens: bool = False) -> nn.Module:
    """An embedding that is also the head."""

    def run(m: Net, x: Tensor) -> Tensor:
        hidden = torch.tanh(m.body(m.embed(x)))
        return m.head(hidden).mean(1) if tokens else m.head(hidden.mean(1))

    model = Net(
        run,
        embed=nn.Embedding(5, 4, padding_idx=1),
        body=nn.Linear(4, 4),
        head=nn.Linear(4, 5, bias=False),
    )
    model.head.weight = model.embed.weight
    return model


def positions(run: Callable[..., Tensor], **parts: nn.Module | nn.Parameter) -> nn.Module:
    """Tokens with positions."""
    return Net(run, embed=nn.Embedding(5, 4), body=nn.Linear(4, 4), head=nn.Linear(4, 3), **parts)


def tokens(m: Net, x: Tensor, added: Tensor) -> Tensor:
    return m.head(torch.tanh(m.body(m.embed(x) + added)).mean(1))


def added_twice(m: Net, x: Tensor) -> Tensor:
    place = m.place(torch.arange(3))
    return tokens(m, x, place) + m.head(m.embed(x) + place)[:, 0]


def in_place(m: Net, x: Tensor) -> Tensor:
    hidden = m.embed(x) * 2
    hidden += m.place
    return m.head(torch.tanh(m.body(hidden)).mean(1))


def class_token(m: Net, x: Tensor) -> Tensor:
    hidden = torch.cat([m.token.expand(len(x), -1, -1), m.embed(x)], 1) + m.place
    return m.head(torch.tanh(m.body(hidden)).mean(1))


IDS = torch.tensor([[0, 1, 2], [2, 2, 4], [3, 0, 0], [1, 4, 3]])


def images() -> Tensor:
    return torch.randn(4, 2, 5, 4)


def sequences() -> Tensor:
    return torch.randn(4, 3, 4)


def tokens_of(count: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(4, count, 4)


def lines() -> Tensor:
    return torch.randn(4, 2, 5)


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "inner padding": (lambda: after(SamePadding(2, 3, 3, stride=2), 18), images),
    "inner padding, groups": (lambda: after(SamePadding(2, 4, 2, groups=2), 112), images),
    "other stride": (lambda: after(OtherStride(2, 3, 3), 9), images),
    "same by name": (lambda: after(Same(2, 3, 4), 15), lines),
    "linear with its own forward": (lambda: after(Scaled(4, 3), 9), sequences),
    "weight of inputs and outputs": (lambda: after(Conv1D(3, 4), 9), sequences),
    "transposed": (
        lambda: after(nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, output_padding=1), 240),
        images,
    ),
    "transposed, dilated, groups": (
        lambda: after(nn.ConvTranspose2d(2, 4, (2, 3), dilation=2, groups=2, bias=False), 224),
        images,
    ),
    "transposed, padded more than the kernel": (
        lambda: after(nn.ConvTranspose1d(2, 3, 2, stride=3, padding=2), 30),
        lines,
    ),
    "transposed 1-d": (lambda: after(nn.ConvTranspose1d(2, 3, 4, stride=3), 48), lines),
    "attention": (attention, sequences),
    "attention, time first": (lambda: attention(run=time_first, batch_first=False), sequences),
    "attention without bias": (lambda: attention(bias=False), sequences),
    "attention, masked": (lambda: attention(run=masked), sequences),
    "attention, three inputs": (lambda: attention(run=crossed), sequences),
    "attention, two inputs": (lambda: attention(run=encoded), sequences),
    "attention, separate projections": (
        lambda: attention(run=separate, kdim=3, vdim=2),
        sequences,
    ),
    "encoder layer": (
        lambda: Net(
            lambda m, x: m.head(m.layer(x).mean(1)),
            layer=nn.TransformerEncoderLayer(4, 2, 5, dropout=0.0, batch_first=True),
            head=nn.Linear(4, 3),
        ),
        sequences,
    ),
    "decoder layer": (
        lambda: Net(
            lambda m, x: m.head(m.layer(x, x.tanh()).mean(1)),
            layer=nn.TransformerDecoderLayer(4, 2, 5, dropout=0.0, batch_first=True),
            head=nn.Linear(4, 3),
        ),
        sequences,
    ),
    "LSTM": (lambda: recurrent(nn.LSTM), sequences),
    "LSTM, two layers, both ways": (
        lambda: recurrent(nn.LSTM, num_layers=2, bidirectional=True, outputs=8),
        sequences,
    ),
    "LSTM, time first, projected": (
        lambda: recurrent(nn.LSTM, proj_size=2, batch_first=False, outputs=2),
        sequences,
    ),
    "GRU without bias": (lambda: recurrent(nn.GRU, bias=False), sequences),
    "GRU, both ways": (lambda: recurrent(nn.GRU, bidirectional=True, outputs=8), sequences),
    "Elman, relu": (lambda: recurrent(nn.RNN, nonlinearity="relu"), sequences),
    "LSTM cell": (lambda: Net(stepwise, cell=nn.LSTMCell(4, 4), head=nn.Linear(4, 3)), sequences),
    "GRU cell": (lambda: Net(stepwise, cell=nn.GRUCell(4, 4), head=nn.Linear(4, 3)), sequences),
    "Elman cell": (
        lambda: Net(stepwise, cell=nn.RNNCell(4, 4, bias=False), head=nn.Linear(4, 3)),
        sequences,
    ),
    **{
        f"samples second, {count} tokens": (lambda: linear(second), tokens_of(count))
        for count in (3, 4, 8)
    },
    **{
        f"samples second, {count} tokens, flat": (lambda: linear(flat_second), tokens_of(count))
        for count in (3, 4)
    },
    **{
        f"encoder layer, samples second, {count} tokens": (
            lambda: Net(
                encoder_second,
                layer=nn.TransformerEncoderLayer(4, 2, 5, dropout=0.0),
                head=nn.Linear(4, 3),
            ),
            tokens_of(count),
        )
        for count in (3, 4, 8)
    },
    **{
        f"shared convolution of parts, {outer=}": (
            lambda outer=outer: Net(
                partial(parts_of_images, outer=outer),
                body=nn.Conv2d(2, 4, 2, groups=2),
                head=nn.Linear(16, 3),
            ),
            images,
        )
        for outer in (False, True)
    },
    "shared transposed convolution of parts": (
        lambda: Net(parts_of_images, body=nn.ConvTranspose2d(2, 3, 2), head=nn.Linear(54, 3)),
        images,
    ),
    **{
        f"attention in windows, {outer=}, {batch_first=}": (
            lambda outer=outer, batch_first=batch_first: attention(
                run=partial(windows, outer=outer), batch_first=batch_first
            ),
            tokens_of(4),
        )
        for outer in (False, True)
        for batch_first in (False, True)
    },
    **{
        f"embedding, samples second, {count} tokens": (
            lambda: positions(ids_second, place=nn.Parameter(torch.randn(1, 1, 4))),
            lambda count=count: torch.arange(4 * count).view(4, count) % 5,
        )
        for count in (3, 4)
    },
    "weight in a function too": (lambda: linear(without_bias), sequences),
    "weight and bias in a function too": (lambda: linear(with_bias), sequences),
    "kernel in a function too": (
        lambda: Net(convolved_twice, body=nn.Conv2d(2, 3, 3), head=nn.Linear(18, 3)),
        images,
    ),
    "also called without gradients": (lambda: linear(not_all_with_gradient), sequences),
    "output changed by a hook": (scaled_output, sequences),
    "embedding as the head, by a function": (
        lambda: Net(tied_by_function, embed=nn.Embedding(5, 4), body=nn.Linear(4, 4)),
        lambda: IDS,
    ),
    "called twice": (
        lambda: Net(twice, body=nn.Linear(4, 4), head=nn.Linear(4, 3)),
        lambda: torch.randn(4, 4),
    ),
    "convolution called twice": (
        lambda: Net(
            lambda m, x: m.head(m.body(torch.tanh(m.body(x))).flatten(1)),
            body=nn.Conv2d(2, 2, 2),
            head=nn.Linear(12, 3),
        ),
        images,
    ),
    "shared weight": (lambda: shared(bias=True), sequences),
    "shared weight without bias": (lambda: shared(bias=False), sequences),
    "head tied to the embedding": (tied, lambda: IDS),
    "head on tokens tied to the embedding": (lambda: tied(tokens=True), lambda: IDS),
    "embedding called twice": (
        lambda: positions(lambda m, x: tokens(m, x, m.embed(x.flip(1)))),
        lambda: IDS,
    ),
    "positions": (
        lambda: positions(
            lambda m, x: tokens(m, x, m.place), place=nn.Parameter(torch.randn(1, 3, 4))
        ),
        lambda: IDS,
    ),
    "positions, in place": (
        lambda: positions(in_place, place=nn.Parameter(torch.randn(1, 3, 4))),
        lambda: IDS,
    ),
    "one position for all": (
        lambda: positions(
            lambda m, x: tokens(m, x, m.place), place=nn.Parameter(torch.randn(1, 1, 4))
        ),
        lambda: IDS,
    ),
    "class token": (
        lambda: positions(
            class_token,
            token=nn.Parameter(torch.randn(1, 1, 4)),
            place=nn.Parameter(torch.randn(1, 4, 4)),
        ),
        lambda: IDS,
    ),
    "broadcast positions": (
        lambda: positions(
            lambda m, x: tokens(m, x, m.place(torch.tensor([[2, 0, 2]]))), place=nn.Embedding(4, 4)
        ),
        lambda: IDS,
    ),
    "broadcast positions without a batch": (
        lambda: positions(
            lambda m, x: tokens(m, x, m.place(torch.arange(3))), place=nn.Embedding(4, 4)
        ),
        lambda: IDS,
    ),
    **{
        f"positions of {count} times, samples second": (
            lambda: positions(
                lambda m, x: m.head(
                    torch.tanh(m.body(m.embed(x.T) + m.place(torch.arange(x.shape[1]))[:, None]))
                ).mean(0),
                place=nn.Embedding(9, 4),
            ),
            lambda count=count: torch.arange(4 * count).view(4, count) % 5,
        )
        for count in (3, 4, 8)
    },
    "broadcast positions, added twice": (
        lambda: positions(
            added_twice,
            place=nn.Embedding(4, 4),
        ),
        lambda: IDS,
    ),
    "embedding with its own forward": (
        lambda: positions(
            lambda m, x: tokens(m, x, m.place(torch.ones_like(x))), place=Shifted(6, 4)
        ),
        lambda: IDS,
    ),
}  # fmt: skip


def made(case: str) -> tuple[nn.Module, Tensor]:
    make, inputs = CASES[case]
    return make().eval(), inputs()

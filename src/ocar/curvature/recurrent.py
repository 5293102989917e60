"""Recurrent networks written out, so that the inputs of their weights are visible.

PyTorch computes a whole LSTM, GRU or Elman network in one function. This module writes it as two
linear layers: from all inputs to the gates, and from the hidden state to the gates at each time.
So A of the second layer is over the hidden states. G of both is over the gradients at the gates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

State = tuple[Tensor, ...]
"""The hidden state ``(n, hidden)``, and that of the cell of an LSTM."""

Cell = Callable[[Tensor, Tensor, State], State]
"""From the gates of the input and of the hidden state, ``(n, gates)`` each, to the next state."""


def _lstm(inputs: Tensor, hidden: Tensor, state: State) -> State:
    i, f, g, o = (inputs + hidden).chunk(4, dim=-1)
    memory = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * memory.tanh(), memory


def _gru(inputs: Tensor, hidden: Tensor, state: State) -> State:
    (r, z, n), (own_r, own_z, own_n) = inputs.chunk(3, dim=-1), hidden.chunk(3, dim=-1)
    new = (n + (r + own_r).sigmoid() * own_n).tanh()
    return (torch.lerp(new, state[0], (z + own_z).sigmoid()),)


def _tanh(inputs: Tensor, hidden: Tensor, state: State) -> State:
    return ((inputs + hidden).tanh(),)


def _relu(inputs: Tensor, hidden: Tensor, state: State) -> State:
    return ((inputs + hidden).relu(),)


_vf: Any = torch._VF
NETWORKS: dict[Any, Cell] = {
    _vf.lstm: _lstm, _vf.gru: _gru, _vf.rnn_tanh: _tanh, _vf.rnn_relu: _relu,
}  # fmt: skip
"""The cell of each function that computes a whole network."""

CELLS: dict[Any, Cell] = {
    _vf.lstm_cell: _lstm, _vf.gru_cell: _gru, _vf.rnn_tanh_cell: _tanh, _vf.rnn_relu_cell: _relu,
}  # fmt: skip
"""The cell of each function that takes one step."""


def is_written_out(function: Any, args: Sequence[Any]) -> bool:
    """Whether :func:`run` can take a call; not one with sequences of different lengths, packed."""
    return function in CELLS or (function in NETWORKS and isinstance(args[3], bool))


def run(function: Any, args: Sequence[Any]) -> Any:
    """What a function of ``NETWORKS`` or ``CELLS`` returns, by linear layers."""
    if function in NETWORKS:
        return _run_network(NETWORKS[function], *args)
    x, hx, w_input, w_hidden, *biases = args
    state = (hx,) if isinstance(hx, Tensor) else tuple(hx)
    b_input, b_hidden = biases or (None, None)
    gates = functional.linear(x, w_input, b_input)
    hidden = functional.linear(state[0], w_hidden, b_hidden)
    new = CELLS[function](gates, hidden, state)
    return new[0] if isinstance(hx, Tensor) else new


def _run_network(
    cell: Cell,
    x: Tensor,
    hx: Tensor | Sequence[Tensor],
    weights: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """The outputs, and the last states; in the arguments of PyTorch's functions."""
    states = [hx] if isinstance(hx, Tensor) else list(hx)
    directions = 1 + bidirectional
    each = len(weights) // (layers * directions)
    x = x if batch_first else x.transpose(0, 1)  # (n, time, inputs)
    last: list[State] = []
    for layer in range(layers):
        if layer > 0:
            x = functional.dropout(x, dropout, training)
        found = []
        for number in range(layer * directions, (layer + 1) * directions):
            own = weights[number * each : (number + 1) * each]
            backwards = number % directions == 1
            out, state = _run_layer(cell, x, tuple(s[number] for s in states), own, has_biases,
                                    backwards=backwards)  # fmt: skip
            found.append(out)
            last.append(state)
        x = torch.cat(found, dim=-1)
    x = x if batch_first else x.transpose(0, 1)
    return x, *(torch.stack(parts) for parts in zip(*last, strict=True))


def _run_layer(
    cell: Cell,
    x: Tensor,
    state: State,
    weights: Sequence[Tensor],
    has_biases: bool,
    *,
    backwards: bool,
) -> tuple[Tensor, State]:
    """One layer in one direction; outputs ``(n, time, hidden)`` and the last state."""
    w_input, w_hidden, *others = weights
    b_input, b_hidden = others[:2] if has_biases else (None, None)
    smaller = others[2 * has_biases :]  # the projection of an LSTM's hidden state
    gates = functional.linear(x, w_input, b_input)
    outputs: list[Tensor] = []
    times = range(x.shape[1])
    for time in reversed(times) if backwards else times:
        hidden = functional.linear(state[0], w_hidden, b_hidden)
        state = cell(gates[:, time], hidden, state)
        if smaller:
            state = functional.linear(state[0], smaller[0]), *state[1:]
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if backwards else outputs, dim=1), state

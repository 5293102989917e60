"""Predictions of the same samples after every batch, as an evaluation makes them.

Samples are normalised once. On a GPU the forward pass is a CUDA graph on a stream of its own with a
copy of the weights, so that the next batch is learned while the last evaluation still runs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from ocar.accel.devices import many_images
from ocar.accel.folded import FoldedResNet, fold
from ocar.accel.graph import Graph
from ocar.structure import Inputs, Mirror, apply, call, call_each, cat, named_tensors

T = TypeVar("T")
Use = Callable[[Tensor], T]
"""Given outputs ``(views, n, outputs)``."""

MOST_BYTES = 2**30  # samples that would be larger than this are normalised each time
CHUNK = 1250  # samples that go through the model at once


class RepeatedPrediction:
    """Predicts the first n of some samples; see :func:`repeated_prediction`."""

    def __init__(
        self,
        x: Inputs,
        *,
        normalize: Callable[[Inputs], Inputs],
        predict: Callable[[Inputs], Tensor],
        device: torch.device,
    ) -> None:
        first = normalize(x[:1].to(device))
        self._normalize: Callable[[Inputs], Inputs] | None = None
        if first.nbytes * len(x) <= MOST_BYTES:
            self._x = cat([normalize(part.to(device)) for part in x.split(CHUNK)])
        else:
            self._x, self._normalize = x.to(device), normalize
        self._predict = predict

    def wait(self) -> None:
        """Let the current stream wait for all predictions that were started."""

    def finish(self) -> None:
        """Let the host wait for them, before their memory is given back."""

    def __call__(self, n: int, use: Use[T]) -> T:
        """Apply ``use`` to the outputs for the first n samples."""
        return use(self._predict_first(n))

    def _predict_first(self, n: int) -> Tensor:
        parts = self._x[:n].split(CHUNK)
        normalize = self._normalize or (lambda part: part)
        return torch.cat([self._predict(normalize(part)) for part in parts], dim=-2)


class ParallelPrediction(RepeatedPrediction):
    """A :class:`RepeatedPrediction` on a stream of its own, with a copy of the weights.

    The model is on a CUDA device. The ``weights`` must stay the same tensors.
    """

    def __init__(
        self,
        x: Inputs,
        *,
        normalize: Callable[[Inputs], Inputs],
        model: nn.Module,
        weights: Sequence[Mapping[str, Tensor]],
        mirror: Mirror = "no",
    ) -> None:
        like = next(iter(weights[0].values()))
        half = torch.float16 if like.dtype == torch.float32 else like.dtype
        self._copies: list[Tensor] = []
        self._values: list[Tensor] = []
        self._folded: list[FoldedResNet] = []
        models: list[Callable[..., Tensor]] = []
        for values in weights:
            own = copy.deepcopy(model).eval().requires_grad_(False)
            changing = {n: t for n, t in named_tensors(own).items() if t.is_floating_point()}
            self._copies += changing.values()
            self._values += [values[name] for name in changing]
            folded = fold(own, half) if isinstance(x, Tensor) else None
            if folded is not None:
                self._folded.append(folded)
            models.append(folded or own)

        def prepare(x: Inputs) -> Inputs:
            inputs = normalize(x)
            return apply(self._folded[0].prepare, inputs) if self._folded else inputs

        def predict(x: Inputs) -> Tensor:
            return call_each([partial(call, own) for own in models], x, mirror=mirror)

        super().__init__(x, normalize=prepare, predict=predict, device=like.device)
        if not self._folded:
            self._x = apply(many_images, self._x)
        self._stream = torch.cuda.Stream(like.device)
        self._graph = Graph(self._first, device=like.device, low_priority=True)
        self._idle = torch.cuda.Event()
        # Predict all samples once as written and once recorded: later, smaller predictions find
        # room in the same memory. In the order of need, memory would be of many sizes.
        for _ in range(2):
            self(len(self._x), lambda outputs: outputs)

    @torch.no_grad()
    def __call__(self, n: int, use: Use[T]) -> T:
        """As of the base class.

        The work is only started. The result may be read after :meth:`wait`.
        """
        learning = torch.cuda.current_stream(self._stream.device)
        learning.wait_event(self._idle)
        torch._foreach_copy_(self._copies, self._values)
        self._stream.wait_stream(learning)
        with torch.cuda.stream(self._stream):
            outputs = self._graph(key=n)
            assert isinstance(outputs, Tensor)
            result = use(outputs)
            self._idle.record(self._stream)
        return result

    def wait(self) -> None:
        """Let the current stream wait for all predictions that were started."""
        torch.cuda.current_stream(self._stream.device).wait_event(self._idle)

    def finish(self) -> None:
        """Let the host wait for them, before their memory is given back."""
        self._idle.synchronize()

    def _first(self, *, key: int) -> Tensor:
        for folded in self._folded:
            folded.refresh_()
        return self._predict_first(key)


def repeated_prediction(
    x: Inputs,
    *,
    normalize: Callable[[Inputs], Inputs],
    predict: Callable[[Inputs], Tensor],
    model: nn.Module,
    weights: Sequence[Mapping[str, Tensor]] | None,
    record: bool,
    mirror: Mirror = "no",
) -> RepeatedPrediction:
    """The fastest way to predict the same samples again and again.

    Args:
        x: Raw samples, ``(n, ...)``.
        normalize: From raw samples to inputs of the model.
        predict: From inputs of the model to outputs, ``(views, n, outputs)``.
        model: The model.
        weights: Parameters and buffers by name, of each model that predicts; None if ``predict`` is
            more than the model with some weights.
        record: Whether CUDA graphs may be recorded.
        mirror: Which models see mirror images, as in ``predict``.
    """
    device = next(model.parameters()).device
    if weights is None or not record or device.type != "cuda":
        return RepeatedPrediction(x, normalize=normalize, predict=predict, device=device)
    return ParallelPrediction(x, normalize=normalize, model=model, weights=weights, mirror=mirror)

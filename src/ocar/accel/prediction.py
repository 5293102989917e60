"""Predictions of the same samples again and again, as an evaluation after every batch makes them.

Samples are normalised once. On a GPU the forward pass is a captured graph on a stream of its own,
with a copy of the weights, so that the next batch is learned while the last is still evaluated.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

from ocar.accel.folded import fold
from ocar.accel.graph import AFTER, Captured, release_memory
from ocar.methods.context import Context

T = TypeVar("T")

MOST_BYTES = 2**30
"""Samples that would be larger than this once normalised are normalised each time."""

CHUNK = 1250
"""Most samples that go through the model at once."""


class RepeatedPrediction:
    """Predicts the first n of some samples whenever it is asked.

    Args:
        x: Raw samples, ``(n, ...)``.
        normalize: From raw samples to inputs of the model.
        predict: From inputs of the model to outputs, on the host or on any device.
        device: Where the model is.
    """

    def __init__(
        self,
        x: Tensor,
        *,
        normalize: Callable[[Tensor], Tensor],
        predict: Callable[[Tensor], Tensor],
        device: torch.device,
    ) -> None:
        first = normalize(x[:1].to(device))
        self._normalize: Callable[[Tensor], Tensor] | None = None
        if first.numel() * first.element_size() * len(x) <= MOST_BYTES:
            self._x = torch.cat([normalize(part.to(device)) for part in x.split(CHUNK)])
        else:
            self._x, self._normalize = x.to(device), normalize
        self._predict = predict

    def wait(self) -> None:
        """Let the current stream of the device wait for all that was begun."""

    def finish(self) -> None:
        """Wait, on the host, for all that was begun: this is about to be dropped."""

    def __call__(self, n: int, use: Callable[[Tensor], T]) -> T:
        """What ``use`` makes of the outputs for the first n samples."""
        return use(torch.cat([self._outputs(part) for part in self._x[:n].split(CHUNK)]))

    def _outputs(self, x: Tensor) -> Tensor:
        return self._predict(x if self._normalize is None else self._normalize(x))


class SideBySidePrediction(RepeatedPrediction):
    """As :class:`RepeatedPrediction`, on a stream of its own with a copy of the weights.

    Args:
        x: Raw samples, ``(n, ...)``.
        normalize: From raw samples to inputs of the model.
        model: The model, on a CUDA device.
        weights: The values to predict with, by name: parameters and buffers of the model. They
            must stay the same tensors as long as this is used.
    """

    def __init__(
        self,
        x: Tensor,
        *,
        normalize: Callable[[Tensor], Tensor],
        model: nn.Module,
        weights: Mapping[str, Tensor],
    ) -> None:
        device = next(iter(weights.values())).device
        self._model = copy.deepcopy(model).eval().requires_grad_(False)
        single = next(iter(weights.values())).dtype == torch.float32
        self._folded = fold(self._model, torch.float16 if single else None)
        own = {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}
        changing = {name: tensor for name, tensor in own.items() if tensor.is_floating_point()}
        self._copies: list[Tensor] = list(changing.values())
        self._values = [weights[name] for name in changing]
        folded = self._folded
        prepare = normalize if folded is None else lambda x: folded.prepare(normalize(x))
        super().__init__(x, normalize=prepare, predict=folded or self._model, device=device)
        if self._folded is None and self._x.dim() == 4:
            self._x = self._x.contiguous(memory_format=torch.channels_last)
        self._stream = torch.cuda.Stream(device)
        self._graphs = Captured(self._first, device=device, priority=AFTER)
        self._idle = torch.cuda.Event()
        self._reserve()

    def _reserve(self) -> None:
        """Go through all samples once: what fewer samples need later finds room in the same memory.

        Asked for in the order of need, memory would be of many sizes, none large enough for the
        next.
        """
        for _ in range(2):  # at first as it is, then recorded
            self(len(self._x), lambda outputs: outputs)

    @torch.no_grad()
    def __call__(self, n: int, use: Callable[[Tensor], T]) -> T:
        """What ``use`` makes of the outputs for the first n samples, some time later.

        The result can be looked at after :meth:`wait`.
        """
        learning = torch.cuda.current_stream(self._stream.device)
        learning.wait_event(self._idle)
        torch._foreach_copy_(self._copies, self._values)
        self._stream.wait_stream(learning)
        with torch.cuda.stream(self._stream):
            outputs, _ = self._graphs(key=n)
            result = use(outputs)
            self._idle.record(self._stream)
        return result

    def wait(self) -> None:
        """Let the current stream of the device wait for all that was begun."""
        torch.cuda.current_stream(self._stream.device).wait_event(self._idle)

    def finish(self) -> None:
        """Wait, on the host, for all that was begun: this is about to be dropped."""
        self._idle.synchronize()

    def _first(self, *, key: int) -> Tensor:
        """The outputs for the first samples; this is what is captured."""
        if self._folded is not None:
            self._folded.refresh_()
        return torch.cat([self._outputs(part) for part in self._x[:key].split(CHUNK)])


class Repeated:
    """What :meth:`Learner.predict_repeatedly` returns.

    Args:
        x: Raw samples, ``(n, ...)``.
        make: Makes the prediction, again whenever the head has grown.
        context: The parts of the learner.
    """

    def __init__(
        self, x: Tensor, *, make: Callable[[Tensor], RepeatedPrediction], context: Context
    ) -> None:
        self._x = x
        self._make = make
        self._context = context
        self._prediction: RepeatedPrediction | None = None
        self._capacity = 0

    def __call__(self, n: int, use: Callable[[Tensor], T]) -> T:
        """What ``use`` makes of the predictions for the first n samples."""
        head = self._context.head
        capacity = 0 if head is None else head.capacity
        if self._prediction is None or capacity != self._capacity:
            if self._prediction is not None:
                self._prediction.finish()
                self._prediction = None
                release_memory(self._context.device)
            self._prediction = self._make(self._x)  # a head that has grown is other tensors
            self._capacity = capacity
        return self._prediction(n, lambda outputs: use(self._context.mask(outputs)))

    def wait(self) -> None:
        """Let the current stream of the device wait for all that was begun."""
        if self._prediction is not None:
            self._prediction.wait()

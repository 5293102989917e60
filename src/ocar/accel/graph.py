"""Functions of tensors, recorded once as a CUDA graph and then replayed.

A batch of ten images is little work for a GPU: launching the kernels takes
longer than running them. A graph launches them all at once. It can be recorded
where shapes never change, nothing is waited for, and every number that changes
is in a tensor.
"""

from __future__ import annotations

import functools
import gc
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from ocar.accel.streams import BESIDE, RECORDING

FIRST = RECORDING
"""Priority of what is waited for."""

AFTER = BESIDE + 1
"""Priority of what may take longer, such as an evaluation beside the learning."""

_ALONE = threading.Lock()


@dataclass(frozen=True, eq=False)
class _Graph:
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    output: Tensor


class Captured:
    """A function that is recorded the second time it is called with the same shapes.

    The first call runs as it is written, and so does every call where recording has failed, which
    is said in one warning. On another device than CUDA nothing is ever recorded.

    Args:
        function: Tensors to one tensor. It may change tensors in place that live as long as
            this; it must not keep others.
        device: Where it runs.
        generators: Those that the function draws from on the device.
        priority: Of its kernels on the device, :data:`FIRST` or :data:`AFTER`.
        enabled: False to record nothing.
    """

    def __init__(
        self,
        function: Callable[..., Tensor],
        *,
        device: torch.device,
        generators: Sequence[torch.Generator] = (),
        priority: int = FIRST,
        enabled: bool = True,
    ) -> None:
        self.function = function
        self.device = device
        self.generators = tuple(g for g in generators if g.device.type == "cuda")
        self.priority = priority
        self.enabled = enabled and device.type == "cuda"
        self._seen: set[Hashable] = set()
        self._graphs: dict[Hashable, _Graph] = {}
        self._last: _Graph | None = None

    def forget(self) -> None:
        """Drop all graphs, because tensors that they use were replaced."""
        if self._graphs:  # the last may still run, and its memory is about to be given away
            torch.cuda.current_stream(self.device).synchronize()
        self._graphs.clear()
        self._seen.clear()

    def release(self) -> None:
        """Drop all graphs and the memory that they share."""
        self.forget()
        self._last = None

    def __call__(self, *tensors: Tensor, key: Hashable = None) -> tuple[Tensor, bool]:
        """Run the function.

        Args:
            *tensors: Its arguments, on the device or on the host.
            key: What besides the shapes of the arguments decides what is to be done; given to the
                function, if there is any, by its name.

        Returns:
            Its result, which the next call overwrites, and whether a graph was replayed.
        """
        if not self.enabled:
            return self._call([t.to(self.device) for t in tensors], key), False
        shape = (key, *((t.shape, t.dtype) for t in tensors))
        graph = self._graphs.get(shape)
        if graph is None:
            # One at a time in a process: libraries do not like to be begun by several threads,
            # nor to be while a graph is recorded.
            with _ALONE:
                if shape in self._seen:
                    graph = self._record(shape, tensors, key)
                self._seen.add(shape)
                if graph is None:
                    here = [t.to(self.device, non_blocking=True) for t in tensors]
                    return self._call(here, key), False
        for static, tensor in zip(graph.inputs, tensors, strict=True):
            static.copy_(tensor, non_blocking=True)
        graph.graph.replay()
        return graph.output, True

    def _call(self, tensors: Sequence[Tensor], key: Hashable) -> Tensor:
        return self.function(*tensors) if key is None else self.function(*tensors, key=key)

    def _record(self, shape: Hashable, tensors: Sequence[Tensor], key: Hashable) -> _Graph | None:
        inputs = tuple(t.to(self.device, copy=True) for t in tensors)
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)
        # A graph may draw from the device's own generator too, and so records its state.
        drawn_from = [*self.generators, _own_generator(self.device)]
        before = [generator.clone_state() for generator in drawn_from]
        try:
            output = self._run_into(graph, inputs, key)
        except (RuntimeError, NotImplementedError, TypeError) as error:
            for generator, unused in zip(drawn_from, before, strict=True):
                generator.graphsafe_set_state(unused)  # a failed recording leaves it unusable
            self.enabled = False
            reason = str(error).strip().partition("\n")[0]
            warnings.warn(f"Going on without CUDA graphs, more slowly: {reason}", stacklevel=5)
            return None
        self._last = self._graphs[shape] = _Graph(graph, inputs, output)
        return self._last

    def _run_into(
        self, graph: torch.cuda.CUDAGraph, inputs: Sequence[Tensor], key: Hashable
    ) -> Tensor:
        # All are replayed on one stream, so they share memory, also with those forgotten.
        pool = torch.cuda.graph_pool_handle() if self._last is None else self._last.graph.pool()
        stream = _recording_stream(self.device, self.priority)
        with _without_garbage_collection(), _own_workspaces():
            stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(stream):
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    output = self._call(inputs, key)
                except BaseException:
                    with suppress(RuntimeError):
                        graph.capture_end()
                    raise
                graph.capture_end()
        return output


def release_memory(device: torch.device) -> None:
    """Give back memory that is not used; that of graphs that are gone is not used again."""
    if device.type == "cuda":
        with _ALONE:
            torch.cuda.empty_cache()


def _own_generator(device: torch.device) -> torch.Generator:
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]


@functools.cache
def _recording_stream(device: torch.device, priority: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=priority)


@contextmanager
def _own_workspaces() -> Iterator[None]:
    """Inside it cuBLAS gets workspaces that belong to the graph.

    PyTorch has one for each stream. Graphs that were recorded on one stream, but are replayed on
    several at the same time, would write into the same, and wait for each other for ever.
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """What is freed while a graph is recorded could be memory of the device."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()

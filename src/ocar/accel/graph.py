"""CUDA graphs: a function of tensors, recorded once and then launched.

A batch of ten images is little work for a GPU: launching the kernels takes longer than running
them. A graph launches all of them at once. A function can be recorded if shapes never change,
nothing waits for the device, and every number that changes is in a tensor.
"""

from __future__ import annotations

import functools
import gc
import threading
import traceback
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ocar.accel.streams import PARALLEL_PRIORITY, RECORDING_PRIORITY, free_all

LOW_PRIORITY = PARALLEL_PRIORITY + 1
"""Priority of graphs that may take longer, such as an evaluation during learning."""

ATTEMPTS = 3
"""Failed recordings after which a function runs without graphs. Some failed at random where several
threads learned at the same time."""

_one_at_a_time = threading.Lock()


@dataclass(frozen=True, eq=False)
class _Recorded:
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    output: Tensor | tuple[Tensor, ...]


class Graph:
    """A function that is recorded as a CUDA graph.

    The first call with some shapes runs the function, which also compiles kernels and fills
    caches. The second records it. Later calls launch the graph. If a recording fails, the next call
    tries again. After a few failures one warning says why, and the function runs without graphs
    from then on. On other devices it always does.

    Args:
        function: Takes tensors, and a ``key`` if one is given; returns a tensor or a tuple of
            tensors. It may change tensors in place that live as long as the graph.
        device: Where it runs.
        generators: The generators that it draws from.
        low_priority: Let other work on the device go first.
        enabled: False to record nothing.
    """

    def __init__(
        self,
        function: Callable[..., Tensor | tuple[Tensor, ...]],
        *,
        device: torch.device,
        generators: Sequence[torch.Generator] = (),
        low_priority: bool = False,
        enabled: bool = True,
    ) -> None:
        self.function = function
        self.device = device
        self.enabled = enabled and device.type == "cuda"
        self._generators = tuple(g for g in generators if g.device.type == "cuda")
        self._priority = LOW_PRIORITY if low_priority else RECORDING_PRIORITY
        self._failures = 0
        self._seen: set[Hashable] = set()
        self._recorded: dict[Hashable, _Recorded] = {}
        self._last: _Recorded | None = None

    def forget(self) -> None:
        """Drop all recordings, because tensors that they use were replaced."""
        if self._recorded:  # the last launch may still run in the memory that is given back
            torch.cuda.current_stream(self.device).synchronize()
        self._recorded.clear()
        self._seen.clear()

    def release(self) -> None:
        """Drop all recordings and the memory that they share."""
        self.forget()
        self._last = None

    def __call__(self, *tensors: Tensor, key: Hashable = None) -> Tensor | tuple[Tensor, ...]:
        """Run the function, or launch its graph.

        Args:
            *tensors: Arguments, on the device or on the host.
            key: What else, beside the shapes, decides what is computed. It is passed to the
                function as ``key`` unless it is None.

        Returns:
            The output. The next launch overwrites it.
        """
        if not self.enabled:
            return self._run([t.to(self.device) for t in tensors], key)
        shapes = (key, *((t.shape, t.dtype) for t in tensors))
        recorded = self._recorded.get(shapes)
        if recorded is None:
            # CUDA libraries must not be initialised by several threads at once, nor while another
            # thread records.
            with _one_at_a_time:
                if shapes in self._seen:
                    recorded = self._record(shapes, tensors, key)
                self._seen.add(shapes)
                if recorded is None:
                    return self._run([t.to(self.device, non_blocking=True) for t in tensors], key)
        for static, tensor in zip(recorded.inputs, tensors, strict=True):
            static.copy_(tensor, non_blocking=True)
        recorded.graph.replay()
        return recorded.output

    def _run(self, tensors: Sequence[Tensor], key: Hashable) -> Tensor | tuple[Tensor, ...]:
        return self.function(*tensors) if key is None else self.function(*tensors, key=key)

    def _record(
        self, shapes: Hashable, tensors: Sequence[Tensor], key: Hashable
    ) -> _Recorded | None:
        inputs = tuple(t.to(self.device, copy=True) for t in tensors)
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        # A recording registers the device's own generator by itself.
        index = torch.cuda.current_device() if self.device.index is None else self.device.index
        drawn_from = [*self._generators, torch.cuda.default_generators[index]]
        before = [generator.clone_state() for generator in drawn_from]
        try:
            output = self._run_into(graph, inputs, key)
        except (RuntimeError, NotImplementedError, TypeError) as error:
            for generator, state in zip(drawn_from, before, strict=True):
                generator.graphsafe_set_state(state)  # a failed recording leaves it unusable
            free_all(torch.device("cuda", index))
            self._failures += 1
            if self._failures == ATTEMPTS:
                self.enabled = False
                reason = str(error).strip().partition("\n")[0]
                warnings.warn(
                    f"Going on without CUDA graphs, more slowly: {reason} ({_place(error)})",
                    stacklevel=5,
                )
            return None
        self._last = self._recorded[shapes] = _Recorded(graph, inputs, output)
        return self._last

    def _run_into(
        self, graph: torch.cuda.CUDAGraph, inputs: Sequence[Tensor], key: Hashable
    ) -> Tensor | tuple[Tensor, ...]:
        # All graphs are launched on one stream, so they share one memory pool.
        pool = torch.cuda.graph_pool_handle() if self._last is None else self._last.graph.pool()
        stream = _recording_stream(self.device, self._priority)
        with _without_garbage_collection(), _private_workspaces():
            stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(stream):
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    output = self._run(inputs, key)
                except BaseException:
                    with suppress(RuntimeError):
                        graph.capture_end()
                    raise
                graph.capture_end()
        return output


def _place(error: BaseException) -> str:
    """The innermost line that led to an error, outside PyTorch's own files."""
    own = str(Path(torch.__file__).parent)
    frames = traceback.extract_tb(error.__traceback__)
    frame = [frame for frame in frames if not frame.filename.startswith(own)][-1]
    return f"{Path(frame.filename).name}, line {frame.lineno}"


def release_memory(device: torch.device) -> None:
    """Give unused memory of a device back; that of dropped graphs is not reused otherwise."""
    if device.type == "cuda":
        with _one_at_a_time:
            torch.cuda.empty_cache()


@functools.cache
def _recording_stream(device: torch.device, priority: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=priority)


@contextmanager
def _private_workspaces() -> Iterator[None]:
    """Give cuBLAS workspaces that belong to the graph.

    PyTorch has one workspace for each stream. Graphs that were recorded on one stream but run on
    several at the same time would write into the same workspace and wait for each other for ever.
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Collecting garbage could free memory of the device, which a recording does not allow."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()

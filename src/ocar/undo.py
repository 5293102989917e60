"""What a learner was before a batch, so that a batch can be undone without a trace.

A batch that the guard skips, or that an error breaks off, leaves nothing behind. The tensors that
the gradient steps change are in the guard's snapshot. The rest is here:

- the attributes of all parts of the learner; lists, sets, dictionaries and arrays are copied, and
  the tensors of a memory's policy,
- the states of its random generators,
- the storage of its parameters and its buffers, which are others once the head has grown,
- tensors that a part changes outside the steps, see :meth:`Undo.keep`.

The parts are found once, by following the attributes of the learner's own parts. So a part of
one's own takes part in this too, if it is made with the learner.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ocar import accel
from ocar.guard import BatchGuard
from ocar.memory import Memory
from ocar.models.head import set_data_

_CONTAINERS = frozenset(
    {list, set, bytearray, deque, Counter, OrderedDict, defaultdict, np.ndarray}
)
_FOREIGN = frozenset({*sys.stdlib_module_names, "torch", "numpy"})


class Undo:
    """A context for one batch: an error inside undoes the batch, and so does :meth:`restore`.

    Without a guard nothing is undone.

    Args:
        clocks: Names of attributes to restore, by object.
        roots: The parts of the learner.
        guard: Its guard, which has the tensors that steps change.
        optimizer: Its optimizer, if it has one.
        draws: The generators that its layers draw from.
        forget: Called before a batch is undone: recorded steps may use tensors that will be gone.
    """

    def __init__(
        self,
        clocks: Mapping[object, Sequence[str]],
        roots: Iterable[object],
        *,
        guard: BatchGuard,
        optimizer: torch.optim.Optimizer | None,
        draws: accel.OwnDraws,
        forget: Callable[[], None],
    ) -> None:
        self._guard = guard
        self._optimizer = optimizer
        self._draws = draws
        self._forget = forget
        self._clocks = [(owner, name) for owner, names in clocks.items() for name in names]
        self._parts, found, self._own = _reachable(roots)
        self._policies = [
            (part, name)
            for part in self._parts
            if isinstance(part, Memory)
            for name, value in vars(part).items()
            if isinstance(value, Tensor) and name != "_slots"  # which is replaced
        ]
        modules = list(dict.fromkeys(m for module in found for m in module.modules()))
        parameters = (p for m in modules for p in m.parameters(recurse=False))
        self._modules = modules
        self._parameters = list(dict.fromkeys(parameters))
        self._buffered = [m for m in modules if m._buffers]
        self._linear = [  # not where the weight is computed, which may change buffers
            m for m in modules if isinstance(m, nn.Linear) and "weight" in m._parameters
        ]
        self._next_hook = 0
        self._times: list[int] = []
        self._before: list[dict[str, Any]] = []
        self._generators: list[torch.Generator] = []
        self._states: list[Tensor] = []
        self._storage: list[Tensor] = []
        self._buffers: list[dict[str, Tensor | None]] = []
        self._optimized: dict[Any, dict[str, Any]] = {}
        self._kept: list[tuple[Tensor, Tensor, Tensor | None]] = []  # rows: their indices
        self._enabled = self._gradients = False

    def __enter__(self) -> Undo:
        self._kept.clear()
        if self._guard.settings is None:
            return self
        self._times = [getattr(owner, name) for owner, name in self._clocks]
        self._before = [_copy(vars(part)) for part in self._parts]
        self._generators = [*self._own, *self._draws.generators]
        self._states = [generator.get_state() for generator in self._generators]
        self._storage = [p.data for p in self._parameters]
        self._buffers = [dict(module._buffers) for module in self._buffered]
        if self._optimizer is not None:
            self._optimized = {p: dict(own) for p, own in self._optimizer.state.items()}
        self._gradients = torch.is_grad_enabled()
        self._next_hook = RemovableHandle.next_id
        self._guard.start()
        self._enabled = True
        for memory, name in self._policies:
            self.keep([getattr(memory, name)])
        if accel.known(self._guard.kept) is not None:  # elsewhere each copy is a launch
            for own in self._buffers:
                self.keep(b for b in own.values() if b is not None and not b.is_floating_point())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None and self._enabled:
            # An interrupt at the end of a with statement can skip the exit of its context.
            torch.set_grad_enabled(self._gradients)
            self._remove_hooks()
            self._guard.abandon()
            self.restore()
        self._guard.close()
        self._enabled = False
        self._kept.clear()

    def keep(self, tensors: Iterable[Tensor], rows: Sequence[int] | None = None) -> None:
        """Copy tensors, or some of their rows, that are about to be changed in place."""
        if not self._enabled:
            return
        index = None if rows is None else torch.tensor(rows)
        for tensor in map(Tensor.detach, tensors):
            if index is None:
                self._kept.append((tensor, tensor.clone(), None))
            else:
                index = index.to(tensor.device, non_blocking=True)
                self._kept.append((tensor, tensor.index_select(0, index), index))

    def _remove_hooks(self) -> None:
        """Remove the hooks that modules got since the batch began."""
        for module in self._modules:
            for hooks in (module._forward_hooks, module._forward_pre_hooks):
                for number in [number for number in hooks if number >= self._next_hook]:
                    del hooks[number]

    @torch.no_grad()
    def restore(self) -> None:
        """Undo the batch, except for the tensors that the guard restores."""
        if not self._enabled:
            return
        self._forget()
        for tensor, old, index in reversed(self._kept):
            if index is None:
                tensor.copy_(old)
            else:
                tensor.index_copy_(0, index, old)
        for parameter, storage in zip(self._parameters, self._storage, strict=True):
            set_data_(parameter, storage)
        for layer in self._linear:
            layer.out_features = len(layer.weight)
        for module, buffers in zip(self._buffered, self._buffers, strict=True):
            module._buffers.update(buffers)
        if self._optimizer is not None:
            self._optimizer.state.clear()
            self._optimizer.state.update(self._optimized)
        for generator, state in zip(self._generators, self._states, strict=True):
            generator.set_state(state)
        for (owner, name), time in zip(self._clocks, self._times, strict=True):
            setattr(owner, name, time)
        for part, before in zip(self._parts, self._before, strict=True):
            vars(part).update(_copy(before))  # first, since other threads may read them
            for name in vars(part).keys() - before.keys():
                del vars(part)[name]

    @torch.no_grad()
    def restore_rows(self, *, unless: Tensor) -> None:
        """Write kept rows back, unless a scalar of bool is true: for a verdict that is a value."""
        for tensor, old, index in reversed(self._kept):
            if index is not None:
                now = tensor.index_select(0, index)
                tensor.index_copy_(0, index, torch.where(unless, now, old))


def _copy(values: dict[str, Any]) -> dict[str, Any]:
    """A copy of a dictionary, of the containers in it, and of those in its dictionaries."""
    copied = values.copy()
    for name, value in values.items():
        if (kind := type(value)) is dict:
            copied[name] = _copy(value)
        elif kind in _CONTAINERS:
            copied[name] = value.copy()
    return copied


def _reachable(
    roots: Iterable[object],
) -> tuple[list[object], list[nn.Module], list[torch.Generator]]:
    """The parts, modules and generators that can be reached by attributes."""
    found: dict[int, object] = {}
    waiting = list(roots)
    while waiting:
        thing = waiting.pop()
        if id(thing) in found:
            continue
        if isinstance(thing, dict):
            waiting += thing.values()
        elif isinstance(thing, (list, tuple)):
            waiting += thing
        elif isinstance(thing, (nn.Module, torch.Generator)):
            found[id(thing)] = thing
        elif _is_part(thing):
            found[id(thing)] = thing
            waiting += vars(thing).values()
    things = list(found.values())
    modules = [thing for thing in things if isinstance(thing, nn.Module)]
    generators = [thing for thing in things if isinstance(thing, torch.Generator)]
    return [t for t in things if _is_part(t)], modules, generators


def _is_part(thing: object) -> bool:
    """Whether it is an object of this package, or of a user of it, that may change."""
    module = type(thing).__module__
    if module.partition(".")[0] in _FOREIGN or module.startswith("ocar.accel."):
        return False
    frozen = getattr(getattr(thing, "__dataclass_params__", None), "frozen", False)
    is_object = hasattr(thing, "__dict__") and not isinstance(thing, (type, nn.Module))
    return is_object and not frozen

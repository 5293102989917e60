"""Replay memories: a fixed number of slots, and a rule for which samples stay in them.

Layout: a memory has ``capacity`` slots. A slot holds one item of every column: ``x``, ``y`` and
the declared extras. A column is one tensor of shape ``(capacity, *item)`` on the memory's
device, allocated at the first ``add``. Slots, counters, priorities and the generator live on
the host: which slot is overwritten is decided there, so nothing waits for an accelerator.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, compress
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ocar.accel.compiled import kernels
from ocar.errors import CheckpointError, ConfigError, InputError
from ocar.rng import make_generator

_WRITTEN = torch.uint8, torch.int64, torch.float32, torch.float64  # types that a kernel writes
_BLOCK = 1024  # numbers that a program of it writes


@dataclass(frozen=True, eq=False)
class Batch:
    """Items taken from a memory, one a row."""

    x: Tensor
    """Inputs, shape ``(n, *item)``."""
    y: Tensor
    """Class columns, int64 of shape ``(n,)``, or float targets of shape ``(n, *target)``."""
    extras: Mapping[str, Tensor] = field(default_factory=dict, kw_only=True)
    """The declared extras by name, each of shape ``(n, *item)``."""
    indices: Tensor = field(kw_only=True)
    """The slots that the rows came from, as given to ``gather``: int64 of shape ``(n,)``."""

    def __len__(self) -> int:
        return len(self.indices)


class Memory(ABC):
    """What every memory does; a subclass decides which samples stay.

    Args:
        capacity: Number of slots, at least 1.
        extras: Names of what is stored beside x and y, for example ``("logits",)``.
        seed: The seed of the experiment; the memory has a generator of its own made from it.
        device: Where the stored samples live.

    Attributes:
        seen: Number of samples ever offered.
    """

    float_targets: ClassVar[bool] = False
    """Whether y may be floating point as well as int64 class columns."""

    def __init__(
        self,
        capacity: int,
        *,
        extras: Sequence[str] = (),
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        if capacity < 1:
            raise ConfigError(f"Invalid {capacity=}. Must be at least 1.")
        names = {"x", "y", "", *extras}
        if isinstance(extras, str) or len(names) != len(extras) + 3:
            raise ConfigError(f"Invalid {extras=}. Must be distinct names other than 'x' and 'y'.")
        self.capacity = capacity
        self.extras = tuple(extras)
        self.seed = seed
        self.device = torch.device(device)
        self._generator = make_generator(seed, "memory")
        self.seen = 0
        self._columns: dict[str, Tensor] = {}
        # numpy, whose calls on small arrays cost a tenth of torch's. -1 marks an empty slot.
        self._labels = np.full(capacity, -1, dtype=np.int64)
        self._slots = torch.empty(0, dtype=torch.int64)  # the occupied ones, ascending
        self._start()

    def add(
        self,
        x: Tensor,
        y: Tensor,
        extras: Mapping[str, Tensor] | None = None,
        *,
        labels: Sequence[int] | None = None,
        accepted: Tensor | None = None,
    ) -> None:
        """Offers a batch of n samples; the memory keeps those that its rule chooses.

        Args:
            x: Inputs of any dtype, shape ``(n, *item)``, on any device.
            y: Class columns, int64 of shape ``(n,)``, or float targets where allowed.
            extras: Exactly the declared extras, each of shape ``(n, *item)``.
            labels: A host copy of integer ``y``. Without it ``y`` is copied to the host, which
                waits for the accelerator if ``y`` lives on one.
            accepted: A scalar of bool on the memory's device: where it is False, the slots keep
                what they hold. The host does not learn of it before :meth:`reconcile`.

        Raises:
            InputError: The batch does not fit; the memory is as it was before.
        """
        extras = extras or {}
        if set(extras) != set(self.extras):
            raise InputError(f"Invalid extras {sorted(extras)}. Must be {sorted(self.extras)}.")
        columns = {"x": x, "y": y, **extras}
        self._check_columns(columns, rows=x.shape[:1])
        host = _host_labels(y, labels)
        if not host:
            return
        if not self._columns:
            # Not empty: a slot whose first item was not accepted holds a real one all the same.
            repeated = torch.arange(self.capacity) % len(host)
            self._columns = {
                name: c.detach()[repeated.to(c.device)].to(self.device)
                for name, c in columns.items()
            }
        writes, freed = self._place(host)
        self.seen += len(host)
        if not writes:  # then nothing was freed: that happens for a new class, which writes
            return
        if freed:
            self._labels[freed] = -1
        slots, rows = np.array(list(writes)), np.array(list(writes.values()))
        self._labels[slots] = np.array(host)[rows]
        if freed or len(self) < self.capacity:
            self._slots = torch.from_numpy(np.flatnonzero(self._labels >= 0))
        places = torch.from_numpy(np.stack([slots, rows]))
        if self._write_rows(places, columns, accepted):
            return
        pick, devices = places[1], {column.device for column in columns.values()}
        picks = {device: pick.to(device, non_blocking=True) for device in devices}
        chosen = {k: c.detach().index_select(0, picks[c.device]) for k, c in columns.items()}
        self._write(places[0], chosen, accepted)

    def reconcile(self) -> None:
        """Learns which labels the slots really hold, where some samples were not accepted.

        This waits for the accelerator. A class that holds more than its share loses some.
        """
        if not self._columns or self._columns["y"].is_floating_point():
            return
        held = self._columns["y"].cpu().numpy()
        self._labels = np.where(self._labels >= 0, held, -1)
        self._labels[self._relabel(self._labels.tolist())] = -1
        self._slots = torch.from_numpy(np.flatnonzero(self._labels >= 0))

    def sample(self, n: int) -> Batch:
        """Takes ``min(n, len(self))`` stored items without replacement, all equally likely."""
        return self.gather(self.draw(n))

    def draw(self, n: int) -> Tensor:
        """The random half of :meth:`sample`: distinct occupied slots, int64, on the host."""
        if n < 0:
            raise InputError(f"Invalid {n=}. Must be at least 0.")
        return self._slots[torch.randperm(len(self), generator=self._generator)[:n]]

    def gather(self, slots: Tensor, *, check: bool = True) -> Batch:
        """The deterministic half of :meth:`sample`: the items in ``slots``, in their order.

        Args:
            slots: Occupied slots, int64 of shape ``(n,)``. On an accelerator, as in a captured
                graph, they are used unchecked.
            check: Whether to look if they are; those that :meth:`draw` gave are.
        """
        if check and slots.is_cpu:
            self._check_slots(slots)
        columns, index = self._columns, slots.to(self.device, non_blocking=True)
        if not columns:
            dtypes = {"x": None, "y": torch.int64, **dict.fromkeys(self.extras)}
            columns = {k: torch.empty(0, dtype=d, device=self.device) for k, d in dtypes.items()}
        items = {name: column.index_select(0, index) for name, column in columns.items()}
        return Batch(items.pop("x"), items.pop("y"), extras=items, indices=slots)

    def set_extras(self, slots: Tensor, extras: Mapping[str, Tensor]) -> None:
        """Rewrites extras of stored items.

        Args:
            slots: Distinct occupied slots, int64 of shape ``(n,)``, on the host.
            extras: Some or all of the declared extras, each of shape ``(n, *item)``.
        """
        self._check_slots(slots)
        if len(set(slots.tolist())) != len(slots):
            raise InputError(f"Invalid slots {slots.tolist()}. Must be distinct.")
        if not set(extras) <= set(self.extras):
            raise InputError(f"Invalid extras {sorted(extras)}. Must be in {sorted(self.extras)}.")
        self._check_columns(extras, rows=slots.shape)
        if len(slots):
            self._write(slots, {name: column.detach() for name, column in extras.items()})

    def widen_extra(self, name: str, width: int) -> None:
        """Makes items of an extra longer, with zeros at their end; what is stored stays.

        The column is another tensor afterwards: a captured graph that reads it is of no use.

        Args:
            name: A declared extra whose items have at least one dimension.
            width: Length of that dimension; nothing happens where it is that long already.
        """
        if name not in self.extras:
            raise InputError(f"Invalid extra {name!r}. Must be in {sorted(self.extras)}.")
        column = self._columns.get(name)
        if column is None:
            return
        if column.ndim < 2:
            raise InputError(f"Invalid extra {name!r}: items without a dimension. Must have one.")
        if column.shape[1] < width:
            wider = column.new_zeros(self.capacity, width, *column.shape[2:])
            wider[:, : column.shape[1]] = column
            self._columns[name] = wider

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def slots(self) -> Tensor:
        """The occupied slots, int64 on the host, ascending."""
        return self._slots.clone()

    @property
    def labels(self) -> Tensor:
        """Labels of the stored items, int64 on the host, by ascending slot."""
        if self._columns and (dtype := self._columns["y"].dtype) != torch.int64:
            raise InputError(f"No labels: the stored targets are {dtype}. Must be torch.int64.")
        return torch.from_numpy(self._labels[self._slots.numpy()])

    def class_counts(self) -> dict[int, int]:
        """Number of stored items of each class that has any."""
        return dict(sorted(Counter(self.labels.tolist()).items()))

    def memory_usage(self) -> int:
        """Bytes of the columns; 0 before the first sample."""
        return sum(c.numel() * c.element_size() for c in self._columns.values())

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(capacity={self.capacity}, extras={self.extras}, "
            f"seed={self.seed}, device='{self.device}', stored={len(self)}, seen={self.seen})"
        )

    def state_dict(self) -> dict[str, Tensor]:
        """All that a memory needs to go on as if never interrupted: copies, on the host."""
        columns = {f"columns.{k}": c.to("cpu", copy=True) for k, c in self._columns.items()}
        return self._bookkeeping() | columns

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Copies what :meth:`state_dict` gave, into the same storage where there is any.

        Raises:
            CheckpointError: The state is not of such a memory; this one is as it was before.
        """
        if bad := [name for name, value in state.items() if not isinstance(value, Tensor)]:
            raise CheckpointError(f"Invalid memory state: {bad} of it. Must be tensors.")
        given = {name: value.detach().cpu() for name, value in state.items()}
        columns = self._check_state(given)
        integer = "y" in columns and not columns["y"].is_floating_point()
        labels = columns["y"].numpy() if integer else np.zeros_like(self._labels)
        occupied = self._restore(given, labels.tolist())
        self._labels = np.where(occupied, labels, -1)
        self._slots = torch.from_numpy(np.flatnonzero(occupied))
        self.seen = int(given["seen"])
        self._generator.set_state(given["generator"])
        if not self._columns or not columns:
            self._columns = {k: torch.empty_like(c, device=self.device) for k, c in columns.items()}
        for name, column in columns.items():
            self._columns[name].copy_(column)

    def _start(self) -> None:  # noqa: B027 (a rule need not keep anything of its own)
        """Sets up what the rule keeps of its own."""

    @abstractmethod
    def _place(self, labels: list[int]) -> tuple[dict[int, int], list[int]]:
        """Decides about a batch: the row each written slot gets, and the slots freed before."""

    def _relabel(self, labels: list[int]) -> list[int]:
        """Takes in what each slot holds, −1 for nothing; returns slots that are to be freed."""
        return []

    @abstractmethod
    def _restore(self, state: Mapping[str, Tensor], labels: list[int]) -> list[bool]:
        """Loads the rule's own part or raises; returns which slots are occupied."""

    def _bookkeeping(self) -> dict[str, Tensor]:
        """The state without the columns."""
        numbers = {"capacity": torch.tensor(self.capacity), "seen": torch.tensor(self.seen)}
        return numbers | {"generator": self._generator.get_state()}

    def _write_rows(
        self, places: Tensor, columns: Mapping[str, Tensor], accepted: Tensor | None
    ) -> bool:
        """Write rows of a batch by one kernel a column, if there is one for all of them.

        Args:
            places: Slots, and below them the rows of the batch that go there, on the host.
            columns: The batch.
            accepted: As for :meth:`add`.
        """
        known = self.device.type == "cuda" and all(c.dtype in _WRITTEN for c in columns.values())
        compiled = kernels("ocar.accel.triton.rows") if known else None
        if compiled is None:
            return False
        where, count = places.to(self.device, non_blocking=True), places.shape[1]
        for name, given in columns.items():
            column = self._columns[name]
            batch = given.detach().to(self.device, non_blocking=True).contiguous()
            size = column[0].numel()
            with torch.cuda.device_of(column):
                compiled.write_rows[count, -(-size // _BLOCK)](
                    batch, column, where, accepted, count, SIZE=size, BLOCK=_BLOCK
                )
        return True

    def _write(
        self, slots: Tensor, items: Mapping[str, Tensor], accepted: Tensor | None = None
    ) -> None:
        index = slots.to(self.device, non_blocking=True)
        ahead = self.device.type != "cpu"  # the host must not read a copy still under way
        for name, item in items.items():
            column, new = self._columns[name], item.to(self.device, non_blocking=ahead)
            if accepted is not None:
                new = torch.where(accepted, new, column.index_select(0, index))
            column.index_copy_(0, index, new)

    def _check_columns(self, columns: Mapping[str, Tensor], *, rows: torch.Size) -> None:
        for name, column in columns.items():
            shape, dtype = tuple(column.shape), column.dtype
            if not shape or shape[:1] != rows:
                raise InputError(f"Invalid shape {shape} of {name}. Must begin with {tuple(rows)}.")
            kept = self._columns.get(name, column)
            if shape[1:] != kept.shape[1:] or dtype != kept.dtype:
                stored = f"those stored, {tuple(kept.shape[1:])} and {kept.dtype}"
                raise InputError(
                    f"Invalid {name}: items {shape[1:]} and {dtype}. Must be as {stored}."
                )
            if name == "y" and not (dtype == torch.int64 and len(shape) == 1):
                allowed = "1-D torch.int64" + (" or floating point" if self.float_targets else "")
                if not (self.float_targets and dtype.is_floating_point):
                    raise InputError(f"Invalid y: {len(shape)}-D {dtype}. Must be {allowed}.")

    def _check_slots(self, slots: Tensor) -> None:
        if slots.dtype != torch.int64 or slots.ndim != 1 or not slots.is_cpu:
            kind = f"{slots.ndim}-D {slots.dtype} on {slots.device}"
            raise InputError(f"Invalid slots: {kind}. Must be 1-D torch.int64 on cpu.")
        host = slots.numpy()
        inside = not len(host) or (host.min() >= 0 and host.max() < self.capacity)
        if not inside or (self._labels[host] < 0).any():
            allowed = f"among the {len(self)} occupied of {self.capacity}"
            raise InputError(f"Invalid slots {slots.tolist()}. Must be {allowed}.")

    def _check_state(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The columns in the state, once all that every memory has is in order."""
        names = {f"columns.{name}": name for name in ("x", "y", *self.extras)}
        columns = {name: state[key] for key, name in names.items() if key in state}
        kinds = _kinds({key: value for key, value in state.items() if key not in names})
        if kinds != (allowed := _kinds(self._bookkeeping())):
            raise CheckpointError(f"Invalid memory state {kinds}. Must be {allowed}.")
        seen, capacity = int(state["seen"]), int(state["capacity"])
        if capacity != self.capacity:
            raise CheckpointError(f"Invalid {capacity=} of the state. Must be {self.capacity}.")
        if seen < 0 or list(columns) != (list(names.values()) if seen else []):
            given = f"columns {list(columns)} after {seen} samples"
            raise CheckpointError(f"Invalid {given}. Must be {list(names.values())}, none after 0.")
        try:
            self._check_columns(columns, rows=torch.Size([capacity]))
            torch.Generator().set_state(state["generator"])
        except (InputError, RuntimeError) as error:
            raise CheckpointError(f"Invalid memory state. {error}") from error
        return columns


class ReservoirMemory(Memory):
    """A uniform sample of everything offered so far.

    Algorithm R of Vitter, "Random sampling with a reservoir", ACM TOMS 11(1), 1985: sample i,
    counted from 0, draws j uniformly from 0..i once the slots are full, and replaces slot j if
    there is one. Class columns or float targets.
    """

    float_targets = True

    def _place(self, labels: list[int]) -> tuple[dict[int, int], list[int]]:
        filling = min(len(labels), max(self.capacity - self.seen, 0))
        writes = {self.seen + row: row for row in range(filling)}
        uniform = torch.rand(len(labels) - filling, dtype=torch.float64, generator=self._generator)
        for row, u in enumerate(uniform.tolist(), start=filling):
            slot = int(u * (self.seen + row + 1))
            if slot < self.capacity:
                writes[slot] = row  # of two that draw one slot, the later stays
        return writes, []

    def _restore(self, state: Mapping[str, Tensor], labels: list[int]) -> list[bool]:
        seen = int(state["seen"])
        return [slot < seen for slot in range(self.capacity)]


class ClassBalancedMemory(Memory):
    """An equal share of the slots for every class seen so far, a uniform sample within each.

    With n classes each has ``capacity // n`` slots and the first ``capacity % n`` to appear have
    one more; a class that has offered fewer samples than its share leaves slots empty. Every
    sample gets a random priority, and a class keeps the highest of all that it ever offered, so
    that its sample is uniform and stays so when a new class shrinks its share. With more classes
    than slots, the first ``capacity`` classes keep one sample each and later ones none.
    """

    def _start(self) -> None:
        # (priority, slot) of the stored samples of each class, in order of first appearance
        self._heaps: dict[int, list[tuple[float, int]]] = {}
        self._quotas: dict[int, int] = {}
        self._free = list(range(self.capacity))  # a heap: the lowest free slot is used first

    def _place(self, labels: list[int]) -> tuple[dict[int, int], list[int]]:
        uniform = torch.rand(len(labels), dtype=torch.float64, generator=self._generator)
        freed = [] if self._heaps.keys() >= set(labels) else self._admit(labels)
        writes: dict[int, int] = {}
        for row, (label, priority) in enumerate(zip(labels, uniform.tolist(), strict=True)):
            heap = self._heaps[label]
            if len(heap) < self._quotas[label]:
                slot = heapq.heappop(self._free)
                heapq.heappush(heap, (priority, slot))
            elif heap and priority > heap[0][0]:
                slot = heap[0][1]
                heapq.heapreplace(heap, (priority, slot))
            else:
                continue
            writes[slot] = row
        return writes, freed

    def _admit(self, labels: Sequence[int]) -> list[int]:
        """Makes room for the classes not seen before; returns the slots that this frees."""
        for label in labels:
            self._heaps.setdefault(label, [])
        self._quotas = _quotas(self.capacity, list(self._heaps))
        freed = []
        for label, heap in self._heaps.items():
            while len(heap) > self._quotas[label]:
                freed.append(heapq.heappop(heap)[1])
                heapq.heappush(self._free, freed[-1])
        return freed

    def _relabel(self, labels: list[int]) -> list[int]:
        stored = sorted(chain.from_iterable(self._heaps.values()))
        self._heaps = {label: [] for label in self._heaps}
        for item in stored:  # ascending, so each list is a heap
            self._heaps.setdefault(labels[item[1]], []).append(item)
        return self._admit(())

    def _bookkeeping(self) -> dict[str, Tensor]:
        priorities = [-1.0] * self.capacity  # -1: an empty slot
        for priority, slot in chain.from_iterable(self._heaps.values()):
            priorities[slot] = priority
        own = {
            "classes": torch.tensor(list(self._heaps), dtype=torch.int64),
            "priorities": torch.tensor(priorities, dtype=torch.float64),
        }
        return super()._bookkeeping() | own

    def _restore(self, state: Mapping[str, Tensor], labels: list[int]) -> list[bool]:
        classes, priorities = state["classes"].tolist(), state["priorities"].tolist()
        if len(priorities) != self.capacity:
            raise CheckpointError(f"Invalid {len(priorities)} priorities. Must be {self.capacity}.")
        heaps: dict[int, list[tuple[float, int]]] = {label: [] for label in classes}
        occupied = [priority >= 0 for priority in priorities]
        for slot in compress(range(self.capacity), occupied):
            heaps.setdefault(labels[slot], []).append((priorities[slot], slot))
        quotas = _quotas(self.capacity, classes)
        held = {label: len(heap) for label, heap in heaps.items()}
        if any(count > quotas.get(label, 0) for label, count in held.items()):
            raise CheckpointError(f"Invalid numbers by class {held}. Must be at most {quotas}.")
        for heap in heaps.values():
            heapq.heapify(heap)
        self._heaps, self._quotas = heaps, quotas
        self._free = [slot for slot in range(self.capacity) if not occupied[slot]]
        return occupied


MEMORIES: dict[str, type[Memory]] = {
    "reservoir": ReservoirMemory,
    "class-balanced": ClassBalancedMemory,
}
"""The memories by the name that a configuration uses."""


def _quotas(capacity: int, classes: Sequence[int]) -> dict[int, int]:
    """Slots of each class: equal shares, the remainder one each to the first."""
    share, rest = divmod(capacity, max(len(classes), 1))
    return {label: share + (rank < rest) for rank, label in enumerate(classes)}


def _host_labels(y: Tensor, labels: Sequence[int] | None) -> list[int]:
    """Integer targets as host integers, zeros for float targets; refuses what is no label."""
    if y.is_floating_point():
        if labels is not None:
            raise InputError(f"Invalid labels beside {y.dtype} targets. Must be None.")
        return [0] * len(y)
    host: list[int] = y.tolist() if labels is None else list(labels)
    if len(host) != len(y) or (labels is not None and y.is_cpu and host != y.tolist()):
        raise InputError(f"Invalid labels {host}. Must be the {len(y)} values of y.")
    if host and min(host) < 0:
        raise InputError(f"Invalid label {min(host)} in y. Must be at least 0.")
    return host


def _kinds(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    return {name: f"{t.ndim}-D {t.dtype}" for name, t in sorted(tensors.items())}

"""The base of replay memories: a fixed number of slots, and a policy for which samples stay.

A memory has ``capacity`` slots. A slot holds one item of every column: ``x``, ``y`` and the
declared extras. Inputs of several parts have a column for each part, such as ``x.ids``. A column is
one tensor of shape ``(capacity, *item)`` on the memory's device, allocated at the first ``add``.
The host chooses the slots to overwrite, so nothing waits for an accelerator. Slot numbers, labels,
counters and the generator are on the host.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from ocar import accel
from ocar.config import require
from ocar.errors import CheckpointError, ConfigError, InputError
from ocar.memory.columns import Columns, Keep
from ocar.rng import make_generator
from ocar.state import with_prefix, without_prefix
from ocar.structure import Inputs, from_parts, parts_of, with_name, without_name


@dataclass(frozen=True, eq=False)
class Batch:
    """Items taken from a memory, one a row."""

    x: Inputs  #: Inputs, ``(n, *item)``: a tensor, or a :class:`~ocar.structure.Structure`.
    #: Units of the head, int64 of shape ``(n,)``, or regression targets, ``(n, *target)``.
    y: Tensor
    #: The declared extras by name, each ``(n, *item)``.
    extras: Mapping[str, Tensor] = field(default_factory=dict, kw_only=True)
    indices: Tensor = field(kw_only=True)  #: The slots of the rows, int64 of shape ``(n,)``.

    def __len__(self) -> int:
        return len(self.indices)


@dataclass(frozen=True, eq=False, kw_only=True)
class Offer:
    """Samples that a memory may keep, and what a policy may know of them."""

    x: Inputs  #: Inputs, ``(n, *item)``, on any device.
    y: Tensor  #: Units of the head or regression targets.
    labels: list[int]  #: ``y`` on the host; zeros in regression.
    #: What the learner's objective knows of them, as declared by ``Memory.uses``: ``"loss"``,
    #: ``(n,)``, and ``"outputs"``, ``(n, outputs)``. On an accelerator reading it waits.
    known: Mapping[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Placement:
    """What a policy decided about an offer."""

    writes: Mapping[int, int]  #: The row of the offer that each written slot gets.
    freed: Sequence[int] = ()  #: Slots that are emptied before.


class Memory(ABC):
    """A replay memory; a subclass is a policy that decides which samples stay.

    A policy implements :meth:`place`, and :meth:`policy_state` with :meth:`load_policy_state` if it
    keeps anything of its own. ``ocar.register("name", Policy)`` gives it a name for configurations
    and checkpoints.

    Args:
        capacity: Number of slots, at least 1.
        extras: Names of what is stored beside x and y, for example ``("logits",)``.
        seed: The seed of the experiment; the memory makes a generator of its own from it.
        device: Where the stored samples live.

    Attributes:
        seen: Number of samples ever offered.
        horizon: How many samples the policy represents at most; infinite if it forgets none by age.
        generator: Draws the replay; a policy may draw from it too.
    """

    float_targets: ClassVar[bool] = False
    """Whether y may be floating point."""

    horizon: float = math.inf

    uses: ClassVar[tuple[str, ...]] = ()
    """What :attr:`Offer.known` has to contain."""

    def __init__(
        self,
        capacity: int,
        *,
        extras: Sequence[str] = (),
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        require("capacity", capacity, capacity >= 1, "at least 1")
        names = {"x", "y", "", *extras}
        parts = any(name.startswith("x.") for name in extras)
        valid = not isinstance(extras, str) and len(names) == len(extras) + 3 and not parts
        require("extras", extras, valid, "distinct names other than 'x' and 'y'")
        self.capacity = capacity
        self.extras = tuple(extras)
        self.seed = seed
        self.device = torch.device(device)
        self.generator = make_generator(seed, "memory")
        self.seen = 0
        self._columns = Columns(capacity, self.device, float_targets=self.float_targets)
        # numpy: its calls on small arrays cost a tenth of torch's. -1 marks an empty slot.
        self._labels = np.full(capacity, -1, dtype=np.int64)
        self._slots = torch.empty(0, dtype=torch.int64)  # the occupied ones, ascending
        self.start()

    def arguments(self) -> dict[str, Any]:
        """The arguments that make an empty memory of this kind.

        Raises:
            ConfigError: The memory does not have one of them as an attribute.
        """
        names = _argument_names(type(self))
        if missing := [name for name in names if not hasattr(self, name)]:
            raise ConfigError(
                f"{type(self).__name__} takes {missing[0]!r} and has no attribute of this name. "
                "A memory keeps its arguments under their names, so that it can be made again."
            )
        return {name: getattr(self, name) for name in names}

    def bind(self, **arguments: Any) -> Self:
        """An empty memory of the same kind, with some arguments in place of the present ones."""
        return type(self)(**(self.arguments() | arguments))

    def shard(self, ranks: accel.Ranks) -> None:
        """Spread the slots of an empty memory over ranks; the samples of a slot are on one rank.

        Policies, draws and labels stay the same on all ranks, which must offer the same samples.
        Every rank must call :meth:`sample`, :meth:`gather`, :meth:`find`, :meth:`remove` and
        :meth:`state_dict` then.
        """
        assert not self._columns.tensors
        self._columns.shards = accel.Shards(ranks, self.capacity)

    @property
    def sharded(self) -> bool:
        """Whether its slots are spread over ranks."""
        return self._columns.shards is not None

    # What a policy implements

    @abstractmethod
    def place(self, offer: Offer) -> Placement:
        """Decide which samples of an offer go to which slots."""

    def start(self) -> None:  # noqa: B027 (a policy need not keep anything of its own)
        """Set up what the policy keeps of its own."""

    def policy_state(self) -> dict[str, Tensor]:
        """What the policy keeps of its own."""
        return {}

    def load_policy_state(self, state: Mapping[str, Tensor], labels: list[int]) -> None:  # noqa: B027
        """Restore what :meth:`policy_state` gave, or change nothing and raise a CheckpointError.

        ``labels`` has the label that each slot holds, −1 for an empty one.
        """

    def relabel(self, labels: list[int]) -> Sequence[int]:
        """Learn which label each slot really holds, −1 for none; return slots to be emptied."""
        return ()

    def removed(self, slots: Sequence[int]) -> None:  # noqa: B027 (a policy may need no slot list)
        """Take notice that these slots are empty now."""

    # What every memory offers

    def add(
        self,
        x: Inputs,
        y: Tensor,
        extras: Mapping[str, Tensor] | None = None,
        *,
        labels: Sequence[int] | None = None,
        known: Mapping[str, Tensor] | None = None,
        accepted: Tensor | None = None,
        keep: Keep | None = None,
    ) -> None:
        """Offer n samples; the memory keeps those that its policy chooses.

        Args:
            x: Inputs of any dtype, ``(n, *item)``, on any device.
            y: Units of the head, int64 of shape ``(n,)``, or float targets where allowed.
            extras: Exactly the declared extras, each ``(n, *item)``.
            labels: A host copy of integer ``y``, which need not be copied then.
            known: At least what the policy uses, see :attr:`uses`.
            accepted: A scalar of bool on the memory's device: where it is False, the slots keep
                what they hold. The host does not learn of it before :meth:`reconcile`.
            keep: Called with the columns and the slots that are about to be overwritten.

        Raises:
            InputError: The batch does not fit; the memory is as it was before.
        """
        extras, known = extras or {}, known or {}
        if missing := [name for name in self.uses if name not in known]:
            kind = type(self).__name__
            raise InputError(f"Invalid known {sorted(known)}: {kind} also uses {sorted(missing)}.")
        if set(extras) != set(self.extras):
            raise InputError(f"Invalid extras {sorted(extras)}. Must be {sorted(self.extras)}.")
        columns = {**with_name("x", parts_of(x)), "y": y, **extras}
        stored = self._columns.tensors
        if stored and columns.keys() != stored.keys():
            given, before = (sorted(without_name("x", c)) for c in (columns, stored))
            raise InputError(f"Invalid parts {given} of x. Must be {before}, as those stored.")
        self._columns.check(columns, rows=next(iter(columns.values())).shape[:1])
        host = _host_labels(y, labels)
        if not host:
            return
        if not stored:
            self._columns.begin(columns)
        placement = self.place(Offer(x=x, y=y, labels=host, known=known))
        self.seen += len(host)
        writes = placement.writes
        self._columns.write(columns, writes, accepted=accepted, keep=keep)
        self._labels[list(placement.freed)] = -1
        self._labels[list(writes)] = np.array(host)[list(writes.values())]
        if placement.freed or len(self) < self.capacity:
            self._find_slots()

    def reconcile(self) -> None:
        """Learn which labels the slots really hold, after samples that were not accepted.

        This waits for the accelerator. A class that holds more than its share loses some.
        """
        y = self._columns.tensors.get("y")
        if y is None or y.is_floating_point():
            return
        held = self._columns.whole(y).cpu().numpy()
        self._labels = np.where(self._labels >= 0, held, -1)
        self._labels[list(self.relabel(self._labels.tolist()))] = -1
        self._find_slots()

    def find(self, x: Inputs) -> Tensor:
        """The occupied slots whose input equals one of ``(n, *item)``, int64 on the host."""
        found = self._columns.equal(with_name("x", parts_of(x)))
        return self._slots[found[self._slots]]

    def remove(self, slots: Tensor) -> None:
        """Empty some slots and overwrite what they held.

        The policy fills an empty slot when it next chooses that slot. A memory that loses all its
        items begins again. The slots are occupied, int64 of shape ``(n,)``, on the host.
        """
        self._check_slots(slots)
        if not len(slots):
            return
        self._labels[slots.numpy()] = -1
        self._find_slots()
        if not len(self):
            self._columns.tensors, self.seen = {}, 0
            self.start()
            return
        self.removed(slots.tolist())
        # All empty slots: the first batch was repeated in slots that were not filled since.
        self._columns.overwrite(self._labels < 0, by=self._slots[:1])

    def _find_slots(self) -> None:
        self._slots = torch.from_numpy(np.flatnonzero(self._labels >= 0))

    def sample(self, n: int) -> Batch:
        """Take ``min(n, len(self))`` stored items without replacement, all equally likely."""
        return self.gather(self.draw(n))

    def draw(self, n: int) -> Tensor:
        """The random half of :meth:`sample`: distinct occupied slots, int64, on the host."""
        if n < 0:
            raise InputError(f"Invalid {n=}. Must be at least 0.")
        return self._slots[torch.randperm(len(self), generator=self.generator)[:n]]

    def gather(self, slots: Tensor, *, check: bool = True) -> Batch:
        """The deterministic half of :meth:`sample`: the items in ``slots``, in their order.

        Slots are int64 of shape ``(n,)``. Those on another device than the host cannot be checked.
        """
        if check:
            self._check_slots(slots)
        if self._columns.tensors:
            items = self._columns.gather(slots.to(self.device, non_blocking=True))
        else:
            dtypes = {"x": None, "y": torch.int64, **dict.fromkeys(self.extras)}
            items = {k: torch.empty(0, dtype=d, device=self.device) for k, d in dtypes.items()}
        x = from_parts(without_name("x", items))
        extras = {name: items[name] for name in self.extras}
        return Batch(x, items["y"], extras=extras, indices=slots)

    def set_extras(self, slots: Tensor, extras: Mapping[str, Tensor]) -> None:
        """Rewrite some of the declared extras, each ``(n, *item)``, in n distinct slots."""
        self._check_slots(slots)
        if len(set(slots.tolist())) != len(slots):
            raise InputError(f"Invalid slots {slots.tolist()}. Must be distinct.")
        if not set(extras) <= set(self.extras):
            raise InputError(f"Invalid extras {sorted(extras)}. Must be in {sorted(self.extras)}.")
        self._columns.check(extras, rows=slots.shape)
        self._columns.write(extras, {slot: row for row, slot in enumerate(slots.tolist())})

    def widen_extra(self, name: str, width: int) -> None:
        """Make the first dimension of an extra's items at least ``width``, with zeros at its end.

        The column is another tensor afterwards.
        """
        if name not in self.extras:
            raise InputError(f"Invalid extra {name!r}. Must be in {sorted(self.extras)}.")
        column = self._columns.tensors.get(name)
        if column is None:
            return
        if column.ndim < 2:
            raise InputError(f"Invalid extra {name!r}: items without a dimension. Must have one.")
        self._columns.widen(name, width)

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def represents(self) -> float:
        """How many of the latest samples of the stream the stored ones are a sample of."""
        return min(self.seen, self.horizon)

    @property
    def slots(self) -> Tensor:
        """The occupied slots, int64 on the host, ascending."""
        return self._slots.clone()

    @property
    def labels(self) -> Tensor:
        """Labels of the stored items, int64 on the host, by ascending slot."""
        y = self._columns.tensors.get("y")
        if y is not None and y.dtype != torch.int64:
            raise InputError(f"No labels: the stored targets are {y.dtype}. Must be torch.int64.")
        return torch.from_numpy(self._labels[self._slots.numpy()])

    def class_counts(self) -> dict[int, int]:
        """Number of stored items of each class that has any."""
        return dict(sorted(Counter(self.labels.tolist()).items()))

    def memory_usage(self) -> int:
        """Bytes of the columns on this rank; 0 before the first sample."""
        return self._columns.nbytes

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.arguments().items())
        return f"{type(self).__name__}({shown}, stored={len(self)}, seen={self.seen})"

    # State

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that a restored memory needs to go on exactly: copies, on the host."""
        return self._bookkeeping() | with_prefix("columns", self._columns.state_dict())

    def _bookkeeping(self) -> dict[str, Tensor]:
        """The state without the columns."""
        return {
            "capacity": torch.tensor(self.capacity),
            "seen": torch.tensor(self.seen),
            "generator": self.generator.get_state(),
            "occupied": torch.from_numpy(self._labels >= 0),
            **with_prefix("policy", self.policy_state()),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Copy what :meth:`state_dict` gave, into the same storage where there is any.

        Raises:
            CheckpointError: The state is not of such a memory; this one is as it was before.
        """
        if bad := [name for name, value in state.items() if not isinstance(value, Tensor)]:
            raise CheckpointError(f"Invalid memory state: {bad} of it. Must be tensors.")
        given = {name: value.detach().cpu() for name, value in state.items()}
        columns = self._check_state(given)
        integer = "y" in columns and not columns["y"].is_floating_point()
        stored = columns["y"].numpy() if integer else np.zeros_like(self._labels)
        labels = np.where(given["occupied"].numpy(), stored, -1)
        self.load_policy_state(without_prefix("policy", given), labels.tolist())
        self._labels = labels
        self._find_slots()
        self.seen = int(given["seen"])
        self.generator.set_state(given["generator"])
        self._columns.load_state_dict(columns)

    def _check_slots(self, slots: Tensor) -> None:
        if slots.dtype != torch.int64 or slots.ndim != 1 or slots.device.type != "cpu":
            kind = f"{slots.ndim}-D {slots.dtype} on {slots.device}"
            raise InputError(f"Invalid slots: {kind}. Must be 1-D torch.int64 on cpu.")
        host = slots.numpy()
        inside = not len(host) or (host.min() >= 0 and host.max() < self.capacity)
        if not inside or (self._labels[host] < 0).any():
            allowed = f"among the {len(self)} occupied of {self.capacity}"
            raise InputError(f"Invalid slots {slots.tolist()}. Must be {allowed}.")

    def _check_state(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The columns in the state, once everything that every memory has is in order."""
        parts = with_name("x", without_name("x", without_prefix("columns", state))) or ("x",)
        names = {f"columns.{name}": name for name in (*parts, "y", *self.extras)}
        columns = {name: state[key] for key, name in names.items() if key in state}
        kinds = _kinds({key: value for key, value in state.items() if key not in names})
        if kinds != (allowed := _kinds(self._bookkeeping())):
            raise CheckpointError(f"Invalid memory state {kinds}. Must be {allowed}.")
        seen, capacity = int(state["seen"]), int(state["capacity"])
        if capacity != self.capacity or len(state["occupied"]) != capacity:
            raise CheckpointError(f"Invalid {capacity=} of the state. Must be {self.capacity}.")
        if seen < 0 or list(columns) != (list(names.values()) if seen else []):
            given = f"columns {list(columns)} after {seen} samples"
            raise CheckpointError(f"Invalid {given}. Must be {list(names.values())}, none after 0.")
        if not seen and bool(state["occupied"].any()):
            raise CheckpointError("Invalid memory state: occupied slots before any sample.")
        try:
            self._columns.check(columns, rows=torch.Size([capacity]))
            torch.Generator().set_state(state["generator"])
        except (InputError, RuntimeError) as error:
            raise CheckpointError(f"Invalid memory state. {error}") from error
        return columns


def _host_labels(y: Tensor, labels: Sequence[int] | None) -> list[int]:
    """Integer targets as host integers, zeros for float targets; raises if one is no label."""
    if y.is_floating_point():
        if labels is not None:
            raise InputError(f"Invalid labels beside {y.dtype} targets. Must be None.")
        return [0] * len(y)
    host: list[int] = y.tolist() if labels is None else list(labels)
    readable = y.device.type == "cpu"
    if len(host) != len(y) or (labels is not None and readable and host != y.tolist()):
        raise InputError(f"Invalid labels {host}. Must be the {len(y)} values of y.")
    if host and min(host) < 0:
        raise InputError(f"Invalid label {min(host)} in y. Must be at least 0.")
    return host


def _kinds(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    return {name: f"{t.ndim}-D {t.dtype}" for name, t in sorted(tensors.items())}


def _argument_names(kind: type) -> list[str]:
    """What a class takes, and the next class too where it takes ``*args`` or ``**rest``."""
    names: list[str] = []
    for one in kind.__mro__:
        taken = inspect.signature(one).parameters.values()
        own = [p.name for p in taken if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        names += [name for name in own if name not in names]
        if len(own) == len(taken):
            break
    return names

"""The processes that learn together, one a device: what they send each other.

A process is a *rank*. ``torchrun`` starts the ranks, and ``torch.distributed`` connects them: gloo
between CPUs, NCCL between GPUs. :class:`Ranks` wraps the few collectives that a learner needs. A
rank that is missing is named, and messages and bytes are counted.
"""

from __future__ import annotations

import atexit
import os
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor
from torch import distributed as dist

from ocar.errors import ConfigError, InputError, RankError, RankLeftError
from ocar.structure import Given, Inputs, as_inputs, as_targets, from_parts, parts_of

T = TypeVar("T")

Statistics = Literal["synchronized", "own"]
Placement = Literal["replicated", "sharded"]
Inverses = Literal["replicated", "broadcast", "sharded"]
FactorType = Literal["same", "float16"]

GRACE = 5.0
"""Seconds in which the ranks that noticed a fault report, before the others are called missing."""


@dataclass
class Traffic:
    """What a rank has sent so far by ``"gather"``, ``"sum"``, ``"broadcast"`` and ``"exchange"``.

    Each message is one collective. Its bytes are those of the tensor that this rank contributes;
    how often they travel depends on the backend's algorithm. Those of an exchange, which is rare,
    are not counted.
    """

    messages: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)


class Ranks:
    """The ranks of one learner.

    Every rank makes the same learner with ``ranks=Ranks()``, and calls its methods in the same
    order. :meth:`~ocar.Learner.learn` takes a rank's own share of each stream batch; together the
    ranks take the step that one would take on the whole batch.

    Without ``torchrun`` there is one rank, and nothing is sent.

    Args:
        timeout: Seconds that a rank waits for the others before a :class:`~ocar.errors.RankError`.
        batchnorm: BatchNorm uses the statistics of the whole batch (``"synchronized"``), or each
            rank those of its own samples (``"own"``), which sends less. The running statistics
            are the same on all ranks in both cases.
        memory: Every rank has the whole memory (``"replicated"``), or each some of its slots
            (``"sharded"``): then N ranks hold N times as much, replayed samples are sent, and
            every rank must call what reads the memory.
        inverses: Of K-FAC with factored damping every rank computes all inverses
            (``"replicated"``), which sends nothing. Or each layer's are computed by one rank. It
            sends them to all (``"broadcast"``), or keeps them and sends the gradients that it has
            multiplied with them (``"sharded"``).
        factor_dtype: Estimates of the curvature are sent with the type that they have
            (``"same"``), or as ``"float16"``, half of the bytes of float32. Each factor is divided
            by its largest entries first, so that nothing overflows. With N ranks the error of an
            entry is at most N · 5e-4 of the mean over ranks of their largest entries. If the
            damping is less, a factor may have no inverse, and the batch is skipped.

    Attributes:
        rank: The number of this process, from 0.
        size: How many ranks there are.
        connected: Whether there is a process group; if not, there is one rank.
        traffic: What this rank has sent.
        failed: Whether a message has failed, so that all must be started again.
    """

    def __init__(
        self,
        *,
        timeout: float = 600.0,
        batchnorm: Statistics = "synchronized",
        memory: Placement = "replicated",
        inverses: Inverses = "replicated",
        factor_dtype: FactorType = "same",
    ) -> None:
        if not 0 < timeout < float("inf"):
            raise ConfigError(f"Invalid {timeout=}. Must be larger than 0, in seconds.")
        _require_one_of("batchnorm", batchnorm, get_args(Statistics))
        _require_one_of("memory", memory, get_args(Placement))
        _require_one_of("inverses", inverses, get_args(Inverses))
        _require_one_of("factor_dtype", factor_dtype, get_args(FactorType))
        self.timeout, self.batchnorm, self.memory = timeout, batchnorm, memory
        self.inverses, self.factor_dtype = inverses, factor_dtype
        self.traffic = Traffic()
        self.failed = False
        self.rank, self.size, self.connected = 0, 1, False
        if not dist.is_initialized() and "WORLD_SIZE" in os.environ:
            _connect(timedelta(seconds=timeout))
        if dist.is_initialized():
            self.connected = True
            self.rank, self.size = dist.get_rank(), dist.get_world_size()
            # A group of its own: the user's collectives cannot mix with these.
            self._group = dist.new_group(backend=_backend(), timeout=timedelta(seconds=timeout))
            self._name = getattr(self._group, "group_name", "ocar")

    def __repr__(self) -> str:
        return f"Ranks(rank={self.rank}, size={self.size}, timeout={self.timeout}, {self.about})"

    @property
    def about(self) -> str:
        """The settings that must be the same on all ranks."""
        names = "batchnorm", "memory", "inverses", "factor_dtype"
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)

    @property
    def device(self) -> torch.device:
        """The device of this rank: its own GPU if there are GPUs, else the CPU.

        Raises:
            ConfigError: There are more ranks on this machine than GPUs.
        """
        if not torch.cuda.is_available():
            return torch.device("cpu")
        index, count = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
        if index >= count:
            raise ConfigError(
                f"There is no GPU for process {index} of this machine, which has {count}. Start at "
                "most one process a GPU."
            )
        return torch.device("cuda", index)

    def share(self, batch: Given) -> Any:
        """The rows of a batch that are this rank's, where every rank has the whole batch.

        It takes the samples, or the labels, that :meth:`~ocar.Learner.learn` takes.
        """
        batch = as_inputs(batch)
        first, last = bounds(len(batch), self.size)[self.rank]
        return batch[first:last]

    # Collectives; every rank must call them in the same order.

    def all_gather(self, own: Tensor, counts: Sequence[int]) -> Tensor:
        """All rows, those of rank 0 first; ``own`` are this rank's, ``(counts[rank], ...)``."""
        most = max(counts)
        own = own.detach().contiguous()
        if len(own) < most:
            padded = own.new_zeros(most, *own.shape[1:])
            padded[: len(own)] = own
            own = padded
        # NCCL and gloo know bytes, but not every type.
        sent = own.reshape(most, -1).view(torch.uint8) if own.numel() else own
        found = sent.new_empty(self.size, *sent.shape)
        send = partial(dist.all_gather, [*found.unbind()], sent, group=self._group)
        self._send("gather", sent, send)
        rows = found.view(own.dtype).view(self.size, most, *own.shape[1:])
        return torch.cat([part[:count] for part, count in zip(rows, counts, strict=True)])

    def sum_(self, tensor: Tensor) -> Tensor:
        """Replace a contiguous tensor by the sum over ranks, the same to the bit on all."""
        return self.start_sum_(tensor)()

    def start_sum_(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Begin :meth:`sum_`, and go on while the tensor travels; the result waits for it."""
        send = partial(dist.all_reduce, tensor, group=self._group, async_op=True)
        work = self._send("sum", tensor, send)

        def wait() -> Tensor:
            self._try(work.wait)
            return tensor

        return wait

    def broadcast_(self, tensor: Tensor, source: int = 0) -> Tensor:
        """Replace a contiguous tensor by that of one rank."""
        send = partial(dist.broadcast, tensor, src=source, group=self._group)
        self._send("broadcast", tensor, send)
        return tensor

    def exchange(self, value: T) -> list[T]:
        """The value of each rank, any picklable object; slow, for what is rare."""
        found: list[Any] = [None] * self.size
        send = partial(dist.all_gather_object, found, value, group=self._group)
        self._send("exchange", torch.empty(0), send)
        return found

    def require_equal(self, what: str, text: str) -> None:
        """Raise a ``ConfigError`` on all ranks if a text differs between them."""
        texts = self.exchange(text)
        for rank, other in enumerate(texts):
            if other != texts[0]:
                raise ConfigError(
                    f"The ranks have different {what}: rank 0 has {texts[0]}, rank {rank} has "
                    f"{other}. They must be the same."
                )

    def require_same(self, what: str, tensors: Iterable[Tensor]) -> None:
        """Raise a ``RankError`` on all ranks if tensors are not the same to the bit on all."""
        own = 0
        for tensor in tensors:
            held = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
            own = zlib.crc32(held.numpy().tobytes(), own)
        for rank, other in enumerate(self.exchange(own)):
            if other != own:
                raise RankError(
                    f"The {what} of ranks {self.rank} and {rank} differ. Perhaps a layer keeps "
                    "statistics of its own samples: leave it out, and start again from the last "
                    "checkpoint."
                )

    def run_on_first(self, function: Callable[[], None]) -> None:
        """Let rank 0 do something, such as writing a file, while the others wait.

        What it raises is raised there, and the others raise a :class:`RankError`.
        """
        error: Exception | None = None
        if self.rank == 0:
            try:
                function()
            except Exception as raised:  # noqa: BLE001 (the others must not wait for ever)
                error = raised
        first = self.exchange(None if error is None else f"{type(error).__name__}: {error}")[0]
        if error is not None:
            raise error
        if first is not None:
            raise RankError(f"Rank 0 failed. {first}")

    def gather_batch(
        self, x: Given, y: Given, *, device: torch.device, dtype: torch.dtype
    ) -> tuple[Inputs, Tensor]:
        """The whole stream batch, from each rank's share; a share may be empty.

        Args:
            x: This rank's samples, as a user gives them.
            y: Their labels or targets.
            device: Where the samples go.
            dtype: The type of targets that are floating-point arrays.

        Raises:
            InputError: A share is no batch, or the shares are unlike each other.
        """
        error, rows = "", 0
        parts: dict[str, Tensor] = {}
        try:
            x, y = as_inputs(x), as_targets(y, dtype)
            if y.dim() == 0 or len(x) != len(y):
                raise InputError(
                    f"y must have one entry for each of {len(x)} samples; given {tuple(y.shape)}."
                )
            rows, parts = len(y), {**{f"x{n}": p for n, p in parts_of(x).items()}, "y": y}
        except Exception as raised:  # noqa: BLE001 (every rank must learn of it)
            error = f"{raised}"
        items = {n: (str(p.dtype), tuple(p.shape[1:])) for n, p in parts.items()}
        kind = zlib.crc32(repr(items).encode())
        head = torch.tensor([[rows, kind, bool(error)]])
        heads = self.all_gather(head, [1] * self.size)
        counts: list[int] = heads[:, 0].tolist()
        if bool((heads[:, 2] > 0).any()) or len({*heads[:, 1].tolist()}) > 1:
            items = self._agree(items, counts, error)
            if not rows:
                parts = {
                    n: torch.empty(0, *shape, dtype=_dtype(d)) for n, (d, shape) in items.items()
                }
        if sum(counts) == 0:
            raise InputError("The batch is empty on every rank; it must have at least one sample.")
        host = parts.pop("y")
        whole = {n: self.all_gather(p.to(device), counts) for n, p in parts.items()}
        y = self.all_gather(host.to("cpu"), counts)
        return from_parts({n.removeprefix("x"): p for n, p in whole.items()}), y

    def _agree(self, items: dict[str, Any], counts: Sequence[int], error: str) -> dict[str, Any]:
        """What the samples of all ranks are; raises if a rank has an error or others."""
        found = self.exchange((items, error))
        for rank, (_, text) in enumerate(found):
            if text:
                raise InputError(f"Rank {rank} was given a bad batch. {text}")
        filled = [rank for rank, count in enumerate(counts) if count]
        for rank in filled:
            if found[rank][0] != found[filled[0]][0]:
                raise InputError(
                    f"The ranks were given different samples: rank {filled[0]} "
                    f"{found[filled[0]][0]}, rank {rank} {found[rank][0]}. They must be alike."
                )
        return found[filled[0]][0] if filled else items

    def _send(self, kind: str, sent: Tensor, collective: Callable[[], Any]) -> Any:
        """Run one collective, and count it."""
        self.traffic.messages[kind] += 1
        self.traffic.bytes[kind] += sent.nbytes
        return self._try(collective)

    def _try(self, collective: Callable[[], Any]) -> Any:
        """What goes wrong in a collective becomes an error that names a rank."""
        try:
            return collective()
        except RuntimeError as error:  # gloo's and NCCL's
            self.failed = True
            atexit.unregister(_disconnect)  # it might wait for ranks that are gone
            raise self._blame(error) from error

    def leave(self) -> None:
        """Before this rank ends on purpose: the others get a ``RankLeftError`` when they wait."""
        _store().set(self._key("left", self.rank), "1")

    def _key(self, what: str, rank: int) -> str:
        """A name in the store that the ranks share."""
        return f"ocar/{self._name}/{what}/{rank}"

    def _blame(self, error: Exception) -> RankError:
        """An error that names the ranks that did not take part."""
        reason = str(error).strip().splitlines()[0] if str(error) else type(error).__name__
        waited = f"Rank {self.rank} could not reach the others within {self.timeout:g} s"
        try:
            _store().set(self._key("waits", self.rank), "1")
            end = time.monotonic() + GRACE
            missing, left = self._without("waits", range(self.size)), set[int]()
            while missing and not left and time.monotonic() < end:
                time.sleep(0.05)
                missing = self._without("waits", missing)
                left = {*missing} - {*self._without("left", missing)}
        except Exception:  # noqa: BLE001 (the store is gone with the rank that held it)
            gone = "the rank that keeps their list is gone"
            return RankError(f"{waited}, and {gone}. {reason}")
        if left:
            return RankLeftError(f"Rank {min(left)} has stopped.")
        if missing:
            names = ", ".join(map(str, missing))
            plural = "s" if len(missing) > 1 else ""
            why = f"rank{plural} {names} did not answer: dead, slow or elsewhere"
        else:
            why = "they gave up waiting for one of them, or the connection broke"
        return RankError(f"{waited}: {why}. {reason}")

    def _without(self, what: str, ranks: Iterable[int]) -> list[int]:
        """The ranks that have not set a key."""
        return [rank for rank in ranks if not _store().check([self._key(what, rank)])]


def bounds(rows: int, size: int) -> list[tuple[int, int]]:
    """The first row of each rank's share and the one after its last, as equal as can be."""
    ends = [rows * (rank + 1) // size for rank in range(size)]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def _require_one_of(name: str, value: str, allowed: Sequence[str]) -> None:
    """Raise a ``ConfigError`` unless ``value`` is one of the options."""
    if value not in allowed:
        options = " or ".join(map(repr, allowed))
        raise ConfigError(f"Invalid {name}={value!r}. Must be {options}.")


def _connect(timeout: timedelta) -> None:
    """Make the process group that torchrun describes in the environment.

    torchrun keeps one store for all restarts, in which the addresses of the processes before are.
    So each restart has names of its own, unless torchrun was told to make another store.
    """
    store, rank, size = next(iter(dist.rendezvous("env://", timeout=timeout)))
    store.set_timeout(timeout)
    if os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") != "1":
        store = dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
    dist.init_process_group(_backend(), store=store, rank=rank, world_size=size, timeout=timeout)
    atexit.register(_disconnect, os.getpid())


def _disconnect(pid: int) -> None:
    """Destroy the process group before the process ends: NCCL warns otherwise.

    A child of a fork leaves it to its parent.
    """
    if dist.is_initialized() and os.getpid() == pid:
        dist.destroy_process_group()


def _store() -> Any:
    """The names and values that the ranks share."""
    return dist.distributed_c10d._get_default_store()


def _backend() -> str:
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"


def _dtype(name: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, name.removeprefix("torch."))
    return found

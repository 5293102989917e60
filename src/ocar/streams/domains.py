"""Domain-incremental streams: the same classes, in one domain after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from ocar.errors import ConfigError, DataError
from ocar.streams.arrays import LabelledSet
from ocar.streams.indexed import IndexedStream, Part
from ocar.streams.samples import Samples, Source


class DomainSet(LabelledSet, Protocol):
    """A data set whose images are from several domains."""

    @property
    def domain_train(self) -> Tensor | None:
        """Which domain each training image is from, ``(n,)``."""

    @property
    def domain_test(self) -> Tensor | None:
        """Which domain each test image is from, ``(m,)``."""

    @property
    def domains(self) -> tuple[str, ...]:
        """What the domains are called."""


class DomainIncremental(IndexedStream):
    """A data set of several domains, one domain a task; labels as they are.

    For domains that are arrays of their own see :class:`~ocar.streams.arrays.ArrayStream`.

    Args:
        arrays: The data.
        order: Names of the domains in the order in which they come; by default that of ``arrays``.
        batch_size: Samples in a complete batch.
        validation: Part of each domain's training data that is kept for validation.
        seed: Decides the order of samples and, without ``split_seed``, which are validation data.
        split_seed: Decides the validation data alone, so that it is the same for every seed.
        iid: Put all domains in one task.
        blurry: Part of each domain's samples that change places with other domains', see
            :func:`~ocar.streams.blur.blur`.

    Attributes:
        arrays: The data.
        domains: Name of each domain in the order of the stream.
    """

    def __init__(
        self,
        arrays: DomainSet,
        *,
        order: Sequence[str] | None = None,
        batch_size: int = 10,
        validation: float = 0.05,
        seed: int = 0,
        split_seed: int | None = None,
        iid: bool = False,
        blurry: float = 0.0,
    ) -> None:
        if arrays.domain_train is None or arrays.domain_test is None:
            raise DataError(f"{arrays.name} has no domains.")
        names = arrays.domains if order is None else tuple(order)
        if sorted(names) != sorted(arrays.domains):
            raise ConfigError(
                f"Invalid {order=}. Must be the domains of {arrays.name}, each once: "
                f"{', '.join(arrays.domains)}."
            )
        self.arrays = arrays
        self.domains = names
        self.iid = iid
        places = [arrays.domains.index(name) for name in names]

        def rows(domain: Tensor, part: str) -> list[Tensor]:
            """The rows of each task on the host."""
            mine = [torch.nonzero(domain == place).flatten().cpu() for place in places]
            for name, found in zip(names, mine, strict=True):
                if not len(found):
                    raise DataError(f"{arrays.name} has no {part} data in domain {name}.")
            return [torch.cat(mine)] if iid else mine

        train = Samples([Source(x=arrays.x_train, y=arrays.y_train)])
        test = Samples([Source(x=arrays.x_test, y=arrays.y_test)])
        super().__init__(
            train,
            rows(arrays.domain_train, "training"),
            test=[Part(test, mine) for mine in rows(arrays.domain_test, "test")],
            batch_size=batch_size,
            validation=validation,
            seed=seed,
            split_seed=split_seed,
            blurry=blurry,
            name=arrays.name,
        )

    @property
    def classes(self) -> int:
        """Number of classes in the whole stream."""
        return len(torch.unique(self.arrays.y_train))

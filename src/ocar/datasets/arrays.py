"""The container of a data set: samples, labels and perhaps domains."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ocar.errors import DataError

Labelled = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]
"""Images ``(n, channels, height, width)`` and their labels ``(n,)``."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Arrays:
    """Training and test samples with their labels: images, or sentences that were encoded.

    The images of large sets are mapped from a file: they are read when they are used, and
    writing to them changes this process's copy only.
    """

    name: str  #: Name of the data set.
    #: Training images ``(n, channels, height, width)``, uint8, or sentences ``(n, d)``: features
    #: in floating point, or token ids of int64.
    x_train: torch.Tensor
    y_train: torch.Tensor  #: Their labels ``(n,)``, int64.
    x_test: torch.Tensor  #: Test samples ``(m, ...)``, of the same shape and type.
    y_test: torch.Tensor  #: Their labels ``(m,)``, int64.
    domain_train: torch.Tensor | None = None  #: Domain of each training sample, ``(n,)``, int64.
    domain_test: torch.Tensor | None = None  #: Domain of each test sample, ``(m,)``, int64.
    x_validation: torch.Tensor | None = None  #: The data set's own validation samples, if any.
    y_validation: torch.Tensor | None = None  #: Their labels.
    x_unknown: torch.Tensor | None = None  #: Test samples of no class (out of scope), if any.
    classes: tuple[str, ...] = ()  #: Name of each label; empty if the files have none.
    domains: tuple[str, ...] = ()  #: Name of each domain, in their natural order.

    def __post_init__(self) -> None:
        for part, x, y, domain in (
            ("train", self.x_train, self.y_train, self.domain_train),
            ("test", self.x_test, self.y_test, self.domain_test),
        ):
            self._check_samples(f"x_{part}", x)
            self._check_labels(f"y_{part}", y, count=len(x))
            if (domain is None) == bool(self.domains):
                raise DataError(
                    f"{self.name}: {len(self.domains)} domains are named and domain_{part} is "
                    f"{'not ' if domain is None else ''}given. Must be both or neither."
                )
            if domain is not None:
                self._check_labels(f"domain_{part}", domain, count=len(x))
                if not 0 <= domain.min() <= domain.max() < len(self.domains):
                    raise DataError(
                        f"{self.name}: domain_{part} must be in 0..{len(self.domains) - 1}."
                    )
        if (self.x_validation is None) != (self.y_validation is None):
            raise DataError(
                f"{self.name}: x_validation and y_validation must both be given, or none."
            )
        if self.x_validation is not None and self.y_validation is not None:
            self._check_samples("x_validation", self.x_validation)
            self._check_labels("y_validation", self.y_validation, count=len(self.x_validation))
        if self.x_unknown is not None:
            self._check_samples("x_unknown", self.x_unknown)

    def _check_samples(self, part: str, x: torch.Tensor) -> None:
        images = x.dim() == 4 and x.dtype == torch.uint8
        sentences = x.dim() == 2 and (x.is_floating_point() or x.dtype == torch.int64)
        if not (images or sentences) or len(x) == 0:
            raise DataError(
                f"{self.name}: {part} is {x.dtype} of shape {tuple(x.shape)}. Must be uint8 "
                "(n, channels, height, width), or floating point or int64 (n, d), with n > 0."
            )
        like = self.x_train
        if (x.shape[1:], x.dtype) != (like.shape[1:], like.dtype):
            raise DataError(
                f"{self.name}: samples of {tuple(like.shape[1:])}, {like.dtype}, for training and "
                f"of {tuple(x.shape[1:])}, {x.dtype}, in {part}. Must be the same."
            )

    def _check_labels(self, part: str, y: torch.Tensor, *, count: int) -> None:
        if y.dtype != torch.int64 or y.shape != (count,):
            raise DataError(
                f"{self.name}: {part} is {y.dtype} of shape {tuple(y.shape)}. "
                f"Must be int64 ({count},), one label a sample."
            )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image; ``(1, 1, d)`` of a sentence."""
        channels, height, width = (1, 1, *self.x_train.shape[1:])[-3:]
        return channels, height, width

    def by_domain(self) -> tuple[Arrays, ...]:
        """One data set for each domain, named after it, with the labels of the whole.

        The data of a domain whose rows are contiguous is a view, not a copy.
        """
        if self.domain_train is None or self.domain_test is None:
            raise DataError(f"{self.name} has no domains.")
        parts = []
        for index, domain in enumerate(self.domains):
            train, test = (_rows(d, index) for d in (self.domain_train, self.domain_test))
            parts.append(
                Arrays(
                    name=f"{self.name}/{domain}",
                    x_train=self.x_train[train],
                    y_train=self.y_train[train],
                    x_test=self.x_test[test],
                    y_test=self.y_test[test],
                    classes=self.classes,
                )
            )
        return tuple(parts)

    def to(self, device: torch.device | str) -> Arrays:
        """The same with the samples on ``device``.

        Labels stay on the host: streams and learners read them, and would wait for a GPU.
        """
        names = ("x_train", "x_test", "x_validation", "x_unknown")
        given = {name: getattr(self, name) for name in names}
        moved = {name: x.to(device) for name, x in given.items() if x is not None}
        return dataclasses.replace(self, **moved)


def _rows(domain: torch.Tensor, index: int) -> slice | torch.Tensor:
    rows = torch.nonzero(domain == index).flatten()
    if len(rows) and int(rows[-1] - rows[0]) == len(rows) - 1:
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


def from_numpy(
    name: str, train: Labelled, test: Labelled, *, classes: tuple[str, ...] = ()
) -> Arrays:
    """A data set without domains; read-only arrays are copied."""
    x_train, y_train, x_test, y_test = (
        torch.from_numpy(values if values.flags.writeable else values.copy())
        for values in (*train, *test)
    )
    return Arrays(
        name=name, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test, classes=classes
    )

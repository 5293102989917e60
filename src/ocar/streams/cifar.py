"""The official CIFAR pickles, read without running anything that they say.

A pickle is a program. These files name three things of numpy to rebuild one array; each is
answered with a stand-in that can do this and no more, and any other name is refused.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from ocar.errors import DataError

_SIDE = 32
_VALUES = 3 * _SIDE * _SIDE


class _DType:
    """Stands for a ``numpy.dtype``; only its code is kept."""

    __slots__ = ("code",)

    def __init__(self, code: object, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Byte order and alignment, which do not matter for bytes."""


class _Array:
    """Stands for a ``numpy.ndarray`` under construction; ``values`` appears with its state."""

    __slots__ = ("values",)

    def __init__(self, *_: object) -> None:
        self.values: npt.NDArray[np.uint8] | None = None

    def __setstate__(self, state: object) -> None:
        match state:
            case (int(), tuple(shape), _DType(code=b"u1"), False | 0, bytes(values)) if all(
                isinstance(size, int) and size >= 0 for size in shape
            ) and math.prod(shape) == len(values):
                self.values = np.frombuffer(values, dtype=np.uint8).reshape(shape)
            case _:
                raise pickle.UnpicklingError("an array in it is not one of unsigned bytes")


class _Name:
    """A permitted global: it can be called or passed on, not changed."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., object] | None) -> None:
        self._make = make

    def __call__(self, *args: object) -> object:
        if self._make is None:
            raise pickle.UnpicklingError("it calls what it may only name")
        return self._make(*args)

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("it tries to change a function")


_ALLOWED: Mapping[tuple[str, str], Callable[..., object] | None] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): None,
    ("numpy", "dtype"): _DType,
}


class _ArrayUnpickler(pickle.Unpickler):
    """Knows plain values and arrays of bytes; everything else is an error."""

    def find_class(self, module_name: str, global_name: str, /) -> object:
        """The stand-in of a permitted global."""
        if (module_name, global_name) not in _ALLOWED:
            raise pickle.UnpicklingError(
                f"it asks for {module_name}.{global_name}, which is not allowed"
            )
        return _Name(_ALLOWED[module_name, global_name])


def read_cifar(
    path: Path, *, label_key: str, classes: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Images and labels of one official CIFAR file.

    Args:
        path: The pickle, for example ``cifar-100-python/train``.
        label_key: Which labels, for example ``"fine_labels"``.
        classes: How many there are.

    Returns:
        Images ``(n, 3, 32, 32)`` and labels ``(n,)`` in ``0 .. classes − 1``.

    Raises:
        DataError: The file cannot be read, wants anything but plain values and an array, or
            does not hold what a CIFAR file holds.
    """
    try:
        with path.open("rb") as file:
            content = _load(file)
    except Exception as error:  # a damaged pickle can raise anything
        raise DataError(f"Cannot read {path} as a CIFAR file: {error}.") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} is no CIFAR file: it holds a {type(content).__name__}.")
    data, labels = content.get(b"data"), content.get(label_key.encode())
    images = data.values if isinstance(data, _Array) else None
    if images is None or images.ndim != 2 or images.shape[1] != _VALUES:
        raise DataError(f"{path} is no CIFAR file: its 'data' is not an array of (n, {_VALUES}).")
    if not isinstance(labels, list) or len(labels) != len(images):
        raise DataError(f"{path} is no CIFAR file: no {label_key!r} for its {len(images)} images.")
    if not all(type(label) is int and 0 <= label < classes for label in labels):
        raise DataError(f"{path}: {label_key!r} must be whole numbers in 0..{classes - 1}.")
    return images.reshape(-1, 3, _SIDE, _SIDE), np.array(labels, dtype=np.int64)


def _load(file: IO[bytes]) -> object:
    content = _ArrayUnpickler(file, encoding="bytes").load()
    if file.read(1):
        raise pickle.UnpicklingError("there is more after its end")
    return content

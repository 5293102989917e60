"""Frozen dataclasses to plain values and back.

The plain form of a configuration is a dictionary that JSON and TOML can hold. A value that is a
dataclass itself becomes a dictionary with a ``kind`` that names its class.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, TypeVar, Union

import numpy as np

from ocar.errors import ConfigError
from ocar.registry import closest, describe, rebuild

T = TypeVar("T")

CUSTOM = "custom"
"""The kind of a value without a plain form, such as a user's function."""

Range = Literal["at least 0", "at least 1", "larger than 0", "in [0, 1]", "in (0, 1]"]

_RANGES: dict[Range, Callable[[float], bool]] = {
    "at least 0": lambda value: 0 <= value < float("inf"),
    "at least 1": lambda value: 1 <= value < float("inf"),
    "larger than 0": lambda value: 0 < value < float("inf"),
    "in [0, 1]": lambda value: 0 <= value <= 1,
    "in (0, 1]": lambda value: 0 < value <= 1,
}

WRONG_KIND = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError)
"""The errors that a class may raise for a value of an unexpected type."""


def to_plain(config: Any) -> dict[str, Any]:
    """The plain form of a dataclass."""
    return {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config)}


def _plain(value: Any) -> Any:
    if hasattr(value, "arguments") and not isinstance(value, type):
        return describe(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {"kind": type(value).__name__, **to_plain(value)}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return {"kind": CUSTOM, "repr": repr(value)}


def from_plain(cls: type[T], values: Mapping[str, Any], *, kinds: Iterable[type] = ()) -> T:
    """The dataclass of a plain form; ``kinds`` are dataclasses that may occur as values.

    Raises:
        ConfigError: A field or a kind is unknown, or a value is invalid.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{cls.__name__} cannot be made of a {type(values).__name__}.")
    reject_unknown(cls, values)
    by_name = {kind.__name__: kind for kind in kinds}
    try:
        return cls(**{name: _from_plain(name, value, by_name) for name, value in values.items()})
    except ConfigError:
        raise
    except WRONG_KIND as error:  # a text for a number, lists in lists in lists
        raise ConfigError(f"{cls.__name__} does not take these settings: {error}") from error


def _from_plain(name: str, value: Any, kinds: Mapping[str, type]) -> Any:
    if isinstance(value, Mapping) and "registered" in value:
        return rebuild(value)
    if isinstance(value, Mapping):
        kind = str(value.get("kind"))
        if kind not in kinds:
            raise ConfigError(f"Invalid {name}: kind {kind!r}. Must be one of {sorted(kinds)}.")
        rest = {k: v for k, v in value.items() if k != "kind"}
        return from_plain(kinds[kind], rest, kinds=kinds.values())
    if isinstance(value, list):
        return tuple(_from_plain(name, item, kinds) for item in value)
    return value


def reject_unknown(cls: Any, values: Iterable[str], *, others: Iterable[str] = ()) -> None:
    """Raise a ``ConfigError`` if a name is not a field of a dataclass.

    ``others`` are names that may have been meant as well.
    """
    known = [f.name for f in dataclasses.fields(cls)]
    unknown = sorted(set(values) - set(known))
    if unknown:
        close = closest(unknown[0], [*known, *others])
        hint = "" if close is None else f" Did you mean {close!r}?"
        raise ConfigError(
            f"{cls.__name__} has no setting {', '.join(unknown)}.{hint} It has {', '.join(known)}."
        )


def require(name: str, value: Any, valid: bool, allowed: str) -> None:
    """Raise a ``ConfigError`` that says what is allowed, unless ``valid``."""
    if not valid:
        raise ConfigError(f"Invalid {name}={value!r}. Must be {allowed}.")


def require_sizes(**sizes: int) -> None:
    """Raise a ``ConfigError`` if a number is less than 1."""
    for name, size in sizes.items():
        require(name, size, size >= 1, "at least 1")


def require_one_of(name: str, value: Any, allowed: Iterable[str]) -> None:
    """Raise a ``ConfigError`` that lists the options, unless ``value`` is one of them."""
    options = tuple(allowed)
    require(name, value, value in options, f"one of {', '.join(map(repr, options))}")


def require_range(config: Any, allowed: Range, *names: str, none: str = "") -> None:
    """Raise a ``ConfigError`` if a field of a dataclass is outside a range; NaN is outside.

    ``none``, such as ``"or None"``, is what the error says of None where None is allowed.
    """
    for name in names:
        value = getattr(config, name)
        valid = bool(none) if value is None else _RANGES[allowed](value)
        require(name, value, valid, f"{allowed}, {none}" if none else allowed)


def require_options(config: Any) -> None:
    """Raise a ``ConfigError`` if a field of a dataclass has a value of another type.

    Options, numbers, texts and functions are checked. NumPy's numbers become Python's, which a file
    can hold.
    """
    for name, (kind, others) in _kinds(config.__class__).items():
        value = getattr(config, name)
        if isinstance(value, others):
            continue
        if typing.get_origin(kind) is Literal:
            require_one_of(name, value, typing.get_args(kind))
            continue
        types, allowed = _TYPES[kind]
        named = (_TYPES[o][1] if o in _TYPES else o.__name__ for o in others)
        valid = isinstance(value, types) and (kind is bool or not isinstance(value, bool))
        require(name, value, valid, " or ".join([allowed, *named]))
        if kind is not Callable and type(value) not in (bool, int, float, str):
            object.__setattr__(config, name, kind(value))


_TYPES: dict[Any, tuple[Any, str]] = {
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    bool: ((bool, np.bool_), "True or False"),
    str: (str, "a text"),
    Callable: (Callable, "a function"),
    type(None): (type(None), "None"),
}
"""The types that a value may have for each type of a field, and what they are called."""


@functools.cache
def _kinds(cls: type) -> dict[str, tuple[Any, tuple[type, ...]]]:
    """The type of each field that is checked, and the other types that it may have."""
    found = {}
    for name, hint in typing.get_type_hints(cls).items():
        union = typing.get_origin(hint) in (Union, UnionType)
        kind, *others = typing.get_args(hint) if union else (hint,)
        kind = Callable if typing.get_origin(kind) is Callable else kind
        if typing.get_origin(kind) is Literal or kind in _TYPES:
            found[name] = kind, tuple(typing.get_origin(other) or other for other in others)
    return found

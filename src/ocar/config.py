"""Frozen dataclasses to plain values and back.

The plain form of a configuration is a dictionary that JSON and TOML can hold. A value that is a
dataclass itself becomes a dictionary with a ``kind`` that names its class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from ocar.errors import ConfigError
from ocar.registry import describe, rebuild

T = TypeVar("T")

CUSTOM = "custom"
"""The kind of a value without a plain form, such as a user's function."""

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


def reject_unknown(cls: Any, values: Iterable[str]) -> None:
    """Raise a ``ConfigError`` if a name is not a field of a dataclass."""
    known = [f.name for f in dataclasses.fields(cls)]
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise ConfigError(
            f"{cls.__name__} has no setting {', '.join(unknown)}. It has {', '.join(known)}."
        )


def require(name: str, value: Any, valid: bool, allowed: str) -> None:
    """Raise a ``ConfigError`` that says what is allowed, unless ``valid``."""
    if not valid:
        raise ConfigError(f"Invalid {name}={value!r}. Must be {allowed}.")


def require_one_of(name: str, value: Any, allowed: Iterable[str]) -> None:
    """Raise a ``ConfigError`` that lists the options, unless ``value`` is one of them."""
    options = tuple(allowed)
    require(name, value, value in options, f"one of {', '.join(map(repr, options))}")

"""Names for the things that a configuration, a command line or a checkpoint can choose.

A registry is a table of names. :func:`ocar.register` adds to it. A plugin is a package with an
entry point in the group ``ocar.plugins``: it is loaded when a name is not found, and registers what
it has.
"""

from __future__ import annotations

import difflib
import functools
import importlib.metadata
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from ocar.errors import CheckpointError, ConfigError

T = TypeVar("T")

REGISTRIES: dict[str, Registry[Any]] = {}
"""All registries by what they name."""

PLUGINS = "ocar.plugins"
"""The group of entry points."""


SYNONYMS = {
    "learning_rate": "lr", "rate": "lr", "step_size": "lr",
    "buffer": "memory", "buffer_size": "memory", "mem_size": "memory", "memory_size": "memory",
    "epochs": "passes", "iterations": "passes", "gradient_steps": "passes",
    "seed": "seeds", "output": "out", "output_dir": "out", "gpu": "device", "cuda": "device",
    "eval_every": "every", "n_trials": "trials",
    "tensorboard": "tracker", "mlflow": "tracker", "wandb": "tracker",
}  # fmt: skip
"""Names that other libraries use for a setting or a flag, and ours."""


class Registry(dict[str, T]):
    """Things of one kind by name.

    Args:
        what: What they are, for messages: ``"method"``, ``"memory"``.
        entries: The first of them.
    """

    def __init__(self, what: str, entries: Mapping[str, T] | None = None) -> None:
        super().__init__(entries or {})
        self.what = what
        REGISTRIES[what] = self

    def find(self, name: str) -> T:
        """The thing of a name; a ``ConfigError`` that lists the names if there is none."""
        if name not in self:
            load_plugins()
        if name not in self:
            raise unknown(self.what, name, self)
        return self[name]

    def name_of(self, thing: object) -> str | None:
        """The name of a thing, or None if it has none."""
        return next((name for name, known in self.items() if known is thing), None)

    def add(self, name: str, thing: T) -> None:
        """Give a thing a name; a ``ConfigError`` if another thing has that name."""
        if self.get(name, thing) != thing:
            raise ConfigError(f"There is another {self.what} {name!r}: {self[name]!r}.")
        self[name] = thing


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant: another word, one letter off, or a part of it."""
    by_lower = {other.lower(): other for other in known}
    wanted = str(name).lower()
    if SYNONYMS.get(wanted) in by_lower:
        return by_lower[SYNONYMS[wanted]]
    parts = [other for other in by_lower if len(wanted) > 3 and wanted in other]
    found = sorted(parts, key=len) or difflib.get_close_matches(wanted, by_lower, n=1)
    return by_lower[found[0]] if found else None


def unknown(what: str, name: str, known: Iterable[str]) -> ConfigError:
    """The error for an unknown name: the name that was probably meant, and all names."""
    names = list(known)
    close = closest(name, names)
    hint = "" if close is None else f" Did you mean {close!r}?"
    return ConfigError(f"Unknown {what} {name!r}.{hint} There are {', '.join(names)}.")


@functools.cache
def load_plugins() -> None:
    """Load every installed plugin, once."""
    for entry in importlib.metadata.entry_points(group=PLUGINS):
        try:
            entry.load()
        except Exception as error:
            raise ConfigError(f"The plugin {entry.name!r} cannot be loaded: {error}") from error


def describe(thing: Any) -> dict[str, Any]:
    """A registered part of a learner with ``arguments()``, such as a memory, in plain values.

    Raises:
        CheckpointError: Its class has no name, so that nobody could make it again.
    """
    for what, registry in REGISTRIES.items():
        name = registry.name_of(type(thing))
        if name is not None:
            plain = {key: _plain(value) for key, value in thing.arguments().items()}
            return {"registered": what, "name": name, "arguments": plain}
    kind = type(thing).__name__
    raise CheckpointError(
        f"{kind} has no name, so that a checkpoint with it could not be loaded. "
        f'Register it where it is defined: ocar.register("a-name", {kind}).'
    )


def rebuild(plain: Mapping[str, Any]) -> Any:
    """The part that :func:`describe` described.

    Raises:
        ConfigError: Its name is unknown, or its arguments do not fit.
    """
    registry = REGISTRIES.get(str(plain.get("registered")))
    kind: Any = None if registry is None else registry.find(str(plain.get("name")))
    if not hasattr(kind, "arguments"):  # nothing that describe() could have described
        raise ConfigError(f"Invalid description of a part: {dict(plain)}.")
    try:
        return kind(**{name: _argument(value) for name, value in plain["arguments"].items()})
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise ConfigError(f"Invalid arguments of {plain.get('name')!r}: {error}") from error


def _argument(value: Any) -> Any:
    """A plain value as it was given: JSON has no tuples."""
    return tuple(_argument(item) for item in value) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if callable(value):
        raise CheckpointError(f"A checkpoint cannot hold the function {value!r}.")
    return str(value)

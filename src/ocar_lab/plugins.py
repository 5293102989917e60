"""Modules that register methods, memories, curvatures or benchmarks of one's own.

``--plugin MODULE`` on the command line, or ``OCAR_PLUGINS`` in the environment, imports a module
before any name is looked up. The configuration of a run names its plugins, so that workers and
resumed runs import them too. Installed plugins, see :mod:`ocar.registry`, are imported as well.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from ocar import registry
from ocar.errors import ConfigError

VARIABLE = "OCAR_PLUGINS"
"""Environment variable with the names of plugins, separated by commas."""

_named: tuple[str, ...] = ()


def load_plugins(names: Iterable[str]) -> None:
    """Import plugins: all that are installed, then those that are named.

    Raises:
        ConfigError: A module is neither on Python's path nor in the working directory, or raises.
    """
    registry.load_plugins()
    for name in names:
        _import(name, f"Invalid plugin {name!r}")


def _import(module: str, invalid: str) -> ModuleType:
    """A module on Python's path or in the working directory; ``invalid`` begins its error."""
    if os.sep in module or module.endswith(".py"):
        raise ConfigError(f"{invalid}. Must be a module, as in import {Path(module).stem}.")
    here = str(Path.cwd())
    if here not in sys.path:  # as in a console script
        sys.path.append(here)
    try:
        return importlib.import_module(module)
    except Exception as error:
        said = f"{invalid}: {type(error).__name__}: {str(error).rstrip('.')}."
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module}.".startswith(f"{missing}."):
            hint = "Must be a module on PYTHONPATH or in the working directory."
        else:
            hint = "The module raises this when it is imported; --debug shows where."
        raise ConfigError(f"{said} {hint}") from error


def find_function(name: str, *, flag: str) -> Callable[..., Any]:
    """The function that ``module:function`` names.

    Args:
        name: The name; the module is on Python's path or in the working directory.
        flag: Who asks, for the errors.

    Raises:
        ConfigError: There is no such function.
    """
    module, colon, function = name.partition(":")
    if not (colon and module and function) or os.sep in name:
        raise ConfigError(f"Invalid {flag} {name!r}. Must be MODULE:FUNCTION, as in import MODULE.")
    found = getattr(_import(module, f"Invalid {flag} {name}"), function, None)
    if found is None:
        raise ConfigError(f"Invalid {flag} {name}: {module} has no function {function!r}.")
    if not callable(found):
        raise ConfigError(f"Invalid {flag} {name}: a {type(found).__name__}, not a function.")
    return cast("Callable[..., Any]", found)


def take_plugins(arguments: Sequence[str]) -> list[str]:
    """Import the plugins that ``OCAR_PLUGINS`` and the words of a command line name.

    Returns:
        The words without ``--plugin MODULE``.

    Raises:
        ConfigError: A module cannot be imported, or ``--plugin`` is the last word.
    """
    global _named
    names = [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag != "--plugin":
            rest.append(word)
            continue
        name = value if equals else next(words, "")
        if not name:
            raise ConfigError("Invalid --plugin without a value. Must name a module.")
        names.append(name)
    load_plugins(names)
    _named = tuple(dict.fromkeys(names))
    return rest


def named_plugins() -> tuple[str, ...]:
    """The plugins that the command line and the environment named."""
    return _named


def plugin_words() -> list[str]:
    """The flags that name the same plugins again."""
    return [word for name in _named for word in ("--plugin", name)]

"""The ``ocar run`` line for the configuration of stored runs.

It is made from ``config.json``, because a run need not come from the command line, and because
several commands may have made the seeds of one configuration.
"""

from __future__ import annotations

import itertools
import shlex
import typing
from collections.abc import Collection, Mapping, Sequence
from typing import Any

PROTOCOL: dict[str, Any] = {
    "iid": False,
    "blurry": 0.0,
    "every": 1,
    "online": False,
    "probe": True,
    "max_tasks": None,
    "max_batches": None,
}
"""Options that are part of a run's identity, with their defaults."""


def run_command(
    config: Mapping[str, Any],
    given: Mapping[str, Any],
    *,
    seeds: Sequence[int],
    threads: int | None = None,
) -> str | None:
    """The line for a shell that makes runs of a configuration, at the same revision of the source.

    Args:
        config: The identity of the runs.
        given: What the configuration was made from: ``method``, ``transform``, ``settings``.
        seeds: Seeds of the runs.
        threads: Threads on the CPU, if to be named.

    Returns:
        None if a setting cannot be written as a flag.
    """
    settings: Mapping[str, Any] = given["settings"]
    if any(isinstance(value, Mapping) for value in settings.values()):
        return None
    if any(value is None and _is_switch(given["method"], name) for name, value in settings.items()):
        return None
    words = ["ocar", "run", config["benchmark"], given["method"], *flag_words("seeds", seeds)]
    if given["transform"] is not None:
        words += flag_words("transform", given["transform"])
    if given.get("defaults"):
        words += flag_words("defaults", True)
    every = config["every"]  # the command need not say it
    if given.get("every", "") is not None:
        from ocar.methods.registry import usual_interval  # imports PyTorch, which takes seconds

        every = usual_interval(given["method"])
    if given.get("splits") is not None:
        words += flag_words("splits", given["splits"])
    for name, default in (PROTOCOL | {"every": every}).items():
        if config[name] != default:
            words += flag_words(name, config[name])
    for name, value in settings.items():
        words += flag_words(name, value)
    words += flag_words("device", config["device"])
    for plugin in given.get("plugins", ()):
        words += flag_words("plugin", plugin)
    if threads is not None and config["device"] == "cpu":
        words += flag_words("threads", threads)
    return shlex.join(words)


def _is_switch(method: str, name: str) -> bool:
    """Whether a setting is a pair of flags, --name and --no-name: None is then neither of them."""
    from ocar.methods.registry import METHODS  # imports PyTorch, which takes seconds

    return bool(typing.get_type_hints(METHODS.find(method).settings).get(name) == (bool | None))


def shell_line(words: Sequence[str]) -> str:
    """The words of a process as one line; ``python -m ocar_lab`` is ``ocar``."""
    program, *rest = map(str, words)
    return shlex.join(["ocar" if program == "__main__.py" else program, *rest])


def without_options(words: Sequence[str], options: Collection[str]) -> list[str]:
    """A command line without some options and their values; ``--name=value`` becomes two words."""
    parts = (word.split("=", 1) if word.startswith("--") else [word] for word in words)
    rest = itertools.chain.from_iterable(parts)
    kept: list[str] = []
    for word in rest:
        if word in options:
            next(rest, None)
        else:
            kept.append(word)
    return kept


def flag_words(name: str, value: Any) -> list[str]:
    """An option of ``ocar run`` as words: its name in Python, and one or several values."""
    name = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return [f"--{name}", *map(str, values)]

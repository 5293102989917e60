"""``COMMAND BENCHMARK METHOD... [FLAGS]``: the flags of ``ocar run`` and ``ocar tune``.

The flags are the fields of three kinds of dataclasses: the options of the command, the
configuration of a run or study, and the settings of the named methods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from ocar.errors import ConfigError
from ocar.methods.registry import METHODS, TRANSFORMS
from ocar.streams.benchmarks import BENCHMARKS
from ocar_lab.cli.arguments import Flags, Given, flags, option_group, parse_groups, shared_group
from ocar_lab.experiment.config import base_settings

T = TypeVar("T")

DEFAULTS = "Settings of the method; the defaults are those selected for this benchmark."


@dataclass(frozen=True, kw_only=True)
class Call(Generic[T]):
    """A command line, parsed: ``config`` and ``settings`` hold only what was given."""

    options: T
    benchmark: str
    methods: list[str]
    config: Given
    settings: dict[str, Given]  # by method


def parse_call(
    kind: type[T],
    config: Any,
    arguments: Sequence[str],
    *,
    command: str,
    usage: str,
    one_method: bool = False,
    without: Sequence[str] = (),
    about: Callable[[str, str, str | None], str] = lambda *_: DEFAULTS,
) -> Call[T]:
    """Parse a command line that begins with a benchmark and methods.

    Args:
        kind: Dataclass of the command's options.
        config: Dataclass of the configuration.
        arguments: The arguments after the command.
        command: The command.
        usage: How to call it, for errors.
        one_method: Whether only one method may be named.
        without: Fields of the configuration that are no flags.
        about: A line above the settings, from benchmark, first method and transform.
    """
    count = next((i for i, a in enumerate(arguments) if a.startswith("-")), len(arguments))
    names, rest = list(arguments[:count]), list(arguments[count:])
    known = flags(config, without=("benchmark", "method", *without))
    groups = {"run": option_group(known, about="What to run, and how.")}
    if len(names) < 2 or (one_method and len(names) > 2):
        parse_groups(kind, rest, command=usage, groups=groups)  # the help, or another mistake
        needed = "one method" if one_method else "a method"
        raise ConfigError(f"A benchmark and {needed} are needed: {usage}")
    benchmark, *methods = names
    check_names(benchmark, methods)
    transform = _find_transform(rest)
    own = {method: method_settings(method, transform, benchmark) for method in methods}
    groups["settings"] = shared_group(own, about=about(benchmark, methods[0], transform))
    called = " ".join([command, *names])
    try:
        options, given = parse_groups(kind, rest, command=called, groups=groups)
    except ConfigError as error:
        raise ConfigError(f"{_owners(rest, own)}{error}") from None
    settings = {
        method: {name: value for name, value in given["settings"].items() if name in has}
        for method, has in own.items()
    }
    return Call(
        options=options,
        benchmark=benchmark,
        methods=methods,
        config=given["run"],
        settings=settings,
    )


def method_settings(
    method: str, transform: str | None = None, benchmark: str | None = None
) -> Flags:
    """The settings of a method and its transform as flags, with the defaults of a benchmark."""
    chosen = METHODS[method]
    rewriting = chosen.transform if transform is None else TRANSFORMS[transform]
    kinds = [chosen.settings, *([] if rewriting is None else [rewriting])]
    found = {n: f for kind in kinds for n, f in flags(kind, without=("seed",)).items()}
    preset = {} if benchmark is None else base_settings(benchmark, method, transform)
    return {n: replace(f, default=preset.get(n, f.default)) for n, f in found.items()}


def check_names(benchmark: str, methods: Sequence[str]) -> None:
    """Raise if a name is unknown, or a method is named twice."""
    if benchmark not in BENCHMARKS:
        raise ConfigError(f"Unknown benchmark {benchmark!r}. There are {', '.join(BENCHMARKS)}.")
    for method in methods:
        if method not in METHODS:
            raise ConfigError(f"Unknown method {method!r}. There are {', '.join(METHODS)}.")
    if len(set(methods)) < len(methods):
        raise ConfigError(f"Invalid methods {' '.join(methods)}. Each can be named once.")


def _find_transform(arguments: Sequence[str]) -> str | None:
    """The transform that the arguments name, which decides what flags there are."""
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == "--transform":
            transform = value if equals else "".join(arguments[index + 1 : index + 2])
            if transform not in TRANSFORMS:
                known = ", ".join(TRANSFORMS)
                raise ConfigError(f"Unknown transform {transform!r}. There are {known}.")
            return transform
    return None


def _owners(arguments: Sequence[str], known: dict[str, Flags]) -> str:
    """A sentence on a flag that belongs to methods that were not named, if there is one."""
    for argument in arguments:
        name = argument.partition("=")[0].removeprefix("--").replace("-", "_")
        owners = [method for method in METHODS if name in method_settings(method)]
        if argument.startswith("--") and owners and not any(name in own for own in known.values()):
            return f"--{name.replace('_', '-')} is a setting of {', '.join(owners)}. "
    return ""

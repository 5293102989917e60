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
from ocar.registry import unknown
from ocar.streams.benchmarks import BENCHMARKS, get_benchmark
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
        raise ConfigError(
            f"A benchmark and {needed} are needed: {usage}. Lists: ocar benchmarks, ocar methods."
        )
    benchmark, *methods = names
    check_names(benchmark, methods)
    transform = _find_transform(rest)
    own = {method: method_settings(method, transform, benchmark) for method in methods}
    groups["settings"] = shared_group(own, about=about(benchmark, methods[0], transform))
    called = " ".join([command, *names])
    options, given = parse_groups(
        kind,
        rest,
        command=called,
        groups=groups,
        about_unknown=lambda name: setting_owners(name, methods),
    )
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
    """Raise if a name is unknown, out of order, or a method is named twice."""
    swapped = [name for name in methods if name in BENCHMARKS]
    if benchmark in METHODS and swapped:
        others = [benchmark, *(name for name in methods if name in METHODS)]
        raise ConfigError(
            f"{benchmark!r} is a method, {swapped[0]!r} a benchmark. The benchmark comes first: "
            f"{' '.join([swapped[0], *others])}"
        )
    if swapped:
        raise ConfigError(f"{swapped[0]!r} is a benchmark, not a method. Run one at a time.")
    get_benchmark(benchmark)
    for method in methods:
        if "," in method:
            parts = " ".join(filter(None, method.split(",")))
            raise ConfigError(f"Invalid method {method!r}. Separate methods by spaces: {parts}")
        if method not in METHODS:
            raise unknown("method", method, METHODS)
    if len(set(methods)) < len(methods):
        raise ConfigError(f"Invalid methods {' '.join(methods)}. Each can be named once.")


def _find_transform(arguments: Sequence[str]) -> str | None:
    """The transform that the arguments name, which decides what flags there are."""
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == "--transform":
            transform = value if equals else "".join(arguments[index + 1 : index + 2])
            if transform not in TRANSFORMS:
                raise unknown("transform", transform, TRANSFORMS)
            return transform
    return None


def setting_owners(name: str, methods: Sequence[str]) -> str:
    """A sentence on a setting of methods that were not named; empty if no method has it."""
    owners = [method for method in METHODS if name in method_settings(method)]
    if not owners:
        return ""
    verb = "do not" if len(methods) > 1 else "does not"
    return f"It is a setting of {', '.join(owners)}; {', '.join(methods)} {verb} have it."

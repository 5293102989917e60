"""Every setting of a method as a flag.

The settings are dataclasses with a docstring under each field. From one or more of them comes one
``TypedDict`` whose keys may be left out: a key is there only if its flag was given, so that what is
left out falls back to the preset of each method.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict

from ocar.errors import ConfigError
from ocar.methods.registry import METHODS, TRANSFORMS
from ocar_lab.cli.docs import field_docs
from ocar_lab.experiment.config import base_settings

NOT_FLAGS = {"seed"}
"""Settings that another option decides."""

DEFAULTS = "Settings of the method; the defaults are those selected for this benchmark."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting of a method."""

    name: str
    """Its name in the dataclass."""

    kind: Any
    """Its type."""

    about: str
    """The docstring under the field."""

    default: Any
    """Its value if it is not given; ``dataclasses.MISSING`` if it has to be."""


def method_settings(method: str, *, transform: str | None = None) -> dict[str, Setting]:
    """The settings of a method and its transform that can be given on the command line.

    Args:
        method: Name of the method.
        transform: Name of a transform to use instead of the method's own.
    """
    chosen = METHODS[method]
    rewriting = chosen.transform if transform is None else TRANSFORMS[transform]
    kinds: list[Any] = [chosen.settings, *([] if rewriting is None else [rewriting])]
    settings: dict[str, Setting] = {}
    for kind in kinds:
        hints = typing.get_type_hints(kind)
        about = field_docs(kind)
        for field in dataclasses.fields(kind):
            if field.name not in NOT_FLAGS and _can_be_flag(hints[field.name]):
                settings[field.name] = Setting(
                    name=field.name,
                    kind=hints[field.name],
                    about=about.get(field.name, ""),
                    default=field.default,
                )
    return settings


def defaults(
    benchmark: str, method: str, transform: str | None, settings: Mapping[str, Setting]
) -> dict[str, Any]:
    """The value of each setting if its flag is not given, ``MISSING`` where it has to be.

    Args:
        benchmark: Name of the benchmark.
        method: Name of the method.
        transform: Name of a transform to use instead of the method's own.
        settings: Their settings.
    """
    preset = base_settings(benchmark, method, transform)
    return {key: preset.get(key, setting.default) for key, setting in settings.items()}


def flags_type(settings: Mapping[str, Mapping[str, Setting]], values: Mapping[str, Any]) -> Any:
    """A ``TypedDict`` of flags for several methods together.

    Args:
        settings: The settings of each method.
        values: The defaults of each method.

    Raises:
        ConfigError: Two methods mean different things by one name.
    """
    from tyro.conf import arg

    hints: dict[str, Any] = {}
    for name in dict.fromkeys(name for own in settings.values() for name in own):
        having = [method for method in settings if name in settings[method]]
        kinds = {settings[method][name].kind for method in having}
        if len(kinds) > 1:
            raise ConfigError(
                f"{name} is not the same in {', '.join(having)}. Run the methods one by one."
            )
        first = settings[having[0]][name]
        described = arg(
            help=first.about, help_behavior_hint=_hint({m: values[m][name] for m in having})
        )
        hints[name] = Annotated[first.kind, described]
    return TypedDict("Settings", hints, total=False)  # type: ignore[operator]


def _hint(by_method: Mapping[str, Any]) -> str:
    """What a flag is if it is not given, as it would be written."""
    texts = {
        method: "required" if value is dataclasses.MISSING else _written(value)
        for method, value in by_method.items()
    }
    if len(set(texts.values())) == 1:
        only = next(iter(texts.values()))
        return "(required)" if only == "required" else f"(default: {only})"
    return f"({', '.join(f'{method}: {text}' for method, text in texts.items())})"


def _written(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return " ".join(map(str, value)) or "none"
    return str(value)


def _can_be_flag(kind: Any) -> bool:
    """Whether a value of this type can be written on a command line."""
    if kind in (int, float, str, bool, type(None), Ellipsis):
        return True
    origin = typing.get_origin(kind)
    if origin is Literal:
        return True
    parts: Iterable[Any] = typing.get_args(kind)
    return origin in (tuple, types.UnionType, typing.Union) and all(map(_can_be_flag, parts))


def find_transform(arguments: Sequence[str]) -> str | None:
    """The transform that the arguments name, which decides what flags there are.

    Args:
        arguments: What comes after the names.

    Raises:
        ConfigError: There is no such transform.
    """
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == "--transform":
            following = arguments[index + 1 : index + 2]
            transform = value if equals else (following[0] if following else "")
            if transform not in TRANSFORMS:
                raise ConfigError(
                    f"Unknown transform {transform!r}. There are {', '.join(TRANSFORMS)}."
                )
            return transform
    return None


def with_flags(options: Any, flags: Any, *, about: str = DEFAULTS) -> Any:
    """The options of a command with the settings of methods beside them.

    Args:
        options: A dataclass.
        flags: What :func:`flags_type` made.
        about: A line about the settings.
    """
    from tyro.conf import OmitArgPrefixes, arg

    field = ("settings", Annotated[flags, OmitArgPrefixes, arg(help=about)])
    kind = dataclasses.make_dataclass(
        "Options", [field], bases=(options,), frozen=True, kw_only=True
    )
    kind.__doc__ = options.__doc__
    return kind

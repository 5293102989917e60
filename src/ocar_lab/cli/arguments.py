"""Arguments of a command into a dataclass, by tyro: the fields are the flags.

Only flags that were given reach the dataclass, so that its own defaults hold for the others.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import io
import itertools
import re
import shlex
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Required, TypedDict, TypeVar

from ocar.errors import ConfigError
from ocar.registry import closest
from ocar_lab.plugins import plugin_words

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Flag:
    """A field of a dataclass as a flag."""

    name: str
    kind: Any
    about: str  # the docstring under the field
    default: Any  # MISSING if the flag is required


Flags = dict[str, Flag]
Given = dict[str, Any]


def flags(kind: Any, *, without: Collection[str] = ()) -> Flags:
    """The fields of a dataclass whose values can be written on a command line."""
    about = field_docs(kind)
    written = {name: _written_type(hint) for name, hint in typing.get_type_hints(kind).items()}
    return {
        f.name: Flag(
            name=f.name, kind=written[f.name], about=about.get(f.name, ""), default=f.default
        )
        for f in dataclasses.fields(kind)
        if f.name not in without and written[f.name] is not None
    }


def field_docs(kind: type) -> dict[str, str]:
    """The docstring under each field of a dataclass and of its bases."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        try:
            source = inspect.getsource(base)
        except OSError:  # made at run time
            continue
        tree = ast.parse(textwrap.dedent(source)).body[0]
        assert isinstance(tree, ast.ClassDef)
        for field, text in zip(tree.body, tree.body[1:], strict=False):
            match field, text:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(docstring))),
                ):
                    docs[name] = plain_text(docstring)
    return docs


def plain_text(docstring: str) -> str:
    """A docstring on one line, without its markup."""
    text = re.sub(r":\w+:`~?([^`]*)`", r"\1", docstring)
    return " ".join(text.replace("``", "").split())


def shared_group(owners: Mapping[str, Flags], *, about: str) -> Any:
    """Flags of several owners as one group; the help shows the default of each owner.

    Raises:
        ConfigError: Two owners have a flag of one name with different types.
    """
    from tyro.conf import arg

    hints = {}
    for name in dict.fromkeys(name for own in owners.values() for name in own):
        having = {owner: own[name] for owner, own in owners.items() if name in own}
        first = next(iter(having.values()))
        if any(flag.kind != first.kind for flag in having.values()):
            raise ConfigError(
                f"{name} is not the same in {', '.join(having)}. Run the methods one by one."
            )
        hint = _hint({owner: flag.default for owner, flag in having.items()})
        hints[name] = Annotated[first.kind, arg(help=first.about, help_behavior_hint=hint)]
    return _group(hints, about)


def option_group(own: Flags, *, about: str) -> Any:
    """Flags as a group of their own."""
    return _group({name: _option(flag) for name, flag in own.items()}, about)


def _group(hints: Mapping[str, Any], about: str) -> Any:
    from tyro.conf import OmitArgPrefixes, arg

    return Annotated[_typed_dict("Group", hints), OmitArgPrefixes, arg(help=about)]


def _typed_dict(name: str, hints: Mapping[str, Any]) -> Any:
    """A type for tyro that makes a dictionary of the flags that were given."""
    return TypedDict(name, dict(hints), total=False)  # type: ignore[operator]


def parse(kind: type[T], arguments: Sequence[str], *, command: str) -> T:
    """The dataclass for some arguments; ``--help`` prints the help and exits.

    Args:
        kind: A dataclass; its fields are the flags, those without a default are positional.
        arguments: The arguments after the command.
        command: The command, for the usage line.

    Raises:
        ConfigError: The arguments are wrong.
    """
    return parse_groups(kind, arguments, command=command, groups={})[0]


def parse_groups(
    kind: type[T],
    arguments: Sequence[str],
    *,
    command: str,
    groups: Mapping[str, Any],
    about_unknown: Callable[[str], str] = lambda _: "",
) -> tuple[T, dict[str, Given]]:
    """The dataclass as in :func:`parse`, and the flags of further groups that were given.

    ``about_unknown`` returns a sentence on a flag that is none of them; empty for no comment.
    """
    hints = {name: _option(flag) for name, flag in flags(kind).items()}
    import tyro

    assert len(hints) == len(dataclasses.fields(kind))  # type: ignore[arg-type]
    made = _typed_dict(kind.__name__, {**hints, **groups})
    made.__doc__ = kind.__doc__
    markers = (tyro.conf.PositionalRequiredArgs, tyro.conf.PositionalMetavarFromFieldName)
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            given: Given = tyro.cli(made, args=list(arguments), prog=command, config=markers)
    except SystemExit as ending:
        if ending.code in (0, None):
            raise
        known = dict(hints)
        for group in groups.values():
            known |= typing.get_args(group)[0].__annotations__
        text = unbox(errors.getvalue())
        said = (
            _unknown_flag(arguments, known, about_unknown)
            or _invalid_value(arguments, known, errors.getvalue())
            or _missing(kind, text)
            or text.replace("Unrecognized options:", "Unexpected argument")
        )
        help_line = " ".join([command, "--help", *plugin_words()])
        raise ConfigError(f"{said} See: {help_line}") from None
    found = {name: given.pop(name, {}) for name in groups}
    return kind(**given), found


def _unknown_flag(
    arguments: Sequence[str], known: Collection[str], about: Callable[[str], str]
) -> str:
    """A line on the first flag that is not known, with the flag that was meant; empty if none."""
    for argument in arguments:
        if not re.match(r"--?[A-Za-z]", argument) or argument in ("-h", "--help"):
            continue
        name = argument.partition("=")[0].lstrip("-").replace("-", "_")
        if name in known or name.removeprefix("no_") in known:
            continue
        close = closest(name, known)
        meant = "" if close is None else f"Did you mean --{close.replace('_', '-')}?"
        said = about(name) or meant
        return f"Unknown flag {argument.partition('=')[0]}.{' ' * bool(said)}{said}"
    return ""


def _invalid_value(arguments: Sequence[str], hints: Mapping[str, Any], error: str) -> str:
    """A line on the flag whose value tyro refused or missed; empty for another error."""
    found = re.search(r"(?:Error parsing|argument) '?--([a-z-]+)", " ".join(error.split("\n│")))
    if found is None:
        return ""
    name, kind = found[1], _plain_type(hints.get(found[1].replace("-", "_")))
    is_choice = typing.get_origin(kind) is Literal
    must = f"one of {', '.join(typing.get_args(kind))}" if is_choice else WORDS.get(kind, "")
    words = [word for argument in arguments for word in argument.split("=", 1)]
    rest = words[words.index(f"--{name}") + 1 :] if f"--{name}" in words else []
    given = " ".join(itertools.takewhile(lambda word: not word.startswith("--"), rest))
    if not given:
        return f"--{name} needs a value{': ' * bool(must)}{must}."
    return f"Invalid --{name} {given}. Must be {must}." if must else ""


def _missing(kind: Any, error: str) -> str:
    """A line on positional arguments that are missing; empty for another error."""
    missing = [
        f"{flag.name.upper()} is missing: {flag.about[:1].lower()}{flag.about[1:]}"
        for flag in flags(kind).values()
        if error.startswith("Missing from") and f" {flag.name.upper()} " in error
    ]
    return " ".join(missing)


def require_folder(flag: str, path: Path) -> None:
    """Raise unless a path is a folder, or can become one."""
    there = next((part for part in (path, *path.parents) if part.exists()), path)
    if there.exists() and not there.is_dir():
        raise ConfigError(
            f"Invalid {flag} {path}: {there} is a file. Must be a folder, which may be new."
        )


WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    tuple[int, ...]: "whole numbers, separated by spaces",
    int | Literal["task"]: "a whole number, or task",
}
"""Types of flags in words."""


def _plain_type(hint: Any) -> Any:
    """The type of a flag, without None and without annotations for tyro."""
    while typing.get_origin(hint) in (Annotated, Required):
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return hint
    parts = tuple(part for part in typing.get_args(hint) if part is not type(None))
    return typing.Union[parts]  # noqa: UP007


def _option(flag: Flag) -> Any:
    """A flag for tyro. Where the default is None the help does not offer None as a value."""
    from tyro.conf import DisallowNone, arg

    if flag.default is MISSING:
        several = typing.get_origin(flag.kind) is tuple
        hint = "" if several else "(required)"
        return Required[Annotated[flag.kind, arg(help=flag.about, help_behavior_hint=hint)]]
    if flag.default is None:
        return Annotated[flag.kind, DisallowNone, arg(help=flag.about, help_behavior_hint="")]
    hint = _hint({"": flag.default})
    return Annotated[flag.kind, arg(help=flag.about, help_behavior_hint=hint)]


def _hint(by_owner: Mapping[str, Any]) -> str:
    """The default of a flag, as it would be written on the command line."""
    texts = {owner: _written(value) for owner, value in by_owner.items()}
    if len(set(texts.values())) == 1:
        only = next(iter(texts.values()))
        return "(required)" if only == "required" else f"(default: {only})" if only else ""
    return f"({', '.join(f'{owner}: {text}' for owner, text in texts.items())})"


def _written(value: Any) -> str:
    if value is MISSING:
        return "required"
    if isinstance(value, (tuple, list)):
        return " ".join(map(str, value)) or "none"
    return str(value)


def _written_type(kind: Any) -> Any:
    """The part of a type whose values can be written on a command line; None if there is none."""
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        parts = [part for part in typing.get_args(kind) if _can_be_flag(part)]
        if set(parts) == {bool, type(None)}:
            return bool  # --name and --no-name; None is the flag that is not given
        return typing.Union[tuple(parts)] if set(parts) - {type(None)} else None  # noqa: UP007
    return kind if _can_be_flag(kind) else None


def _can_be_flag(kind: Any) -> bool:
    if kind in (int, float, str, bool, Path, type(None), Ellipsis):
        return True
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    return origin is Literal or (
        origin in (tuple, types.UnionType, typing.Union) and all(map(_can_be_flag, parts))
    )


def command_line(command: str, arguments: Sequence[str]) -> str:
    """The command line that was given, with its plugins, as a shell reads it."""
    return shlex.join(["ocar", command, *arguments, *plugin_words()])


def unbox(text: str) -> str:
    """The first paragraph of an error that tyro prints in a frame, as a sentence.

    The text is a title, then paragraphs with rules between them. The title is part of the frame
    where frames can be drawn; elsewhere it is a paragraph.
    """
    framed = text.startswith("╭")
    lines = [line.strip("│ ") for line in text.splitlines() if not line.startswith(("╭", "╰"))]
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if line and not line.strip("─-"):
            paragraphs.append([])
        else:
            paragraphs[-1].append(line)
    body = paragraphs[0 if framed or len(paragraphs) == 1 else 1]
    return " ".join(body).strip().rstrip(".") + "."

"""Arguments into dataclasses, by tyro; mistakes in a line or two."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import typing
from collections.abc import Sequence
from typing import Annotated, TypeVar

from ocar.errors import ConfigError, MissingPackageError
from ocar_lab.cli.docs import field_docs

T = TypeVar("T")


def parse(kind: type[T], arguments: Sequence[str], *, command: str) -> T:
    """The dataclass that arguments stand for; ``--help`` prints and ends.

    Args:
        kind: A dataclass; its fields are the options.
        arguments: What comes after the command.
        command: The command, for the usage line.

    Raises:
        ConfigError: The arguments are wrong.
        MissingPackageError: tyro is not installed.
    """
    try:
        import tyro
    except ImportError as error:
        raise MissingPackageError(
            'The command line needs tyro and rich: pip install "ocar[cli]"'
        ) from error
    markers = (tyro.conf.PositionalRequiredArgs, tyro.conf.PositionalMetavarFromFieldName)
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(quiet_none(kind), args=list(arguments), prog=command, config=markers)
    except SystemExit as ending:
        if ending.code in (0, None):
            raise
        message = unbox(errors.getvalue())
        raise ConfigError(f"{message}\n      See: {command} --help") from None


def quiet_none(kind: type[T]) -> type[T]:
    """The same dataclass, with help that does not offer None where leaving out the flag means it.

    Args:
        kind: A dataclass with a docstring under each field.
    """
    from tyro.conf import DisallowNone, arg

    hints, about = typing.get_type_hints(kind, include_extras=True), field_docs(kind)
    quiet = [
        (field.name, Annotated[hints[field.name], DisallowNone, described], None)
        for field in dataclasses.fields(kind)  # type: ignore[arg-type]
        if field.default is None
        and (described := arg(help=about.get(field.name), help_behavior_hint=""))
    ]
    made = dataclasses.make_dataclass(
        kind.__name__, quiet, bases=(kind,), frozen=True, kw_only=True
    )
    made.__doc__ = kind.__doc__
    return made


def unbox(text: str) -> str:
    """The point of an error that tyro frames: its first paragraph, and what it suggests.

    Args:
        text: What tyro printed: a title, then paragraphs with rules between them. The title is
            in the frame where frames can be drawn, else it is a paragraph of its own.
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
    message = " ".join(body).strip()
    if "Perhaps you meant:" in lines:
        suggested = lines[lines.index("Perhaps you meant:") + 1].split(",")[0].split()[0]
        message = f"{message}. Perhaps you meant {suggested}?"
    return message

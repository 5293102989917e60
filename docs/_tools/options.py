"""The options of every command, from the docstrings that its ``--help`` shows."""

from __future__ import annotations

import dataclasses
import importlib
import re
import types
import typing
from pathlib import Path
from typing import Any, Literal

from ocar_lab.cli import COMMANDS
from ocar_lab.cli.docs import field_docs, plain_text


def command_line() -> str:
    """One section a command: what it does, and its options."""
    parts = []
    for name, (module, about) in COMMANDS.items():
        home = importlib.import_module(f"ocar_lab.cli.{module}")
        parts.append(f"## ocar {name}\n\n{about[0].upper()}{about[1:]}.\n")
        kind = getattr(home, "Options", None)
        if kind is not None:
            parts.append(_options(kind))
    return "\n".join(parts)


def _options(kind: Any) -> str:
    """The rest of what the command says of itself, and a table."""
    _, _, rest = (kind.__doc__ or "").partition("\n\n")
    hints, about = typing.get_type_hints(kind), field_docs(kind)
    lines = ["| option | default | what it is |", "|---|---|---|"]
    for field in dataclasses.fields(kind):
        needed = (
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        flag = field.name.upper() if needed else _flag(field.name, hints[field.name], field.default)
        default = "needed" if needed else _default(field.default)
        text = _code_flags(about.get(field.name, "").replace("|", "\\|"))
        lines.append(f"| `{flag}` | {default} | {text} |")
    said = f"{_code_flags(plain_text(rest))}\n\n" if rest.strip() else ""
    return said + "\n".join(lines) + "\n"


def _code_flags(text: str) -> str:
    """Flags as code, so that their two dashes stay two."""
    return re.sub(r"(?<!\S)--[a-z-]+", r"`\g<0>`", text)


def _flag(name: str, hint: Any, default: object) -> str:
    dashed = name.replace("_", "-")
    if hint is bool:
        return f"--{dashed}, --no-{dashed}" if default else f"--{dashed}"
    return f"--{dashed} {_kind(hint)}"


def _kind(hint: Any) -> str:
    """What follows a flag."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "\\|".join(map(str, arguments))
    if origin is tuple:
        return f"{_kind(arguments[0])} …"
    if origin in (types.UnionType, typing.Union):
        return "\\|".join(_kind(part) for part in arguments if part is not type(None))
    return {int: "N", float: "X", Path: "PATH", str: "NAME"}.get(hint, "VALUE")


def _default(given: object) -> str:
    if given is True:
        return "yes"
    if given is False or given is None or given == ():
        return ""
    if isinstance(given, tuple):
        return " ".join(map(str, given))
    return str(given)

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
from ocar_lab.cli.arguments import Flags, flags, plain_text


def command_line() -> str:
    """One section a command: what it does, and its options."""
    parts = []
    for name, (module, about) in COMMANDS.items():
        home = importlib.import_module(f"ocar_lab.cli.{module}")
        parts.append(f"## ocar {name}\n\n{about[0].upper()}{about[1:]}.\n")
        kind = getattr(home, "Options", None)
        if kind is not None:
            own = flags(kind)
            if hasattr(home, "CONFIGURATION"):
                own = flags(home.CONFIGURATION, without=home.NO_FLAGS) | own
            parts.append(_options(kind.__doc__ or "", own))
        for flag, variant in getattr(home, "VARIANTS", {}).items():
            about = plain_text((variant.__doc__ or "").partition("\n\n")[0])
            parts.append(f"## ocar {name} {flag}\n\n{about}\n")
            parts.append(_options(variant.__doc__ or "", flags(variant)))
    return "\n".join(parts)


def _options(doc: str, own: Flags) -> str:
    """The rest of the command's docstring, and a table of its options."""
    rest = doc.partition("\n\n")[2]
    lines = ["| option | default | what it is |", "|---|---|---|"]
    for flag in own.values():
        needed = flag.default is dataclasses.MISSING
        name = flag.name.upper() if needed else _flag(flag.name, flag.kind, flag.default)
        default = "needed" if needed else _default(flag.default)
        text = _code_flags(flag.about.replace("|", "\\|"))
        lines.append(f"| `{name}` | {default} | {text} |")
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

"""Docstrings as the site shows them: indented formulas are blocks of text."""

from __future__ import annotations

import re
from typing import Any

ATTRIBUTES = ("attribute", "data", "property")

_kept: dict[str, list[str]] = {}


def keep_attribute(
    app: Any, what: str, name: str, obj: object, options: Any, lines: list[str]
) -> None:
    """Remember an attribute's docstring as it is; to be called before napoleon.

    What stands before a colon in it napoleon takes for a type.

    Args:
        app: Sphinx.
        what: Kind of the object.
        name: Its name.
        obj: The object.
        options: Those of the directive.
        lines: The docstring.
    """
    if what in ATTRIBUTES:
        _kept[name] = list(lines)


def literal_formulas(
    app: Any, what: str, name: str, obj: object, options: Any, lines: list[str]
) -> None:
    """Make a literal block of every indented paragraph of a module's docstring, in place.

    It is reStructuredText's quotation, in which the signs of a formula would be taken for markup.
    Bars in a text are no markup either.

    Args:
        app: Sphinx.
        what: Kind of the object; only modules have formulas.
        name: Its name.
        obj: The object.
        options: Those of the directive.
        lines: The docstring, changed in place.
    """
    if what in ATTRIBUTES:
        lines[:] = _kept.pop(name)
    if what == "module":
        lines[:] = with_literal_blocks(lines)
    lines[:] = [line if line.startswith("    ") else _escape_bars(line) for line in lines]


def _escape_bars(line: str) -> str:
    """Bars that are not within backticks, so that they are shown as they are."""
    return re.sub(r"(`[^`]*`)|\|", lambda found: found[1] or r"\|", line)


def with_literal_blocks(lines: list[str]) -> list[str]:
    """The lines with ``::`` before every paragraph that is indented by four spaces.

    Args:
        lines: A docstring.
    """
    made: list[str] = []
    inside = False
    for line in lines:
        indented = line.startswith("    ")
        before = next((text for text in reversed(made) if text.strip()), "")
        blank = not made or not made[-1].strip()
        if indented and not inside and blank and not before.endswith("::"):
            made += ["::", ""]
        if line.strip():
            inside = indented
        made.append(line)
    return made


def blocks(docstring: str) -> list[tuple[str, str]]:
    """The paragraphs of a docstring: ``("text" | "formula", paragraph)``.

    Args:
        docstring: A module's docstring.
    """
    found: list[tuple[str, str]] = []
    for paragraph in re.split(r"\n\s*\n", docstring.strip("\n")):
        lines = paragraph.splitlines()
        if all(line.startswith("    ") for line in lines):
            found.append(("formula", "\n".join(line[4:] for line in lines)))
        else:
            found.append(("text", paragraph))
    return found


def to_markdown(docstring: str) -> str:
    """A module's docstring as Markdown.

    Args:
        docstring: The docstring, in the little reStructuredText that this package uses.
    """
    parts = []
    for kind, paragraph in blocks(docstring):
        if kind == "formula":
            parts.append(f"```text\n{paragraph}\n```")
        else:
            parts.append(_inline(paragraph))
    return "\n\n".join(parts) + "\n"


def _inline(text: str) -> str:
    """Roles and double backticks as Markdown's code; signs of formulas are not its markup."""
    pieces = re.split(r"(:\w+:`~?[^`]*`|``[^`]*``)", text)
    made = []
    for piece in pieces:
        role = re.fullmatch(r":\w+:`~?([^`]*)`|``([^`]*)``", piece)
        if role is not None:
            made.append(f"`{role[1] or role[2]}`")
        else:
            made.append(_escape(piece))
    return "".join(made)


def _escape(text: str) -> str:
    """Stars that begin no list, underscores, bars and angles, to be shown as they are."""
    text = re.sub(r"([_|<>\\])", r"\\\1", text)
    return re.sub(r"(?m)(?<!^)\*|^\*(?! )", r"\\*", text)

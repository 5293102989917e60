"""The docstrings under the fields of a dataclass, for ``--help``."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap


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
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
                and isinstance(text.value.value, str)
            ):
                docs[field.target.id] = plain_text(text.value.value)
    return docs


def plain_text(docstring: str) -> str:
    """A docstring on one line, without its markup."""
    text = re.sub(r":\w+:`~?([^`]*)`", r"\1", docstring)
    return " ".join(text.replace("``", "").split())

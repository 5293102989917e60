"""The pages of the documentation, their blocks of code and their links."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
TOOLS = DOCS / "_tools"
if str(TOOLS) not in sys.path:
    sys.path.append(str(TOOLS))

MADE = ("_generated", "methods")
"""Folders that a build makes; the tests make their own."""

BEFORE = "<!-- before the block, in the tests"
FENCE = re.compile(r"^(`{3,}|~{3,})(.*)$")


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    page: str
    line: int
    language: str
    words: tuple[str, ...]
    text: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def written_pages() -> list[Path]:
    """What is written by hand: the pages of docs/ and the README."""
    pages = [p for p in DOCS.rglob("*.md") if p.relative_to(DOCS).parts[0] not in MADE]
    return [ROOT / "README.md", *sorted(pages)]


def blocks(text: str, page: str) -> list[Block]:
    """Every fenced block of a page; what a comment before one says is put in front of it."""
    found: list[Block] = []
    lines = text.splitlines()
    before: list[str] = []
    at = 0
    while at < len(lines):
        if lines[at] == BEFORE:
            end = lines.index("-->", at)
            before = lines[at + 1 : end]
            at = end + 1
            continue
        fence = FENCE.match(lines[at])
        if fence is None:
            at += 1
            continue
        end = next(i for i in range(at + 1, len(lines)) if lines[i].strip() == fence[1])
        language, *words = fence[2].split() or [""]
        body = "\n".join([*before, *lines[at + 1 : end]])
        first = at + 2 - len(before)
        found.append(Block(page, first, language, tuple(words), body))
        before, at = [], end + 1
    return found


def chains(found: list[Block]) -> list[list[Block]]:
    """The Python blocks, those that say ``continues`` together with the one before."""
    together: list[list[Block]] = []
    for block in found:
        if block.language != "python":
            continue
        if "continues" in block.words:
            together[-1].append(block)
        else:
            together.append([block])
    return together


def without_blocks(text: str) -> str:
    """A page without its blocks, code and comments."""
    text = re.sub(r"(?ms)^(`{3,}|~{3,}).*?^\1\s*$", "", text)
    text = re.sub(r"(?s)<!--.*?-->", "", text)
    return re.sub(r"`[^`\n]*`", "", text)


def links(text: str) -> list[str]:
    """Where a page links to."""
    return re.findall(r"\]\(([^)\s]+)\)", without_blocks(text))


def anchors(text: str) -> set[str]:
    """What the headings of a page can be linked by."""
    titles = re.findall(r"(?m)^#+ (.+)$", re.sub(r"(?ms)^```.*?^```\s*$", "", text))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}

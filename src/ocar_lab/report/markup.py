"""Small pieces of HTML; every text that is given to them is escaped."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from typing import Any


def escape(value: object) -> str:
    """A text for the inside of an element, or of an attribute in quotes."""
    return html.escape(str(value))


def json_text(value: Any) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def paragraphs(texts: Iterable[str], *, kind: str = "note") -> str:
    """A paragraph for each text, of one class."""
    return "".join(f'<p class="{kind}">{escape(text)}</p>\n' for text in texts)


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    printed: Sequence[int] = (),
    caption: str = "",
    words: bool = False,
) -> str:
    """A table in a box of its own, which scrolls where the table is too wide."""
    titles = "".join(f'<th scope="col">{escape(title)}</th>' for title in header)
    lines = []
    for place, (first, *others) in enumerate(rows):
        paper = ' class="paper"' if place in printed else ""
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in others)
        lines.append(f'<tr{paper}><th scope="row">{escape(first)}</th>{cells}</tr>')
    about = f'<p class="quiet">{escape(caption)}</p>\n' if caption else ""
    label = escape(caption or "What was run")
    kind = ' class="words"' if words else ""
    return (
        f'{about}<div class="scroll" tabindex="0" role="region" aria-label="{label}">'
        f"<table{kind}><thead><tr>{titles}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def frame(
    name: str, marked: str, title: str, select: str, size: str, caption: str, described: str
) -> str:
    """A figure that the script fills, with its heading.

    Args:
        name: Its id.
        marked: Attributes that tell the script what it is.
        title: The heading.
        select: What to choose, as HTML.
        size: Another class of the drawing.
        caption: What is seen.
        described: The same for those who do not see it.
    """
    button = f'<button aria-label="Save picture: {escape(title)}">Save picture</button>'
    return f"""<h3>{escape(title)}</h3>
<figure id="{name}" {marked}>
<div class="bar">{select}{button}</div>
<div class="plot{size}" role="img" aria-label="{escape(described)}"></div>
<figcaption>{escape(caption)}</figcaption>
</figure>
"""


def select(label: str, options: Sequence[str]) -> str:
    """A list to choose one from by its place; nothing if there is no choice."""
    if len(options) < 2:
        return ""
    items = "".join(
        f'<option value="{n}">{escape(name)}</option>' for n, name in enumerate(options)
    )
    return f"<label>{escape(label)} <select>{items}</select></label>"


def code(title: str, text: str) -> str:
    """Lines for a shell, and what they are."""
    return f'<p>{escape(title)}</p>\n<pre class="wrap"><code>{escape(text)}</code></pre>\n'

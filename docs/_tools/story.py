"""The notebook of the examples as a page: run at a build, so that its outputs are what it gives."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "examples" / "story.ipynb"
SECONDS = 600
"""The longest that one cell may take."""


def write_story(docs: Path) -> None:
    """Run the notebook and write its page, unless neither it nor the package has changed.

    Args:
        docs: The folder of the documentation.
    """
    page = docs / "_generated" / "story.md"
    stamp = f"% {_stamp()}\n"
    if page.exists() and page.read_text(encoding="utf-8").startswith(stamp):
        return
    folder = page.parent / "story"
    folder.mkdir(parents=True, exist_ok=True)
    page.write_text(stamp + to_markdown(execute(NOTEBOOK), folder), encoding="utf-8")


def _stamp() -> str:
    """A sum that changes if the notebook or the package does."""
    files = [NOTEBOOK, *sorted((ROOT / "src" / "ocar").rglob("*.py"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def execute(path: Path) -> Any:
    """Run a notebook from its first cell to its last.

    Args:
        path: The notebook; the file stays as it is.

    Returns:
        It with its outputs.
    """
    import nbformat
    from nbclient import NotebookClient
    from traitlets.config import Config

    notebook = nbformat.read(path, as_version=4)
    local = Config({"KernelManager": {"transport": "ipc"}})  # no port, so nothing else can listen
    NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", config=local).execute()
    return notebook


def to_markdown(notebook: Any, folder: Path) -> str:
    """A notebook that was run, as Markdown; the first heading is left to the page.

    Args:
        notebook: The notebook.
        folder: Where its pictures go; the page is beside the folder.
    """
    parts = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            text = cell.source
            parts.append(text.partition("\n")[2].strip() if text.startswith("# ") else text)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        printed = "".join(o.text for o in cell.outputs if o.output_type == "stream")
        drawn = [o for o in cell.outputs if o.output_type != "stream"]
        for place, output in enumerate(drawn):
            parts.append(_picture(output, folder / f"{cell.id}-{place}.png"))
        if printed:
            parts.append(f"```text\n{printed.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def _picture(output: Any, path: Path) -> str:
    """What a cell drew."""
    if "image/png" not in output.get("data", {}):
        raise ValueError(f"A notebook's cell gave what is neither text nor a picture: {output}.")
    path.write_bytes(base64.b64decode(output.data["image/png"]))
    return f"![Drawn by the block above](_generated/{path.parent.name}/{path.name})"

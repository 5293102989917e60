"""The command that installs an extra of this package where the user is."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname


def install_line(extra: str) -> str:
    """As ``pip install -e ".[cli]"`` in a clone, ``pip install "ocar[cli]"`` elsewhere."""
    source, editable = find_source()
    package = "ocar" if source is None else _short(source)
    return f'{_pip()} install {"-e " if editable else ""}"{package}[{extra}]"'


def find_source() -> tuple[Path | None, bool]:
    """The folder that the package was installed from, and whether it is used in place."""
    clone = Path(__file__).resolve().parents[2]
    if (clone / "pyproject.toml").is_file():
        return clone, True
    try:
        text = importlib.metadata.distribution("ocar").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return None, False
    url = urlsplit(json.loads(text or "{}").get("url", ""))
    folder = Path(url2pathname(url.path))
    is_clone = url.scheme == "file" and (folder / "pyproject.toml").is_file()
    return (folder if is_clone else None), False


def _pip() -> str:
    """The pip of this interpreter: another one may be first on the path."""
    found = shutil.which("pip")
    if found is not None and Path(found).parent == Path(sys.executable).parent:
        return "pip"
    return f"{shlex.quote(_short(Path(sys.executable)))} -m pip"


def _short(path: Path) -> str:
    """A path relative to the working directory if it is below it."""
    here = Path.cwd()
    return os.fspath(path.relative_to(here) if path.is_relative_to(here) else path)

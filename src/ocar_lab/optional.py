"""Optional packages: a missing one becomes an error that says how to install it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

from ocar.errors import MissingPackageError
from ocar.install import install_line


@contextmanager
def needed(purpose: str, package: str, *, extra: str) -> Iterator[None]:
    """Import an optional package inside: if it is missing, the error names the extra of ``ocar``.

    Args:
        purpose: What needs the package, as the subject of the error.
        package: Name of the package.
        extra: The extra that installs it.
    """
    try:
        yield
    except ImportError as error:
        raise MissingPackageError(f"{purpose} needs {package}: {install_line(extra)}") from error


def require_packages(purpose: str, *modules: str, extra: str) -> None:
    """Raise, before work begins, if a module that it will need is not installed."""
    missing = [name for name in modules if not _is_installed(name)]
    if missing:
        raise MissingPackageError(f"{purpose} needs {', '.join(missing)}: {install_line(extra)}")


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False

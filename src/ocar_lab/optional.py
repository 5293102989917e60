"""Optional packages: a missing one becomes an error that says how to install it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ocar.errors import MissingPackageError


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
        raise MissingPackageError(
            f'{purpose} needs {package}: pip install "ocar[{extra}]"'
        ) from error

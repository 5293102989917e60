"""Optional packages: a missing one becomes an error that says how to install it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ocar.errors import MissingPackageError


@contextmanager
def needed(purpose: str, package: str, *, extra: str) -> Iterator[None]:
    """Import an optional package inside this ``with`` statement.

    Args:
        purpose: What needs it, as the subject of the error.
        package: Its name.
        extra: The extra of ``ocar`` that installs it.

    Raises:
        MissingPackageError: It is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise MissingPackageError(
            f'{purpose} needs {package}, which is not installed: pip install "ocar[{extra}]"'
        ) from error

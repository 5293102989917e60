"""Look whether every installed package has a licence that goes with ours.

    python tools/licences.py

What counts is what a package says of itself: its SPDX expression, else its classifiers, else its
text. A package that says nothing, or something that is not on the list, is an error; look at it,
then add its licence to ``ALLOWED`` or the package, with the reason, to ``LOOKED_AT``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions

ALLOWED = frozenset(
    {
        "0BSD",
        "Apache-2.0",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "BSL-1.0",
        "CC0-1.0",
        "CNRI-Python",
        "ISC",
        "MIT",
        "MIT-0",
        "MIT-CMU",
        "MPL-2.0",
        "PSF-2.0",
        "Python-2.0",
        "Unlicense",
        "Zlib",
    }
)
"""SPDX names: all may be used and passed on beside code under MIT."""

ALIASES = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "bsd 3-clause": "BSD-3-Clause",
    "bsd-2-clause license": "BSD-2-Clause",
    "bsd-3-clause license": "BSD-3-Clause",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "new bsd": "BSD-3-Clause",
    "psf": "PSF-2.0",
    "python software foundation license": "PSF-2.0",
    "the mit license": "MIT",
    "the unlicense (unlicense)": "Unlicense",
}
"""What packages call them that know no SPDX names, in lower case."""

NO_LICENCES = frozenset({"License :: OSI Approved", "License :: DFSG approved"})
"""Classifiers that only say that there is one."""

LOOKED_AT: dict[str, str] = {
    "docutils": "public domain and BSD-2-Clause; GPL is an Emacs mode that is not in the wheel",
}
"""Packages whose licence was read by a person, with what was found."""


def licences_of(package: Distribution) -> list[str]:
    """The licences that a package names, of which one is enough if they are alternatives."""
    meta = package.metadata
    if expressions := meta.get_all("License-Expression"):
        return expressions
    classifiers = [
        line.rpartition(" :: ")[2]
        for line in meta.get_all("Classifier") or []
        if line.startswith("License :: ") and line not in NO_LICENCES
    ]
    text = "".join(meta.get_all("License") or []).strip()
    return classifiers or ([text.splitlines()[0]] if text else [])


def is_allowed(expression: str) -> bool:
    """Whether an expression such as ``MIT AND (Apache-2.0 OR GPL-2.0)`` can be met."""
    whole = expression.strip()
    if whole.lower() in ALIASES or whole in ALLOWED:
        return True
    tokens = re.findall(r"[()]|[^\s()]+", whole)
    try:
        allowed, rest = _any(tokens)
    except IndexError:
        return False
    return allowed and not rest


def _any(tokens: list[str]) -> tuple[bool, list[str]]:
    allowed, rest = _all(tokens)
    while rest[:1] == ["OR"]:
        other, rest = _all(rest[1:])
        allowed = allowed or other
    return allowed, rest


def _all(tokens: list[str]) -> tuple[bool, list[str]]:
    allowed, rest = _one(tokens)
    while rest[:1] == ["AND"]:
        other, rest = _one(rest[1:])
        allowed = allowed and other
    return allowed, rest


def _one(tokens: list[str]) -> tuple[bool, list[str]]:
    if tokens[0] == "(":
        allowed, rest = _any(tokens[1:])
        return allowed and rest[0] == ")", rest[1:]
    name, rest = tokens[0], tokens[1:]
    if rest[:1] == ["WITH"]:  # an exception only ever allows more
        rest = rest[2:]
    return name in ALLOWED, rest


def problems(packages: Iterable[Distribution]) -> list[str]:
    """A line for each package whose licence is missing or not on the list."""
    said = []
    for package in packages:
        name = package.metadata["Name"]
        if name.lower() in LOOKED_AT:
            continue
        found = licences_of(package)
        if not found:
            said.append(f"{name} {package.version} names no licence")
        elif not all(map(is_allowed, found)):
            said.append(f"{name} {package.version} has {' and '.join(found)!r:.100}")
    return sorted(said, key=str.lower)


def main() -> int:
    """Look at all packages of this environment."""
    packages = list(distributions())
    said = problems(packages)
    for line in said:
        print(f"licences: {line}", file=sys.stderr)
    if not said:
        print(f"Licences: {len(packages)} packages, all on the list.")
    return int(bool(said))


if __name__ == "__main__":
    sys.exit(main())

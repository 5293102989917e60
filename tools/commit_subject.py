"""Check the subject of a commit: ``area: imperative``, at most 72 characters."""

from __future__ import annotations

import re
import sys
from pathlib import Path

SUBJECT = re.compile(r"(Merge |Revert |[a-z0-9_./ -]+: [a-z])")


def complaint(subject: str) -> str | None:
    """What is wrong with a subject, or None."""
    if len(subject) > 72:
        return f"The subject has {len(subject)} characters; at most 72 are allowed: {subject!r}."
    if not SUBJECT.match(subject) or subject.endswith("."):
        return f"The subject must read 'area: imperative', as 'curvature: add E-KFAC': {subject!r}."
    return None


def main(path: str) -> int:
    """Check the message in a file, as git gives it to the hook commit-msg."""
    subject = Path(path).read_text(encoding="utf-8").partition("\n")[0]
    found = complaint(subject)
    if found is not None:
        print(found)
    return int(found is not None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

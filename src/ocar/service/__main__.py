"""``python -m ocar.service repair FOLDER``: go on without what a damaged journal has lost."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ocar.errors import OcarError
from ocar.service.journal import ranges
from ocar.service.service import repair


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m ocar.service", description=__doc__)
    parser.add_argument("command", choices=["repair"])
    parser.add_argument("folder", type=Path, help="of a service that does not run")
    given = parser.parse_args()
    try:
        kept, lost = repair(given.folder)
    except (OcarError, OSError) as error:
        sys.exit(f"ocar: {error}")
    print(f"Batches after the checkpoint: {kept} kept, {len(lost)} lost ({ranges(lost)}).")


if __name__ == "__main__":
    main()

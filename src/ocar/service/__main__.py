"""What can be done in the folder of a service that does not run.

python -m ocar.service repair FOLDER           go on without what a damaged journal has lost;
                                               --without NUMBER: also without that batch
python -m ocar.service checkpoints FOLDER      list the checkpoints to roll back to
python -m ocar.service rollback FOLDER BATCHES drop all that came after a checkpoint
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from ocar.errors import OcarError
from ocar.service import history
from ocar.service.journal import ranges
from ocar.service.offline import repair, roll_back


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m ocar.service",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("repair", "checkpoints", "rollback"):
        own = commands.add_parser(name)
        own.add_argument("folder", type=Path, help="state folder of the service")
        if name == "rollback":
            own.add_argument("batches", type=int, help="batches in the checkpoint")
        if name == "repair":
            own.add_argument("--without", type=int, nargs="+", default=[], metavar="NUMBER",
                             help="batches that cannot be learned")  # fmt: skip
    given = parser.parse_args()
    if not given.folder.is_dir():
        sys.exit(f"ocar: There is no folder {given.folder}. ocar serve says where its state is.")
    try:
        _run(given)
    except (OcarError, OSError) as error:
        sys.exit(f"ocar: {error}")


def _run(given: argparse.Namespace) -> None:
    if given.command == "repair":
        kept, lost = repair(given.folder, without=given.without)
        print(f"Batches after the checkpoint: {kept} kept, {len(lost)} lost ({ranges(lost)}).")
    elif given.command == "rollback":
        roll_back(given.folder, given.batches)
        print(f"The service goes on after batch {given.batches}.")
    else:
        for saved in history.find(given.folder):
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(saved.path.stat().st_mtime))
            print(f"{saved.batches:>10} batches, saved {when} UTC")


if __name__ == "__main__":
    main()

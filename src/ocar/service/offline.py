"""What can be done in the folder of a service that does not run."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ocar.files import folder_lock
from ocar.service import history, journal
from ocar.service.history import NEEDED, History
from ocar.service.journal import Repaired
from ocar.state import load_state


def repair(folder: Path, *, without: Collection[int] = ()) -> Repaired:
    """Go on without the batches of a journal that cannot be read, or learned.

    All others are kept and move up: their numbers are consecutive again. The old files of the
    journal stay, and are not read any more. The service must not run.

    Args:
        folder: Folder of the service.
        without: Numbers of batches after the checkpoint to leave out too.

    Raises:
        RunError: Another process works in the folder.
        ConfigError: A batch to leave out is not after the checkpoint.
        CheckpointError: The checkpoint is damaged, and so is the one before it.
    """
    with folder_lock(folder):
        generation = journal.files(folder)[0]
        found = [saved for saved in history.find(folder) if saved.generation == generation]
        after = 0
        if found:
            whole = History(folder, most=NEEDED).restore(load_state)
            assert whole is not None
            after = int(whole[1]["batches"])
        usable = [saved for saved in found if saved.batches <= after]
        history.begin_generation(folder, usable[-NEEDED:])
        return journal.repair(folder, after=after, without=without)


def roll_back(folder: Path, batches: int) -> None:
    """As :meth:`ocar.service.Service.roll_back`, for the folder of a service that does not run.

    Raises:
        RunError: Another process works in the folder.
        ConfigError: There is no such checkpoint.
        CheckpointError: It is damaged.
    """
    with folder_lock(folder):
        history.roll_back(folder, history.find_whole(folder, batches))

"""``ocar run --ranks``: each run by several processes, which torch's elastic launcher starts."""

from __future__ import annotations

import pickle
import signal
import sys
import tempfile
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from ocar.accel import Ranks
from ocar.errors import OcarError, RankError, RankLeftError
from ocar_lab.cli.running import do_runs
from ocar_lab.experiment import Job
from ocar_lab.experiment.executors import Workers
from ocar_lab.experiment.loop import follow_run
from ocar_lab.plugins import load_plugins
from ocar_lab.runs import is_finished

RESTARTS = 3
"""How often the processes of a run are started again after one of them has died."""


def run_on_ranks(jobs: Sequence[Job], ranks: int, *, again: str, debug: bool) -> int:
    """Do runs one after another, each on some ranks; 0 if every run is finished, else 1.

    A run that fails does not affect the others.
    """
    folders = [job.out / job.config.folder() for job in jobs]
    with tempfile.TemporaryDirectory() as temporary, suppress(SignalException):
        # The launcher passes a signal on: the first rank saves and leaves.
        file = Path(temporary) / "job"
        for job, folder in zip(jobs, folders, strict=True):
            if is_finished(folder):
                do_runs([job], workers=Workers(), again=again, debug=debug)  # says so
                continue
            file.write_bytes(pickle.dumps((job, again, debug)))
            try:
                elastic_launch(_configuration(ranks), sys.executable)("-m", __name__, str(file))
            except ChildFailedError:
                sys.stderr.write(f"ocar: gave up after {RESTARTS} restarts.\n")
    return 0 if all(map(is_finished, folders)) else 1


def _configuration(ranks: int) -> LaunchConfig:
    """As ``torchrun --standalone`` has it."""
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=RESTARTS,
        monitor_interval=0.1,
    )


def main(file: Path) -> int:
    """What each process does; an exit code other than 0 starts all again."""
    job, again, debug = pickle.loads(file.read_bytes())
    load_plugins(job.config.plugins)
    ranks = Ranks()
    if ranks.rank > 0:  # the first decides when to stop
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        if ranks.rank == 0:
            do_runs([replace(job, ranks=ranks)], workers=Workers(), again=again, debug=debug)
            ranks.leave()
        else:
            follow_run(job.config, ranks)
    except RankLeftError:
        return 0
    except RankError:
        return 1
    except OcarError:
        return 0  # the first rank says it
    return int(ranks.failed)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

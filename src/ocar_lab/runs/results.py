"""Results: what is worth keeping of finished runs, one small file a configuration.

::

    results/<benchmark>/<method>-<hash>.json

It holds the configuration, the ``ocar run`` line that stands for it, and for each seed all
metrics and what every process that worked on the run said of itself: versions, device, revision
of the source, the command as it was called but for its folders. The metrics over time and the
weights stay behind.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ocar.errors import RunError
from ocar.events import Summary
from ocar.files import write_whole
from ocar_lab.runs.command import run_command
from ocar_lab.runs.folder import CONFIG, DAMAGE, read_json
from ocar_lab.runs.provenance import device_names, were_alone
from ocar_lab.runs.reading import Run

FORMAT = "ocar-result"
VERSION = 1

_PLACES = ("--out", "--data-root")  # options that name a folder
_FILE = "--preset"  # an option that names a file

FILE_NAME = re.compile(r".+-[0-9a-f]{10}\.json")
"""What a result's file is called, which tells it from other files beside it."""


@dataclass(frozen=True, kw_only=True)
class KeptRun:
    """One finished run, as a result's file holds it."""

    path: Path
    """The file."""

    config: Mapping[str, Any]
    """What decides the numbers, beside the seed."""

    label: str
    """Name of the method, as in a table."""

    hash: str
    """What the configuration is known by."""

    changed: Mapping[str, Any]
    """Settings that were given other values than the preset's."""

    seed: int
    """The seed."""

    summary: Summary
    """The metrics."""

    evaluated: int
    """How many evaluations were made."""

    threads: int
    """Threads on the CPU."""

    wall_seconds: float | None
    """Seconds from begin to end, evaluation included, to the second; None if the run was
    interrupted, since nobody knows for how long."""

    sessions: Sequence[Mapping[str, Any]]
    """What each process that worked on the run said of itself, its command on one line, and the
    batch it began at."""

    guarded: Mapping[str, Any] | None = None
    """What the guard did, and the largest change of predictions that it saw; None if there was
    none or the run does not say."""

    @property
    def benchmark(self) -> str:
        """Name of the benchmark."""
        return str(self.config["benchmark"])

    @property
    def state(self) -> str:
        """``finished``: no other run is kept."""
        return "finished"

    @property
    def device(self) -> str:
        """What the run was computed on."""
        return device_names(self.sessions)

    @property
    def alone(self) -> bool:
        """Whether no other run was done at the same time, as far as the run says."""
        return were_alone(self.sessions)


@dataclass(frozen=True, kw_only=True)
class Result:
    """The finished runs of one configuration."""

    path: Path
    """The file."""

    command: str | None
    """The ``ocar run`` line that stands for them; None if there can be none."""

    runs: tuple[KeptRun, ...]
    """The runs, by seed."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds."""
        return tuple(run.seed for run in self.runs)


def identity_hash(config: Mapping[str, Any]) -> str:
    """What a configuration is known by, as ``RunConfig.hash`` computes it."""
    text = json.dumps(config, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=5).hexdigest()


def keep(runs: Sequence[Run], root: Path) -> Result:
    """Write what is worth keeping of some runs of one configuration.

    Seeds that the file holds already stay, unless they are among the runs.

    Args:
        runs: Finished runs, at least one, all of one benchmark, method and hash.
        root: Folder of all results.

    Raises:
        RunError: A run is not finished or does not say what made it, two have the same seed, or
            the file that is there is damaged.
    """
    first = runs[0]
    path = root / first.benchmark / f"{first.label}-{first.hash}.json"
    fresh: dict[int, KeptRun] = {}
    for run in runs:
        if run.seed in fresh:
            raise RunError(f"{run.path} is seed {run.seed} of {path.stem} once more. Give one.")
        fresh[run.seed] = _kept(run, path)
    before = {run.seed: run for run in read_result(path).runs} if path.exists() else {}
    together = sorted((before | fresh).items())
    threads = {run.threads for _, run in together}
    command = run_command(
        first.config,
        first.document["given"],
        seeds=[seed for seed, _ in together],
        threads=threads.pop() if len(threads) == 1 else None,
    )
    result = Result(path=path, command=command, runs=tuple(run for _, run in together))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, _to_json(result))
    return result


def _kept(run: Run, path: Path) -> KeptRun:
    if run.summary is None:
        raise RunError(f"{run.path} is not finished but {run.state}: the same command goes on.")
    missing = sorted({"given", "threads", "versions", "device"} - run.document.keys())
    if missing:
        raise RunError(f"{run.path / CONFIG} does not say what made it: {', '.join(missing)}.")
    if identity_hash(run.config) != run.hash:
        raise RunError(f"{run.path / CONFIG} is damaged: its hash is of another configuration.")
    return KeptRun(
        path=path,
        config=run.config,
        label=run.label,
        hash=run.hash,
        changed=run.changed,
        seed=run.seed,
        summary=run.summary,
        evaluated=run.evaluated,
        threads=int(run.document["threads"]),
        wall_seconds=_wall_seconds(run),
        sessions=[_one_line(session) for session in run.sessions],
        guarded=run.status.get("guarded"),
    )


def _one_line(session: Mapping[str, Any]) -> dict[str, Any]:
    """What a process said of itself; where it kept its files is nobody else's business."""
    program, *words = session.get("command", [""])
    if program == "__main__.py":  # python -m ocar
        program = "ocar"
    for option in _PLACES:
        while option in words:
            place = words.index(option)
            del words[place : place + 2]
    if _FILE in words[:-1]:
        place = words.index(_FILE) + 1
        words[place] = Path(words[place]).name
    return {**session, "command": shlex.join([program, *words])}


def _wall_seconds(run: Run) -> float | None:
    """Seconds from the beginning of the one session to its end, if that is how it was."""
    if len(run.sessions) > 1 or run.status.get("state") != "finished":
        return None
    begun, ended = run.sessions[0].get("time"), run.status.get("updated")
    if begun is None or ended is None:
        return None
    return (datetime.fromisoformat(ended) - datetime.fromisoformat(begun)).total_seconds()


def _to_json(result: Result) -> bytes:
    first = result.runs[0]
    document = {
        "format": FORMAT,
        "version": VERSION,
        "label": first.label,
        "hash": first.hash,
        "command": result.command,
        "changed": first.changed,
        "config": first.config,
        "runs": [
            {
                "seed": run.seed,
                "metrics": dataclasses.asdict(run.summary),
                "evaluations": run.evaluated,
                "threads": run.threads,
                "wall_seconds": run.wall_seconds,
                "sessions": run.sessions,
                **({} if run.guarded is None else {"guarded": run.guarded}),
            }
            for run in result.runs
        ],
    }
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def result_files(root: Path) -> list[Path]:
    """Every file in a folder and in those below it that is named as a result is.

    Raises:
        RunError: The folder does not exist.
    """
    if not root.is_dir():
        raise RunError(f"There is no folder {root}.")
    return sorted(path for path in root.rglob("*.json") if FILE_NAME.fullmatch(path.name))


def read_result(path: Path) -> Result:
    """Read a result.

    Raises:
        RunError: The file is none, is damaged, or is of another configuration than it is named.
    """
    document = read_json(path)
    said = (document.get("format"), document.get("version"))
    if said != (FORMAT, VERSION):
        raise RunError(f"{path} is no result: {said}. This ocar reads {(FORMAT, VERSION)}.")
    try:
        result = Result(
            path=path,
            command=document["command"],
            runs=tuple(_read_run(run, document, path) for run in document["runs"]),
        )
        named, meant = path.stem, f"{document['label']}-{identity_hash(document['config'])}"
    except DAMAGE as error:
        raise RunError(f"{path} is damaged: {type(error).__name__}: {error}.") from error
    if named != meant or document.get("hash") != identity_hash(document["config"]):
        raise RunError(f"{path} is damaged: its configuration is that of {meant}.")
    if not result.runs or len(set(result.seeds)) < len(result.seeds):
        raise RunError(f"{path} is damaged: seeds {result.seeds}. Must be one run each.")
    return result


def _read_run(run: Mapping[str, Any], document: Mapping[str, Any], path: Path) -> KeptRun:
    for name, value in run["metrics"].items():
        if value is not None and not math.isfinite(value):
            raise ValueError(f"{name} is {value}")
    return KeptRun(
        path=path,
        config=document["config"],
        label=document["label"],
        hash=document["hash"],
        changed=document["changed"],
        seed=int(run["seed"]),
        summary=Summary(**run["metrics"]),
        evaluated=int(run["evaluations"]),
        threads=int(run["threads"]),
        wall_seconds=run["wall_seconds"],
        sessions=run["sessions"],
        guarded=run.get("guarded"),
    )

"""Results: what is kept of finished runs, one small file for each configuration.

::

    results/<benchmark>/<method>-<hash>.json

A file holds the configuration, the ``ocar run`` line for it, and for each seed all metrics and a
description of every process that worked on the run: versions, device, revision of the source, the
command without its folders. The metrics over time and the weights are not kept.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ocar.errors import RunError
from ocar.events import Summary
from ocar.files import encode, write_whole
from ocar_lab.runs.columns import read_summary
from ocar_lab.runs.command import run_command, shell_line, without_options
from ocar_lab.runs.folder import CONFIG, naming_damage, read_json
from ocar_lab.runs.provenance import is_session
from ocar_lab.runs.reading import Measured, Run, read_changed, read_seed

FORMAT = "ocar-result"
VERSION = 1

_FOLDERS = ("--out", "--data-root")  # options that name a folder
_FILE = "--preset"  # an option that names a file


@dataclass(frozen=True, kw_only=True)
class KeptRun(Measured):
    """One finished run in a result file; the command of a session is one line."""

    summary: Summary  #: The metrics.
    threads: int  #: Threads on the CPU.
    wall_seconds: float | None
    """Seconds from start to end, evaluation included; None if the run was interrupted."""

    guarded: Mapping[str, Any] | None = None
    """What the guard did, and the largest change of predictions; None if not recorded."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """The finished runs of one configuration."""

    path: Path  #: The file.
    command: str | None  #: The ``ocar run`` line for them; None if a setting has no flag.
    runs: tuple[KeptRun, ...]  #: The runs, by seed.

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds."""
        return tuple(run.seed for run in self.runs)


def identity_hash(config: Mapping[str, Any]) -> str:
    """The hash of a configuration in plain values."""
    text = json.dumps(config, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=5).hexdigest()


def keep(runs: Sequence[Run], root: Path) -> Result:
    """Write the results of runs of one benchmark, method and hash into the folder of all results.

    Other seeds in the file stay; the same seeds are replaced.

    Raises:
        RunError: A run is not finished or does not describe its process, two runs have the same
            seed, a name is no file name, or the existing file is damaged.
    """
    first = runs[0]
    for name in (first.benchmark, f"{first.label}-{first.hash}"):
        if Path(name).name != name or name == "..":  # it would lead elsewhere
            raise RunError(f"{first.path / CONFIG} is damaged: {name!r} is no name of a file.")
    path = root / first.benchmark / f"{first.label}-{first.hash}.json"
    fresh: dict[int, KeptRun] = {}
    for run in runs:
        if run.seed in fresh:
            raise RunError(f"{run.path} is seed {run.seed} of {path.stem} once more. Give one.")
        fresh[run.seed] = _kept(run, path)
    before = {run.seed: run for run in read_result(path).runs} if path.exists() else {}
    together = tuple(run for _, run in sorted((before | fresh).items()))
    threads = {run.threads for run in together}
    with naming_damage(first.path / CONFIG):
        command = run_command(
            first.config,
            first.document["given"],
            seeds=[run.seed for run in together],
            threads=threads.pop() if len(threads) == 1 else None,
        )
    result = Result(path=path, command=command, runs=together)
    text = json.dumps(_document(result), indent=1, ensure_ascii=False, allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, encode(text) + b"\n")
    return result


def _kept(run: Run, path: Path) -> KeptRun:
    if run.summary is None:
        raise RunError(f"{run.path} is not finished but {run.state}: the same command goes on.")
    missing = sorted({"given", "threads", "versions", "device"} - run.document.keys())
    if missing:
        raise RunError(f"{run.path / CONFIG} does not say what made it: {', '.join(missing)}.")
    if identity_hash(run.config) != run.hash:
        raise RunError(f"{run.path / CONFIG} is damaged: its hash is of another configuration.")
    common = {field.name: getattr(run, field.name) for field in dataclasses.fields(Measured)}
    own = {"path": path, "sessions": [_one_line(session) for session in run.sessions]}
    return KeptRun(
        **common | own,
        threads=int(run.document["threads"]),
        wall_seconds=_wall_seconds(run),
        guarded=run.status.get("guarded"),
    )


def _one_line(session: Mapping[str, Any]) -> dict[str, Any]:
    """A session with its command on one line, without the user's folders."""
    words = without_options([*map(str, session.get("command", [""]))], _FOLDERS)
    if _FILE in words[:-1]:
        place = words.index(_FILE) + 1
        words[place] = Path(words[place]).name
    return {**session, "command": shell_line(words)}


def _wall_seconds(run: Run) -> float | None:
    """Seconds from start to end of a run that was not interrupted."""
    if len(run.sessions) > 1 or run.status.get("state") != "finished":
        return None
    begun, ended = run.sessions[0].get("time"), run.status.get("updated")
    if begun is None or ended is None:
        return None
    return (datetime.fromisoformat(ended) - datetime.fromisoformat(begun)).total_seconds()


def _document(result: Result) -> dict[str, Any]:
    first = result.runs[0]
    return {
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


def read_result(path: Path) -> Result:
    """Read a result.

    Raises:
        RunError: It is no result, is damaged, or its name is of another configuration.
    """
    document = read_json(path)
    said = (document.get("format"), document.get("version"))
    if said != (FORMAT, VERSION):
        raise RunError(f"{path} is no result: {said}. This ocar reads {(FORMAT, VERSION)}.")
    with naming_damage(path):
        runs = tuple(_read_run(run, document, path) for run in document["runs"])
        result = Result(path=path, command=document["command"], runs=runs)
        meant = f"{document['label']}-{identity_hash(document['config'])}"
    if path.stem != meant or document.get("hash") != identity_hash(document["config"]):
        raise RunError(f"{path} is damaged: its configuration is that of {meant}.")
    if not result.runs or len(set(result.seeds)) < len(result.seeds):
        raise RunError(f"{path} is damaged: seeds {result.seeds}. Must be one run each.")
    return result


def _read_run(run: Mapping[str, Any], document: Mapping[str, Any], path: Path) -> KeptRun:
    if not all(map(is_session, run["sessions"])):
        raise ValueError("a session does not describe a process")
    return KeptRun(
        path=path,
        **{name: document[name] for name in ("config", "label", "hash")},
        changed=read_changed(document),
        seed=read_seed(run["seed"]),
        sessions=run["sessions"],
        state="finished",
        evaluated=int(run["evaluations"]),
        summary=read_summary(run["metrics"]),
        threads=int(run["threads"]),
        wall_seconds=run["wall_seconds"],
        guarded=run.get("guarded"),
    )

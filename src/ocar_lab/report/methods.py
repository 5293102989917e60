"""What was run, and the command that runs it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ocar_lab.runs import Group, Measured, Run
from ocar_lab.runs.command import run_command, shell_line
from ocar_lab.runs.texts import seeds_text


@dataclass(frozen=True, kw_only=True)
class Method:
    """The runs of one configuration."""

    name: str  # the method, and the settings that differ from its preset
    label: str  # the method
    hash: str  # of the configuration
    seeds: tuple[int, ...]  # of the finished runs
    unfinished: Mapping[int, str]  # state of each other run, by seed
    progress: str  # number of finished seeds, and states of the others
    evaluations: tuple[int, ...]  # of each run
    devices: tuple[str, ...]
    begun: str | None  # start of the first run
    versions: Mapping[str, str]  # of the first run
    revision: str | None  # of its source; with a plus sign if the source was changed
    command: str | None  # makes all of them; None if a setting has no flag
    called: tuple[str, ...]  # the commands that made them
    config: Mapping[str, Any]  # everything that determines the numbers, except the seed


def describe_method(name: str, group: Group, runs: Sequence[Measured]) -> Method:
    """Describe the runs of a configuration."""
    sessions = [session for run in runs for session in run.sessions]
    first = sessions[0] if sessions else {}
    begun = sorted(str(session["time"]) for session in sessions if "time" in session)
    return Method(
        name=name,
        label=group.label,
        hash=group.hash,
        seeds=group.seeds,
        unfinished=group.unfinished,
        progress=seeds_text(group),
        evaluations=tuple(run.evaluated for run in runs),
        devices=tuple(dict.fromkeys(run.device for run in runs if run.device)),
        begun=begun[0] if begun else None,
        versions=first.get("versions", {}),
        revision=_revision(first.get("git")),
        command=_command(runs),
        called=tuple(dict.fromkeys(filter(None, map(_called, sessions)))),
        config=runs[0].config,
    )


def _revision(git: Mapping[str, Any] | None) -> str | None:
    if not git or "revision" not in git:
        return None
    return f"{git['revision']}{'+' if git.get('changed') else ''}"


def _called(session: Mapping[str, Any]) -> str:
    command = session.get("command") or ""
    return command if isinstance(command, str) else shell_line(command)


def _command(runs: Sequence[Measured]) -> str | None:
    stored = [run for run in runs if isinstance(run, Run) and "given" in run.document]
    if not stored:
        return None
    threads = {run.document.get("threads") for run in stored}
    try:
        return run_command(
            stored[0].config,
            stored[0].document["given"],
            seeds=sorted(run.seed for run in runs),
            threads=threads.pop() if len(threads) == 1 else None,
        )
    except (KeyError, TypeError):  # written by another version
        return None

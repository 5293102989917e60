"""``ocar tune``: search for the settings of a method on a benchmark, by the paper's protocol."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ocar.errors import ConfigError
from ocar_lab.cli.arguments import parse
from ocar_lab.cli.flags import defaults, find_transform, flags_type, method_settings, with_flags
from ocar_lab.cli.run import check_names, split_names
from ocar_lab.cli.stopping import StopRequest
from ocar_lab.cli.tables import print_table
from ocar_lab.cli.tune_progress import make_display, settings_text, value_text
from ocar_lab.cli.workers import check_workers, cluster_device, cores, make_workers
from ocar_lab.experiment.executors import Workers, make_executor
from ocar_lab.tune import Ended, Study, Trial, TuneConfig, search, search_space
from ocar_lab.tune.trial import is_scored

USAGE = "ocar tune BENCHMARK METHOD"
FLAG = "--gpus-per-trial"

SHOWN = 5
"""Trials in the table at the end."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Search for the settings of a method on a benchmark.

    The paper's protocol: a tree-structured Parzen estimator, validation accuracy after the first
    four tasks, one seed, 100 trials. A study that was interrupted goes on where it was. A setting
    that is given as a flag is not searched: --help after the names lists them.
    """

    trials: int = 100
    """Trials in all, those done before included."""

    tasks: int | None = None
    """Tasks that a trial learns; by default 4, and in regression all."""

    seed: int = 0
    """Seed of every trial's run and of the search."""

    data_root: Path | None = None
    """Where the data sets are; by default OCAR_DATA or the user's data folder."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto is the GPU if there is one."""

    out: Path = Path("studies")
    """Folder for studies; this one's is BENCHMARK/METHOD in it."""

    transform: str | None = None
    """Gradient transform to use with the method's loss, such as ocar."""

    try_preset: bool = True
    """Try the settings of the benchmark's preset for the method first, if there is one."""

    prune: bool = True
    """Stop trials early that do worse than most after the same batch."""

    workers: int | None = None
    """Trials side by side, each in a process, or on a GPU in a thread. By default 1, in this
    process, which makes a search repeatable; on a Ray cluster as many as it has room for."""

    ray: str | None = None
    """Do the trials on the Ray cluster at this address, auto for the one of this machine. Its
    nodes need the data."""

    gpus_per_trial: float = 0.0
    """GPUs of the Ray cluster for each trial; a part of one is allowed."""

    capture: bool = True
    """On a GPU, capture the steps as CUDA graphs."""

    threads: int | None = None
    """Threads of each trial on the CPU; by default the cores shared among the workers, and one on
    a Ray cluster."""

    max_batches: int | None = None
    """End each trial after so many batches, for a first look."""

    json: bool = False
    """Print JSON: the configuration, every trial, the best one, the preset file."""

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise ConfigError(f"Invalid --trials {self.trials}. Must be at least 1.")
        check_workers(self.workers)


def main(command: str, arguments: list[str], *, debug: bool) -> int:
    """Search, and say what was found.

    Returns:
        0 if the study has all its trials, else 1.
    """
    benchmark, methods, rest = split_names(arguments)
    if len(methods) != 1:
        parse(Options, rest, command=USAGE)  # prints the help or says what is wrong
        raise ConfigError(f"A benchmark and one method are needed: {USAGE}")
    check_names(benchmark, methods)
    options, settings = _parse_options(benchmark, methods[0], rest)
    config = make_config(benchmark, methods[0], options, settings)
    workers = _workers(options)
    again = shlex.join(["ocar", command, *arguments])
    with Study(config, options.out / benchmark / config.name) as study:
        stopped = _search(study, workers, trials=options.trials, debug=debug)
        document = describe(study, data_root=options.data_root)
        if options.json:
            json.dump(document, sys.stdout, indent=1, ensure_ascii=False)
            sys.stdout.write("\n")
        else:
            print_study(study, document)
    if stopped:
        done = sum(trial["state"] != "running" for trial in document["trials"])
        sys.stderr.write(
            f"Stopped after {done} of {options.trials} trials. The same command goes on:\n"
            f"  {again}\n"
        )
    return 1 if stopped or document["best"] is None else 0


def _parse_options(
    benchmark: str, method: str, arguments: Sequence[str]
) -> tuple[Options, dict[str, Any]]:
    """The options, and the settings that were given."""
    transform = find_transform(arguments)
    known = method_settings(method, transform=transform)
    values = defaults(benchmark, method, transform, known)
    searched = ", ".join(search_space(benchmark, method, transform))
    about = (
        f"Settings of the method. One that is given is not searched; else these are: {searched}."
    )
    kind = with_flags(Options, flags_type({method: known}, {method: values}), about=about)
    parsed = parse(kind, arguments, command=f"ocar tune {benchmark} {method}")
    options = Options(**{f.name: getattr(parsed, f.name) for f in dataclasses.fields(Options)})
    return options, dict(parsed.settings)


def make_config(
    benchmark: str, method: str, options: Options, settings: dict[str, Any]
) -> TuneConfig:
    """The study that the arguments stand for."""
    device, threads = options.device, options.threads or 1
    if options.ray is not None:
        device = cluster_device(device, options.gpus_per_trial, flag=FLAG)
    elif options.threads is None:
        threads = max(1, cores() // (options.workers or 1))
    config = TuneConfig(
        benchmark=benchmark,
        method=method,
        transform=options.transform,
        settings=settings,
        seed=options.seed,
        tasks=options.tasks,
        max_batches=options.max_batches,
        prune=options.prune,
        try_preset=options.try_preset,
        device=device,
        capture=options.capture,
        threads=threads,
        data_root=options.data_root,
    )
    if options.ray is None:
        config.run_config(config.example()).resolve_device()  # now, while it is a wrong call
    return config


def _workers(options: Options) -> Workers:
    return make_workers(
        options.workers or (1 if options.ray is None else None),
        ray=options.ray,
        gpus=options.gpus_per_trial,
        threads=options.threads or 1,
        flag=FLAG,
    )


def _search(study: Study, workers: Workers, *, trials: int, debug: bool) -> bool:
    """Search and show how it goes.

    Returns:
        Whether it was asked to stop before it had all trials.
    """
    config = study.config
    run = config.run_config(config.example())
    on_gpu = workers.ray is None and run.resolve_device().type == "cuda"
    announced = False
    with StopRequest() as stop:
        executor = make_executor(workers, on_gpu=on_gpu, is_ahead=is_scored, stop=stop)
        with make_display(study, trials=trials) as display:
            for event in search(study, executor, trials=trials, stop=stop):
                display.show(event)
                if isinstance(event, Ended) and event.trial.error and debug:
                    text = event.details or event.trial.error
                    display.note(f"ocar: trial {event.trial.number} failed: {text}")
                if stop() and not announced:
                    announced = True
                    display.note("Stopping: the trials under way will be drawn anew.")
        return stop() and len(study.trials()) < trials


def describe(study: Study, *, data_root: Path | None) -> dict[str, Any]:
    """What ``--json`` prints, in plain values.

    Args:
        study: The study.
        data_root: Where the data sets are, if it was given.
    """
    ranking = study.ranking()
    config, preset = study.config, study.preset_path
    words = ["ocar", "run", config.benchmark, config.method, "--seeds", *"01234"]
    words += [] if config.transform is None else ["--transform", config.transform]
    words += [] if data_root is None else ["--data-root", str(data_root)]
    command = shlex.join([*words, "--preset", str(preset)])
    return {
        "study": str(study.folder),
        "config": config.identity(),
        "trials": [dataclasses.asdict(trial) for trial in study.trials()],
        "best": dataclasses.asdict(ranking[0]) if ranking else None,
        "preset": str(preset) if ranking else None,
        "command": command if ranking else None,
    }


def print_study(study: Study, document: dict[str, Any]) -> None:
    """Print the best trials, and what to do with them.

    Args:
        study: The study.
        document: What :func:`describe` says of it.
    """
    ranking = study.ranking()
    counts = _counts(study.trials())
    if not ranking:
        sys.stdout.write(f"{study.folder}: {counts}; no settings found.\n")
        return
    names = list(study.config.space)
    rows = [
        [
            str(trial.number),
            value_text(study.config, trial.value),
            *(settings_text({name: trial.settings[name]}, bare=True) for name in names),
            "" if trial.seconds is None else f"{trial.seconds:.1f}",
        ]
        for trial in ranking[:SHOWN]
    ]
    title = f"{study.config.benchmark} {study.config.name}: {study.config.objective}; {counts}"
    header = ["trial", "value", *names, "seconds"]
    print_table(header, rows, title=title, numbers=True)
    sys.stdout.write(f"\nBest settings:  {document['preset']}\n")
    sys.stdout.write(f"Run them:       {document['command']}\n")


def _counts(trials: Sequence[Trial]) -> str:
    """How many trials ended in which way."""
    states = [trial.state for trial in trials]
    parts = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    return ", ".join([f"{len(trials)} trials", *parts] if parts else ["no trials"])

"""``ocar tune``: search for the settings of a method on a benchmark, by the paper's protocol."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ocar.errors import ConfigError
from ocar_lab.cli import tune_stream
from ocar_lab.cli.arguments import command_line, require_folder
from ocar_lab.cli.flags import parse_call
from ocar_lab.cli.stopping import StopRequest
from ocar_lab.cli.tables import print_json, print_table
from ocar_lab.cli.tune_progress import TuneDisplay, settings_text, value_text
from ocar_lab.cli.workers import choose_workers
from ocar_lab.experiment.executors import Workers
from ocar_lab.tune import Ended, SearchEvent, Study, TuneConfig, search_space
from ocar_lab.tune.trial import is_scored

CONFIGURATION, NO_FLAGS = TuneConfig, ("plugins",)
"""Its fields are flags too, except these."""

VARIANTS = {"--stream": tune_stream.Options}
"""Flags that make it another command, with options of their own."""

SHOWN = 5
"""Trials in the table at the end."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Search for the settings of a method on a benchmark.

    The paper's protocol: a tree-structured Parzen estimator, validation accuracy after the first
    four tasks, one seed, 100 trials. The same command resumes an interrupted study. A setting that
    is given as a flag is not searched: --help after the names lists them. On a stream of your own:
    ocar tune --stream MODULE:FUNCTION or FOLDER; --help after it lists its flags.
    """

    trials: int = 100
    """Number of trials, earlier ones included."""

    out: Path = Path("studies")
    """Folder for studies; this one's is BENCHMARK/METHOD in it."""

    workers: int | None = None
    """Trials at a time, each in a process, or on a GPU in a thread. By default 1, in this process,
    which makes a search repeatable; on a Ray cluster as many as it has room for."""

    ray: str | None = None
    """Run the trials on the Ray cluster at this address; auto for the one of this machine. Its
    nodes need the data."""

    gpus_per_trial: float = 0.0
    """GPUs of the Ray cluster for each trial; fractions are allowed."""

    json: bool = False
    """Print JSON: the configuration, every trial, the best one, the preset file."""

    def __post_init__(self) -> None:
        require_folder("--out", self.out)
        if self.trials < 1:
            raise ConfigError(f"Invalid --trials {self.trials}. Must be at least 1.")


def main(command: str, arguments: list[str], *, debug: bool) -> int:
    """Search and print what was found; 0 if the study has all its trials, else 1."""
    if any(word.partition("=")[0] == "--stream" for word in arguments):
        return tune_stream.main(arguments)
    call = parse_call(
        Options,
        CONFIGURATION,
        arguments,
        command="ocar tune",
        usage="ocar tune BENCHMARK METHOD",
        one_method=True,
        without=NO_FLAGS,
        about=_about_settings,
    )
    options, (method,) = call.options, call.methods
    workers, given = choose_workers(
        call.config,
        workers=options.workers,
        ray=options.ray,
        gpus=options.gpus_per_trial,
        flag="--gpus-per-trial",
    )
    config = TuneConfig(
        benchmark=call.benchmark, method=method, settings=call.settings[method], **given
    )
    if options.ray is None:
        config.run_config(config.example()).resolve_device()  # a missing GPU is a wrong call
    with Study(config, options.out / call.benchmark / config.name) as study:
        stopped = _search(study, workers, trials=options.trials, debug=debug)
        document = describe(study)
        if options.json:
            print_json(document)
        else:
            print_study(study, document)
    if stopped:
        sys.stderr.write(
            f"Stopped after {len(document['trials'])} of {options.trials} trials. The same command "
            f"resumes:\n  {command_line(command, arguments)}\n"
        )
    return 1 if stopped or document["best"] is None else 0


def _about_settings(benchmark: str, method: str, transform: str | None) -> str:
    searched = ", ".join(search_space(benchmark, method, transform))
    return f"Settings of the method. A setting that is given is not searched. Searched: {searched}."


def _search(study: Study, workers: Workers, *, trials: int, debug: bool) -> bool:
    """Search and show the progress; True if the search was stopped before it had all trials."""
    run = study.config.run_config(study.config.example())
    on_gpu = workers.ray is None and run.resolve_device().type == "cuda"
    announced = False
    with StopRequest() as stop, TuneDisplay(study, trials=trials) as display:

        def listen(event: SearchEvent) -> None:
            nonlocal announced
            display.show(event)
            if debug and isinstance(event, Ended) and event.trial.error:
                text = event.details or event.trial.error
                display.note(f"ocar: trial {event.trial.number} failed: {text}")
            if stop() and not announced:
                announced = True
                display.note("Stopping: trials that are under way will be drawn again.")

        executor = workers.executor(on_gpu=on_gpu, is_ahead=is_scored)
        study.search(executor, trials=trials, stop=stop, listen=listen)
        return stop() and len(study.trials()) < trials


def describe(study: Study) -> dict[str, Any]:
    """The study in plain values, as ``--json`` prints it."""
    best = next(iter(study.ranking()), None)
    config, preset = study.config, study.preset_path
    words = ["ocar", "run", config.benchmark, config.method, "--seeds", *"01234"]
    words += [] if config.transform is None else ["--transform", config.transform]
    words += [] if config.data_root is None else ["--data-root", str(config.data_root)]
    words += [word for plugin in config.plugins for word in ("--plugin", plugin)]
    command = shlex.join([*words, "--preset", str(preset)])
    return {
        "study": str(study.folder),
        "config": config.identity(),
        "trials": [dataclasses.asdict(trial) for trial in study.trials()],
        "best": None if best is None else dataclasses.asdict(best),
        "preset": None if best is None else str(preset),
        "command": None if best is None else command,
    }


def print_study(study: Study, document: dict[str, Any]) -> None:
    """Print the best trials, and what to do with them."""
    config, trials, ranking = study.config, study.trials(), study.ranking()
    states = Counter(trial.state for trial in trials)
    parts = [f"{count} {state}" for state, count in states.items()]
    counts = ", ".join([f"{len(trials)} trials", *parts]) if trials else "no trials"
    if not ranking:
        sys.stdout.write(f"{study.folder}: {counts}; no settings found.\n")
        return
    rows = [
        [
            str(trial.number),
            value_text(config, trial.value),
            *(settings_text({name: trial.settings[name]}, bare=True) for name in config.space),
            "" if trial.seconds is None else f"{trial.seconds:.1f}",
        ]
        for trial in ranking[:SHOWN]
    ]
    title = f"{config.benchmark} {config.name}: {config.objective}; {counts}"
    print_table(["trial", "value", *config.space, "seconds"], rows, title=title, numbers=True)
    sys.stdout.write(f"\nBest settings:  {document['preset']}\n")
    sys.stdout.write(f"Run them:       {document['command']}\n")

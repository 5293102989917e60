"""The command line: ``ocar COMMAND``.

This file finds the command and turns errors into a line or two and an exit code: 0 for success, 1
for a run that failed or was stopped, 2 for a wrong call. The module of a command is imported when
the command is called, so that help comes without PyTorch.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from ocar.errors import ConfigError, OcarError
from ocar.files import printable
from ocar.registry import unknown
from ocar.version import __version__
from ocar_lab.optional import require_packages
from ocar_lab.plugins import take_plugins

COMMANDS = {
    "demo": ("demo", "ER and OCAR on bundled digits: a table and a report, in half a minute"),
    "run": ("run", "methods on a benchmark; the same command resumes what was interrupted"),
    "tune": ("tune", "search for the settings of a method; the same command resumes"),
    "show": ("show", "mean ± std of every metric of stored runs, and the paper's numbers"),
    "report": ("report", "one HTML page on stored runs: tables, figures, commands; no network"),
    "watch": ("watch", "the same page live, while runs go on: progress, figures, studies"),
    "compare": ("compare", "two sets of runs side by side, paired by seed, with an interval"),
    "keep": ("keep", "keep the results of finished runs, as small files under results/"),
    "paper": ("paper", "the paper's tables with our numbers, and its figures, made where missing"),
    "serve": ("serve", "a saved learner behind HTTP: predict, learn, metrics, rollback"),
    "methods": ("listing", "list the methods"),
    "benchmarks": ("listing", "list the benchmarks"),
    "data": ("data", "which data sets are complete and genuine; how to get the others"),
}
"""The module of each command, and a line about it."""

FAILED, WRONG_CALL = 1, 2

CUDA_DEFAULTS = {
    # Streams that share a hardware queue wait for each other; there are 8 queues by default.
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    # Every stream of every CUDA graph has a workspace, of 32 MiB by default.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:2:16:8",
}
"""Environment variables that CUDA reads when it starts; those of the user take precedence."""


def usage() -> str:
    """The text of ``ocar --help``."""
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  ocar {name:{width}}  {about}" for name, (_, about) in COMMANDS.items())
    return (
        "usage: ocar COMMAND [OPTIONS]\n\n"
        "Online continual learning with curvature-aware replay.\n\n"
        f"{commands}\n\n"
        "  --help           this text; after a command, its options\n"
        "  --version        the version\n"
        "  --plugin MODULE  with a command: import a module that registers names of its own\n"
        "  --debug          with a command: the whole traceback of an error\n\n"
        "To begin: ocar demo\n"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; ``argv`` is by default that of the process."""
    for name, value in CUDA_DEFAULTS.items():
        os.environ.setdefault(name, value)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as in `ocar run ... >&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # ± in a terminal without Unicode
            stream.reconfigure(errors="replace")
    given = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in given
    try:
        _require_working_directory()
        arguments = take_plugins([word for word in given if word != "--debug"])
        return _dispatch(arguments, debug=debug)
    except SystemExit as ending:  # tyro ends so after its help
        return int(ending.code or 0)
    except BrokenPipeError:  # as in `ocar show runs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt:
        print("\nocar: interrupted", file=sys.stderr)  # noqa: T201
        return FAILED
    except Exception as error:  # noqa: BLE001 (the last resort: nobody wants a traceback)
        if debug:
            traceback.print_exc()
        said = printable(_say(error, debug=debug), lines=True)
        print(f"ocar: {said}", file=sys.stderr)  # noqa: T201
        return WRONG_CALL if isinstance(error, ConfigError) else FAILED


def _require_working_directory() -> None:
    """Raise if it was removed: libraries below PyTorch would end the process."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise OcarError("The working directory was removed. Change to another one.") from None


def _dispatch(arguments: list[str], *, debug: bool) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        sys.stdout.write(usage())
        return 0 if arguments else WRONG_CALL
    if arguments[0] in ("-V", "--version", "version"):
        sys.stdout.write(f"ocar {__version__}\n")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        raise unknown("command", name, COMMANDS)
    if name == "serve":  # its image has no tables
        require_packages("A service", "tyro", "rich", extra="serve")
    else:
        require_packages("The command line", "tyro", "rich", "polars", "scipy", extra="cli")
    module = importlib.import_module(f"ocar_lab.cli.{COMMANDS[name][0]}")
    code: int = module.main(name, rest, debug=debug)
    sys.stdout.flush()
    return code


def _say(error: Exception, *, debug: bool) -> str:
    text = str(error).strip()
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}."
    if isinstance(error, (OcarError, OSError)) and text:
        return text
    hint = "" if debug else "\n      This is a bug; --debug shows where."
    return f"{type(error).__name__}: {text}{hint}"

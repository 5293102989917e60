"""``ocar watch``: the page of ``ocar report``, live."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ocar.errors import RunError
from ocar_lab.cli.arguments import parse
from ocar_lab.cli.tables import print_text
from ocar_lab.optional import require_packages
from ocar_lab.report.live import LOOPBACK, Server
from ocar_lab.runs.find import HOW_TO_RUN

USUAL = (Path("runs"), Path("studies"))
"""Where ocar run and ocar tune write."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Watch runs and studies in the browser while they go on.

    The page lists running runs with their progress and time left, finished and failed runs, and
    has the figures of ocar report, which writes the same page as a file. The command only reads
    the folders. It listens on this machine only, unless --host says otherwise. Ctrl-C ends it.
    """

    folders: tuple[Path, ...]
    """Folders that contain runs, kept results or studies, at any depth; runs and studies by
    default."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 lets other machines read the page, without a password."""

    port: int = 8765
    """Port; 0 takes a free one."""


def main(command: str, arguments: list[str], *, debug: bool) -> int:
    """Serve the page until Ctrl-C."""
    options = parse(Options, arguments, command=f"ocar {command}")
    require_packages("Watching", "plotly", "jinja2", extra="report")
    for folder in options.folders:
        if not folder.is_dir():
            raise RunError(f"There is no folder {folder}. {HOW_TO_RUN}")
    folders = options.folders or USUAL
    with (
        suppress(KeyboardInterrupt),
        Server(folders, host=options.host, port=options.port) as server,
    ):
        if options.host not in LOOPBACK:
            sys.stderr.write(
                f"ocar: --host {options.host} lets other machines read the page: paths, settings "
                "and commands of the runs, without a password.\n"
            )
        host = f"[{options.host}]" if ":" in options.host else options.host
        names = ", ".join(map(str, folders))
        print_text(f"Watching {names} on http://{host}:{server.server_port} (Ctrl-C ends it)")
        sys.stdout.flush()
        server.serve_forever()
    return 0

"""Run the commands of ``docs/first-hour.md`` in a fresh clone, and write down what they print.

    python docs/_tools/first_hour.py

``make run`` makes the environment of the clone; the tests run the rest in theirs. A ``console``
block holds commands, each after ``$``, and what they print. All of them run in order in one shell.
A ``python`` block whose first line is a comment with the name of a file is that file.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "first-hour.md"
BLOCK = re.compile(r"(?ms)^```(console|python)\n(.*?)^```")
MARK = "--- end of a command ---"
INSTALL = "pip install"
"""How commands begin that only an environment of their own can run."""

MADE = "make run", ".venv/bin/ocar demo\n"
"""It installs, then says that it calls this command, which every environment can run."""

NOT_OURS = re.compile(r"(?m)^(WARNING: |\[notice\] ).*\n")
"""What pip says of itself and of its index."""


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """The kind and the text of each block."""
    for found in BLOCK.finditer(page):
        yield found[1], found[2]


def parse(block: str) -> list[tuple[str, str]]:
    """The commands of a console block, each with what it prints."""
    _, *parts = re.split(r"(?m)^\$ ", block)
    pairs = [part.partition("\n") for part in parts]
    return [(command, printed) for command, _, printed in pairs]


def shape(printed: str) -> list[str]:
    """What two runs of a command have in common: the words of each line, in any order of lines.

    Numbers differ, and with them the stars of intervals without 0.
    """
    text = re.sub(r"(?m)^\* .*", "", re.sub(r"\S*\d\S*", "0", printed))
    return sorted({" ".join(line.replace("*", "").split()) for line in text.splitlines()})


class Shell:
    """A shell in a folder, which runs one command after another.

    Args:
        folder: Where it starts.
        path: A folder with programs, before those of the environment.
    """

    def __init__(self, folder: Path, path: Path) -> None:
        given = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "OCAR_"))}
        plain = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            ["bash"],
            cwd=folder,
            env={**given, **plain, "PATH": f"{path}{os.pathsep}{os.environ['PATH']}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command: str) -> str:
        """What a command prints, errors included."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{command}\necho '{MARK}'\n")
        self.process.stdin.flush()
        printed = ""
        for line in self.process.stdout:
            printed += line
            if printed.endswith(f"{MARK}\n"):
                said = printed.removesuffix(f"{MARK}\n")
                return said if said.endswith("\n") or not said else f"{said}\n"
        raise ChildProcessError(f"The shell ended in: {command}\n{printed}")

    def close(self) -> None:
        """End it and what it has started."""
        self.process.communicate("kill $(jobs -p) 2>/dev/null; wait\n")


def run_page(page: str, *, new: bool) -> Iterator[tuple[str, str, str]]:
    """Each command of the page, what the page says that it prints, and what it prints.

    Without a ``new`` environment nothing is installed, and the folder is empty.
    """
    with tempfile.TemporaryDirectory() as folder:
        clone, path = Path(folder) / "ocar", Path(sys.executable).parent
        if new:
            subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
            path = clone / ".venv" / "bin"
        clone.mkdir(exist_ok=True)
        shell = Shell(clone, path)
        try:
            for kind, text in blocks(page):
                if kind == "python":
                    name = text.partition("\n")[0].removeprefix("# ")
                    (clone / name).write_text(text, encoding="utf-8")
                    continue
                for command, printed in parse(text):
                    asked = command
                    if not new and command == MADE[0]:
                        asked, printed = "ocar demo", printed.partition(MADE[1])[2]
                    if new or not command.startswith(INSTALL):
                        said = shell.run(asked).replace(str(clone), "…/ocar")
                        yield command, printed, NOT_OURS.sub("", said)
        finally:
            shell.close()


def main() -> None:
    """Run, write."""
    rest, done = PAGE.read_text(encoding="utf-8"), ""
    for command, printed, said in run_page(rest, new=True):
        print(f"$ {command}\n{said}", flush=True)
        before, asked, rest = rest.partition(f"$ {command}\n")
        done += before + asked + said
        rest = rest.removeprefix(printed)
    PAGE.write_text(done + rest, encoding="utf-8")


if __name__ == "__main__":
    main()

"""Feed a stream to ``ocar serve``: JSON lines from a file or from standard input.

    python examples/serve_consumer.py samples.jsonl [--url http://localhost:8000] [--batch 10]
    tail -f samples.jsonl | python examples/serve_consumer.py - --name sensor-7

A line is one sample: {"x": [0, 0, 75, ...], "y": 7}. Lines become batches, each with a key. A batch
without an answer is sent again with its key, and learned once. After a file ``samples.jsonl`` the
number of acknowledged lines is in ``samples.jsonl.position``; a second start goes on there. The
token is read from OCAR_TOKEN.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ocar.files import write_whole

PAUSES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds between tries; the last is repeated."""

LATER = (429, 503)
"""Answers to which the same batch may be sent again."""


def consume(
    lines: Iterable[str], *, url: str, name: str, batch: int, first: int = 0
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Send all lines but the first ones; the lines acknowledged so far, and the answer."""
    numbered = itertools.islice(enumerate(lines), first, None)
    while rows := list(itertools.islice(numbered, batch)):
        samples = [read(number, line) for number, line in rows]
        lesson = {
            "x": [sample["x"] for sample in samples],
            "y": [sample["y"] for sample in samples],
            "key": f"{name}-{rows[0][0]}-{len(rows)}",
        }
        yield rows[-1][0] + 1, send(f"{url}/learn", lesson)


def read(number: int, line: str) -> dict[str, Any]:
    """One sample."""
    try:
        sample = json.loads(line)
        return {"x": sample["x"], "y": sample["y"]}
    except (ValueError, KeyError, TypeError) as error:
        raise SystemExit(f'Line {number + 1} is not {{"x": ..., "y": ...}}: {error}') from error


def send(url: str, content: object) -> dict[str, Any]:
    """Post until there is an answer; an answer that says no ends the program."""
    headers = {"Content-Type": "application/json"}
    if token := os.environ.get("OCAR_TOKEN", ""):
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(url, json.dumps(content).encode(), headers)
    for pause in itertools.chain(PAUSES, itertools.repeat(PAUSES[-1])):
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                said: dict[str, Any] = json.load(answer)
                return said
        except urllib.error.HTTPError as error:
            if error.code not in LATER:
                raise SystemExit(f"{error.code}: {error.read().decode()}") from error
        except OSError:  # the service is starting, or was killed before it could answer
            pass
        time.sleep(pause)
    raise AssertionError


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", help="JSON lines, or - for standard input")
    parser.add_argument("--url", default="http://localhost:8000")
    parser.add_argument("--batch", type=int, default=10, help="samples a batch")
    parser.add_argument("--name", default="", help="begin of the keys; by default the file's name")
    given = parser.parse_args()
    path = None if given.file == "-" else Path(given.file)
    if path is not None and not path.exists():
        parser.error(f"there is no file {path}")
    position = None if path is None else path.with_name(f"{path.name}.position")
    first = int(position.read_text()) if position is not None and position.exists() else 0
    name = given.name or ("stdin" if path is None else path.name)
    name = re.sub("[^!-~]", "_", name)[:40]  # what a key may hold
    with sys.stdin if path is None else path.open(encoding="utf-8") as lines:
        for done, answer in consume(
            lines, url=given.url, name=name, batch=given.batch, first=first
        ):
            if position is not None:
                write_whole(position, str(done).encode())
            again = ", which it had" if answer["repeated"] else ""
            print(f"{done} lines, batch {answer['number']}{again}", flush=True)


if __name__ == "__main__":
    main()

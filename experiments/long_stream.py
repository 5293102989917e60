"""Does a learner that never stops stay as it was: as small, as fast, and with bounded files?

    python experiments/long_stream.py --batches 1000000 --method er --no-guard
    python experiments/long_stream.py --batches 200000 --method ocar

A small network learns eight classes in eight dimensions in one process. Three classes are there at
a time and take turns, and their centres move from task to task. It is evaluated after every
tenth batch and saved as often as ``ocar run`` saves. A hundred times on the way it looks at the
memory of the process, its time, its objects and its files; at the end it computes the metrics once
more, from every evaluation, and compares.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

import ocar
from ocar import metrics
from ocar.events import Finished, Summary
from ocar.streams.base import Labelled, StreamBatch, check_task, read_position
from ocar_lab.experiment import Recorded, Saved, Session
from ocar_lab.runs import RunFolder
from ocar_lab.runs.provenance import describe_device, now, versions

CLASSES, PRESENT, FEATURES, BATCH, TASKS = 8, 3, 8, 10, 4
STAY = 500
"""Batches until a class leaves and another comes."""
HELD_OUT = 50
"""Samples of each task to evaluate on."""
EVERY, LOOKS = 10, 100
WARM_UP = 0.2
"""Part of the stream that does not count: until all evaluations are no longer kept."""


class Turning:
    """Classes that come and go for ever; batches are made when they are asked for.

    Args:
        batches: How many there are in all.
    """

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self.position = 0
        self.tasks = TASKS
        generator = torch.Generator().manual_seed(1)
        self.centres = 2 * torch.randn(TASKS, CLASSES, FEATURES, generator=generator)

    def __length_hint__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[StreamBatch]:
        """The batches that are left; each depends on its place alone."""
        generator = torch.Generator()
        ends = [self.batches * (task + 1) // TASKS for task in range(TASKS)]
        while self.position < self.batches:
            index = self.position
            task = next(task for task, end in enumerate(ends) if index < end)
            generator.manual_seed(index)
            y = torch.randint(PRESENT, (BATCH,), generator=generator) + index // STAY
            y %= CLASSES
            x = self.centres[task, y] + torch.randn(BATCH, FEATURES, generator=generator)
            self.position += 1
            yield StreamBatch(
                x=x, y=y, task=task, index=index, complete=True, last=self.position == ends[task]
            )

    def training(self, task: int) -> Labelled:
        """Nothing is kept to be given again."""
        check_task(task, TASKS)
        return torch.empty(0, FEATURES), torch.empty(0, dtype=torch.int64)

    def validation(self, task: int) -> Labelled:
        """Samples of all classes of a task."""
        return self._sample(task, seed=2)

    def test(self, task: int) -> Labelled:
        """Others."""
        return self._sample(task, seed=3)

    def state_dict(self) -> dict[str, int]:
        """Where it stands."""
        return {"position": self.position}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to where another stood."""
        self.position = read_position(state, length=self.batches)

    def _sample(self, task: int, *, seed: int) -> Labelled:
        generator = torch.Generator().manual_seed(1000 * seed + task)
        y = torch.arange(HELD_OUT) % CLASSES
        return self.centres[task, y] + torch.randn(HELD_OUT, FEATURES, generator=generator), y


def make_learner(method: str, *, guard: bool) -> ocar.Learner:
    """A learner with a network 8-16-16."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, 16))
    settings: dict[str, Any] = {"lr": 0.01, "memory": 100, "passes": 1}
    if method == "ocar":
        settings |= {"tau_step": 1e-8, "ema": 0.1}
    if not guard:
        settings["guard"] = None
    return ocar.make_learner(method, model, **settings)


class Watch:
    """Looks at the process a hundred times on the way."""

    def __init__(self, folder: Path, batches: int) -> None:
        self.folder = folder
        self.step = max(1, batches // LOOKS)
        self.looks: list[dict[str, float]] = []
        self.saving = 0.0
        self._since = (0, time.process_time(), time.perf_counter())

    def pass_by(self, done: int) -> None:
        """Look, if it is time to."""
        if done % self.step:
            return
        before, processed, begun = self._since
        count = done - before
        used, passed = time.process_time() - processed, time.perf_counter() - begun
        gc.collect()
        self.looks.append(
            {
                "batch": done,
                "resident_mb": round(_resident() / 1e6, 3),
                "cpu_ms_a_batch": round(1e3 * used / count, 4),
                "wall_ms_a_batch": round(1e3 * passed / count, 4),
                "objects": len(gc.get_objects()),
                "files_mb": round(_size(self.folder) / 1e6, 3),
            }
        )
        print(json.dumps(self.looks[-1]), flush=True)
        self._since = (done, time.process_time(), time.perf_counter())


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def learn(method: str, batches: int, folder: Path, *, guard: bool) -> dict[str, Any]:
    """Learn the stream, and say how it went."""
    torch.set_num_threads(1)
    watch = Watch(folder, batches)
    # Made and touched before the first look, so that it does not count as growth.
    correct: npt.NDArray[np.int32] = np.full((batches // EVERY + TASKS, TASKS), -1, dtype=np.int32)
    count, begun = 0, time.perf_counter()
    with RunFolder(folder) as entered:
        learner = make_learner(method, guard=guard)
        session = Session(entered, learner=learner, stream=Turning(batches), every=EVERY)
        if session.position:
            sys.exit(f"{folder} has a run in it: what went before cannot be looked at. Remove it.")
        for event in session.events(lambda: False):
            if isinstance(event, Recorded):
                row = event.evaluated.correct
                correct[count, : len(row)] = row
                count += 1
                watch.pass_by(event.evaluated.index + 1)
            elif isinstance(event, Saved):
                watch.saving += event.seconds
            elif isinstance(event, Finished):
                seconds = time.perf_counter() - begun
                summary = event.summary
    lines = (folder / "metrics.jsonl").read_bytes().count(b"\n")
    return {
        "method": method,
        "batches": batches,
        "guard": guard,
        "seconds": round(seconds, 1),
        "seconds_saving": round(watch.saving, 2),
        "evaluations": count,
        "lines_of_metrics": lines,
        "growth_after_warm_up": _changes(watch.looks),
        "largest_difference_to_metrics_of_all_evaluations": _check(correct[:count], summary),
        "summary": dataclasses.asdict(summary),
        "looks": watch.looks,
    }


def _changes(looks: list[dict[str, float]]) -> dict[str, float]:
    """Last tenth over the first tenth after the warm-up, less 1."""
    later = looks[int(WARM_UP * len(looks)) :]
    tenth = max(1, len(later) // 10)

    def change(name: str) -> float:
        first, last = later[:tenth], later[-tenth:]
        return round(sum(x[name] for x in last) / sum(x[name] for x in first) - 1, 5)

    return {name: change(name) for name in ("resident_mb", "cpu_ms_a_batch", "objects", "files_mb")}


def _check(correct: npt.NDArray[np.int32], summary: Summary) -> float:
    """How far the metrics are from those computed from every evaluation."""
    history = np.where(correct < 0, np.nan, correct / HELD_OUT)
    gaps = metrics.stability_gaps(history)
    whole = {
        "aaa": metrics.average_anytime_accuracy(history),
        "wc_acc": metrics.worst_case_accuracy(history),
        "forgetting": metrics.first_task_forgetting(history),
        "forgetting_mean": metrics.mean_forgetting(history),
        "plasticity": metrics.last_task_accuracy(history),
        "stability_gap": metrics.mean_gap(gaps),
        "recovery": metrics.mean_recovery(gaps),
    }
    return max(abs(value - getattr(summary, name)) for name, value in whole.items())


def main() -> None:
    """Learn, and add the result to a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=1_000_000)
    parser.add_argument("--method", choices=("er", "ocar"), default="er")
    parser.add_argument("--no-guard", action="store_true", help="the method alone, twice as fast")
    parser.add_argument("--out", type=Path, default=Path("build/long-stream"), help="run folder")
    parser.add_argument("--save", type=Path, default=Path("results/reliability/long-stream.json"))
    args = parser.parse_args()
    name, guard = f"{args.method}-{args.batches}", not args.no_guard
    result = learn(args.method, args.batches, args.out / name, guard=guard)
    words = ["--batches", str(args.batches), "--method", args.method]
    words += ["--no-guard"] if args.no_guard else []
    result |= {
        "command": shlex.join(["python", "experiments/long_stream.py", *words]),
        "device": describe_device(torch.device("cpu")) | {"cores": os.cpu_count()},
        "system": platform.system(),
        "versions": versions(),
        "time": now(),
    }
    args.save.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(args.save.read_text()) if args.save.exists() else []
    others = [old for old in known if old["command"] != result["command"]]
    args.save.write_text(json.dumps([*others, result], indent=1) + "\n")
    print(json.dumps({k: v for k, v in result.items() if k != "looks"}, indent=1))


if __name__ == "__main__":
    main()

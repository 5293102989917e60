"""Run the targets: ``python -m fuzz [TARGET ...] [--count N] [--seed S]``, in ``tests``."""

from __future__ import annotations

import argparse
import json
import mmap
import os
import signal
import struct
import sys
import tempfile
import time
import traceback
from pathlib import Path
from random import Random

from fuzz.guard import SECONDS, Guard
from fuzz.targets import TARGETS, make_target
from ocar_lab.runs.provenance import now, versions

_STATE = struct.Struct("<QQQ")  # the current input; refused and accepted inputs before it


def make_input(name: str, folder: Path, seed: int, number: int) -> bytes:
    """The input of a number."""
    return make_target(name, folder).make(_random(name, seed, number))


def _random(name: str, seed: int, number: int) -> Random:
    return Random(f"{seed}/{name}/{number}")


class Campaign:
    """Many inputs for one target, in a process that is restarted if it dies.

    Args:
        name: The target.
        count: How many inputs.
        seed: Decides the inputs.
        out: Folder for failing inputs.
        most: Failures after which to give up.
        seconds: Time after which to stop; 0 for none.
    """

    def __init__(
        self, name: str, *, count: int, seed: int, out: Path, most: int, seconds: float
    ) -> None:
        self.name, self.count, self.seed = name, count, seed
        self.out, self.most = out, most
        self.stop_at = time.monotonic() + seconds if seconds else float("inf")
        self.state = mmap.mmap(-1, _STATE.size)
        self.failures: list[dict[str, object]] = []
        self.tried = self.refused = self.accepted = 0
        self.took = 0.0

    def run(self) -> None:
        """Try all inputs."""
        begun = time.monotonic()
        self._run()
        self.took = time.monotonic() - begun

    def counts(self) -> dict[str, object]:
        """Counts of the outcomes."""
        names = ("tried", "refused", "accepted", "failures")
        return {"target": self.name, **{name: getattr(self, name) for name in names}}

    def _run(self) -> None:
        where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        with tempfile.TemporaryDirectory(prefix="ocar-fuzz-", dir=where) as folder:
            start = 0
            while start < self.count and len(self.failures) < self.most:
                start = self._stretch(Path(folder), start)
                self._collect(Path(folder))
                if time.monotonic() > self.stop_at:
                    break

    def _stretch(self, folder: Path, start: int) -> int:
        """Let a process try inputs until it is done or dies; returns the next number."""
        self.state[:] = _STATE.pack(start, 0, 0)
        pid = os.fork()
        if not pid:
            code = 1
            try:
                self._work(folder, start)
                code = 0
            except BaseException:  # noqa: BLE001 a forked process must not return to the caller
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        status, killed = self._wait(pid)
        reached, refused, accepted = _STATE.unpack(self.state[:])
        self.refused += refused
        self.accepted += accepted
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
            self.tried += reached - start
            return reached
        self.tried += reached - start + 1
        if os.WIFEXITED(status):
            why = "the harness failed, see above"
            self.most = 0
        else:
            why = f"signal {signal.Signals(os.WTERMSIG(status)).name}"
        if killed:
            why = f"it could not be stopped after {SECONDS} s"
        inside = folder / "again"
        inside.mkdir(exist_ok=True)
        data = make_input(self.name, inside, self.seed, reached)
        self._fail(reached, why, data)
        return reached + 1

    def _wait(self, pid: int) -> tuple[int, bool]:
        """Wait for a process; kill it if an input takes too long."""
        last, since, killed = -1, time.monotonic(), False
        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return status, killed
            now = _STATE.unpack(self.state[:])[0]
            if now != last:
                last, since = now, time.monotonic()
            elif time.monotonic() - since > 6 * SECONDS and not killed:
                os.kill(pid, signal.SIGKILL)
                killed = True
            time.sleep(0.02)

    def _work(self, folder: Path, start: int) -> None:
        inside = folder / "inside"
        inside.mkdir(exist_ok=True)
        target = make_target(self.name, inside)
        guard = Guard(inside, base=target.base, factor=target.factor)
        for seed in target.seeds:  # imports and other one-time allocations do not count
            accepted, wrong = guard.call(target.read, seed)
            if start == 0 and (wrong or not accepted):
                raise AssertionError(f"{self.name}: a valid file is refused. {wrong}")
        refused = taken = failed = 0
        for number in range(start, self.count):
            data = target.make(_random(self.name, self.seed, number))
            accepted, wrong = guard.call(target.read, data)
            if wrong:
                failed += 1
                (folder / f"failed-{number}").write_bytes(data)
                (folder / f"why-{number}").write_text(wrong, errors="replace")
            elif accepted:
                taken += 1
            else:
                refused += 1
            self.state[:] = _STATE.pack(number + 1, refused, taken)
            if failed >= self.most or time.monotonic() > self.stop_at:
                return

    def _collect(self, folder: Path) -> None:
        for path in sorted(folder.glob("why-*")):
            number = int(path.name.removeprefix("why-"))
            self._fail(number, path.read_text(), (folder / f"failed-{number}").read_bytes())
            path.unlink()

    def _fail(self, number: int, why: str, data: bytes) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        path = self.out / f"{self.name}-{self.seed}-{number}"
        path.write_bytes(data)
        self.failures.append({"number": number, "why": why, "path": str(path)})


def save_counts(
    path: Path, key: str, counts: dict[str, object], *, seed: int, took: float, command: str
) -> None:
    """Write the counts of a target to a file, replacing its earlier ones."""
    known = json.loads(path.read_text()) if path.exists() else {}
    known[key] = {
        **counts,
        "seed": seed,
        "seconds": round(took, 1),
        "command": command,
        "versions": versions(),
        "time": now(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(known, indent=1) + "\n")


def main() -> int:
    """Run the named targets."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", help="by default all", metavar="TARGET")
    parser.add_argument("--count", type=int, default=100_000, help="inputs for each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0, help="most for each target; 0: no end")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"), help="for failing inputs")
    parser.add_argument("--most", type=int, default=20, help="failures after which to give up")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--save", type=Path, help="file to add the counts to, target by target")
    args = parser.parse_args()
    names = args.targets or list(TARGETS)
    if unknown := set(names) - set(TARGETS):
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    failed = False
    if not args.json:
        print(f"{'target':<12}{'tried':>9}{'refused':>9}{'accepted':>9}{'failures':>9}{'s':>7}")
    for name in names:
        campaign = Campaign(
            name,
            count=args.count,
            seed=args.seed,
            out=args.out,
            most=args.most,
            seconds=args.seconds,
        )
        campaign.run()
        failed = failed or bool(campaign.failures)
        if args.save is not None:
            command = f"make fuzz TARGETS={name} COUNT={args.count} SEED={args.seed}"
            counts = campaign.counts()
            save_counts(
                args.save, name, counts, seed=args.seed, took=campaign.took, command=command
            )
        if args.json:
            print(json.dumps(campaign.counts()), flush=True)
            continue
        numbers = (campaign.tried, campaign.refused, campaign.accepted, len(campaign.failures))
        line = "".join(f"{number:>9,}" for number in numbers)
        print(f"{name:<12}{line}{campaign.took:>7.0f}", flush=True)
        for failure in campaign.failures:
            print(f"  {failure['path']}: {failure['why']}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

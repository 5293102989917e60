"""The same readers under atheris, whose inputs are guided by coverage.

``python -m fuzz.guided TARGET [--count N] [--seed S]``, in ``tests``. atheris is no dependency: it
is built with Clang, by ``make fuzz-guided``. A failing input is saved, and ends the target.
"""

from __future__ import annotations

import argparse
import mmap
import os
import struct
import sys
import tempfile
import time
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(include=["ocar"]):
    from fuzz.__main__ import save_counts
    from fuzz.guard import Guard
    from fuzz.targets import TARGETS, make_target

_COUNTS = struct.Struct("<QQQ")  # tried, refused, accepted
LONGEST = 1 << 16
"""Most bytes of an input, unless a valid file is longer."""


def work(name: str, folder: Path, out: Path, counts: mmap.mmap, *, count: int, seed: int) -> None:
    """Feed a target; the process ends here."""
    inside, corpus = folder / "inside", folder / "corpus"
    inside.mkdir()
    corpus.mkdir()
    target = make_target(name, inside)
    for number, data in enumerate(target.seeds):
        (corpus / str(number)).write_bytes(data)
    guard = Guard(inside, base=target.base, factor=target.factor)
    for data in target.seeds:  # imports and other one-time allocations do not count
        guard.call(target.read, data)
    so_far = [0, 0, 0]

    def feed(data: bytes) -> None:
        accepted, wrong = guard.call(target.read, data)
        if wrong:
            out.mkdir(parents=True, exist_ok=True)
            path = out / f"{name}-{seed}-{so_far[0]}"
            path.write_bytes(data)
            (folder / "why").write_text(f"{path}: {wrong}", errors="replace")
            os._exit(1)
        so_far[0] += 1
        so_far[2 if accepted else 1] += 1
        counts[:] = _COUNTS.pack(*so_far)

    def mutate(data: bytes, longest: int, draw: int) -> bytes:
        rng = Random(draw)
        if target.mutators and rng.random() < 0.5:
            try:
                return rng.choice(target.mutators)(data, rng)[:longest]
            except Exception:  # noqa: BLE001 a corrupted file may not parse
                pass
        mutated: bytes = atheris.Mutate(data, longest)
        return mutated

    longest = max(LONGEST, *map(len, target.seeds))
    arguments = [f"-runs={count}", f"-seed={seed + 1}", f"-max_len={longest}", "-timeout=0"]
    atheris.Setup(
        ["fuzz", *arguments, "-rss_limit_mb=0", "-verbosity=0", str(corpus)],
        feed,
        custom_mutator=mutate,
    )
    atheris.Fuzz()


def run(name: str, *, count: int, seed: int, out: Path) -> tuple[tuple[int, ...], str, float]:
    """Feed one target: the counts, what went wrong, and the seconds."""
    counts, begun = mmap.mmap(-1, _COUNTS.size), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ocar-fuzz-") as folder:
        pid = os.fork()
        if not pid:
            work(name, Path(folder), out, counts, count=count, seed=seed)
            os._exit(2)
        _, status = os.waitpid(pid, 0)
        why = Path(folder) / "why"
        wrong = why.read_text() if why.exists() else "" if status == 0 else f"status {status}"
    return _COUNTS.unpack(counts[:]), wrong, time.monotonic() - begun


def main() -> int:
    """Run the named targets."""
    parser = argparse.ArgumentParser(prog="fuzz.guided", description=__doc__)
    parser.add_argument("targets", nargs="*", help="by default all", metavar="TARGET")
    parser.add_argument("--count", type=int, default=100_000, help="inputs for each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"), help="for failing inputs")
    parser.add_argument("--save", type=Path, help="file to add the counts to, target by target")
    args = parser.parse_args()
    failed = False
    print(f"{'target':<12}{'tried':>9}{'refused':>9}{'accepted':>9}{'s':>7}", flush=True)
    for name in args.targets or TARGETS:
        counts, wrong, took = run(name, count=args.count, seed=args.seed, out=args.out)
        failed = failed or bool(wrong)
        print(f"{name:<12}{''.join(f'{n:>9,}' for n in counts)}{took:>7.0f}  {wrong}", flush=True)
        if args.save is not None:
            command = f"make fuzz-guided TARGETS={name} COUNT={args.count} SEED={args.seed}"
            document = {
                "target": name,
                **dict(zip(("tried", "refused", "accepted"), counts, strict=True)),
                "failures": [wrong] if wrong else [],
            }
            save_counts(
                args.save, f"{name}, guided", document, seed=args.seed, took=took, command=command
            )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

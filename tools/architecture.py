"""Check that only ``ocar.accel`` knows devices, memory layouts, CUDA graphs and kernels.

There is no list of exceptions: what needs such a word belongs into ``src/ocar/accel``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("src/ocar", "src/ocar_lab")
ACCEL = ROOT / "src/ocar/accel"
WORDS = re.compile(
    r"torch\.cuda|\bis_cuda\b|\bis_cpu\b|is_capturing|is_current_stream_capturing|data_ptr"
    r"|channels_last|\bimport triton|\bfrom triton|accel\.triton|accel import triton"
)


def offences(root: Path = ROOT) -> list[str]:
    """Every line outside accel with such a word, as ``path:line: text``."""
    found = []
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            if path.is_relative_to(root / ACCEL.relative_to(ROOT)):
                continue
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
                if WORDS.search(line):
                    found.append(f"{path.relative_to(root)}:{number}: {line.strip()}")
    return found


def main() -> int:
    """Print the offences; the exit status says whether there are any."""
    found = offences()
    for line in found:
        print(line)
    if found:
        print(f"{len(found)} line(s) know a device, a layout or a kernel: move them to ocar.accel.")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())

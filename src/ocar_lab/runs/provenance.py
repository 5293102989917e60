"""What made a run: versions, device, revision of the source, command."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ocar.version import __version__

if TYPE_CHECKING:  # whoever only reads runs does not wait for PyTorch
    import torch

PACKAGES = ("numpy", "safetensors", "Pillow", "scikit-learn")


def describe_process(device: torch.device) -> dict[str, Any]:
    """What a run folder says of the process that writes it."""
    return {
        "versions": versions(),
        "device": describe_device(device),
        "git": source_revision(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "time": now(),
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide the numbers, where installed."""
    import torch

    found = {"ocar": __version__, "python": platform.python_version(), "torch": torch.__version__}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def describe_device(device: torch.device) -> dict[str, str]:
    """Kind and name of a device."""
    if device.type == "cuda":
        import torch

        return {"type": "cuda", "name": torch.cuda.get_device_name(device)}
    return {"type": device.type, "name": _processor(), "machine": platform.machine()}


def device_names(processes: Iterable[Mapping[str, Any]]) -> str:
    """What some processes computed on, each device once; the kind of machine if it has no name.

    Args:
        processes: What :func:`describe_process` said of each.
    """
    devices = [process.get("device", {}) for process in processes]
    names = [d.get("name") or d.get("machine") or d.get("type") for d in devices]
    return ", ".join(dict.fromkeys(name for name in names if name))


def were_alone(processes: Iterable[Mapping[str, Any]]) -> bool:
    """Whether all processes that worked on a run say that they did no other at the same time.

    Args:
        processes: What each said of itself.
    """
    return all(process.get("beside") == 0 for process in processes)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def source_revision() -> dict[str, Any] | None:
    """Revision of the checkout that this package runs from; None where it is not in one."""
    package = Path(__file__).resolve().parents[1]
    # A package installed inside somebody's checkout is not part of it.
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    revision = _git(package, "rev-parse", "HEAD")
    changes = _git(package, "status", "--porcelain", "--untracked-files=no")
    return None if revision is None else {"revision": revision, "changed": bool(changes)}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        ended = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ended.stdout.strip() if ended.returncode == 0 else None


def now() -> str:
    """The time, in UTC, as ISO 8601 to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")

"""Where a run comes from: versions, device, revision of the source, command."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ocar.config import CUSTOM
from ocar.version import __version__

if TYPE_CHECKING:  # commands that only read runs do not import PyTorch
    import torch

PACKAGES = ("numpy", "safetensors", "Pillow", "scikit-learn")


_SESSION: dict[str, Any] = {
    "versions": dict,
    "device": dict,
    "git": (dict, type(None)),
    "command": (list, str),
    "time": str,
    "beside": (int, type(None)),
    "batch": int,
}


def describe_process(device: torch.device) -> dict[str, Any]:
    """Describe this process for the run folder that it writes."""
    return {
        "versions": versions(),
        "device": describe_device(device),
        "git": source_revision(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "time": now(),
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the installed packages that influence the numbers."""
    import torch

    found = {"ocar": __version__, "python": platform.python_version(), "torch": torch.__version__}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def describe_device(device: torch.device) -> dict[str, str]:
    """Type and name of a device."""
    if device.type == "cuda":
        from ocar import accel

        return {"type": "cuda", "name": str(accel.gpu_name(device))}
    return {"type": device.type, "name": _processor(), "machine": platform.machine()}


def is_session(value: Any) -> bool:
    """Whether a value from a file describes a process as :func:`describe_process` does."""
    if not isinstance(value, dict):
        return False
    if not all(isinstance(value[name], kind) for name, kind in _SESSION.items() if name in value):
        return False
    texts = [*value.get("versions", {}).values(), *value.get("device", {}).values()]
    return is_time(value.get("time")) and all(
        isinstance(text, str) for text in (*texts, *value.get("command", ()))
    )


def is_time(value: Any) -> bool:
    """Whether a value is a time as :func:`now` gives it, or None."""
    try:
        return value is None or bool(datetime.datetime.fromisoformat(value).tzinfo)
    except (TypeError, ValueError):
        return False


def differences(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """The values that differ, in words; functions of one's own cannot be compared."""
    said = []
    for name in dict.fromkeys([*stored, *wanted]):
        one, other = stored.get(name), wanted.get(name)
        if isinstance(one, dict) and isinstance(other, dict):
            if not one.get("kind") == other.get("kind") == CUSTOM:
                said += [f"{name}: {text}" for text in differences(one, other)]
        elif one != other:
            said.append(f"{name} is {one} there and {other} here")
    return said


def device_names(sessions: Iterable[Mapping[str, Any]]) -> str:
    """The devices of some sessions, each once; the machine type where a device has no name."""
    devices = [session.get("device", {}) for session in sessions]
    names = [d.get("name") or d.get("machine") or d.get("type") for d in devices]
    return ", ".join(dict.fromkeys(name for name in names if name))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def source_revision() -> dict[str, Any] | None:
    """Revision of the checkout that this package runs from; None outside a checkout."""
    package = Path(__file__).resolve().parents[1]
    # A package installed inside another project's checkout is not part of that checkout.
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    revision = _git(package, "rev-parse", "HEAD")
    changes = _git(package, "status", "--porcelain", "--untracked-files=no")
    return None if revision is None else {"revision": revision, "changed": bool(changes)}


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ended.stdout.strip() if ended.returncode == 0 else None


def now() -> str:
    """The current time in UTC, as ISO 8601 to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")

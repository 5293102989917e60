"""Look for known vulnerabilities in what is installed, if there is a way to ask.

    python tools/audit.py

``pip-audit`` asks a service. Where that cannot be reached, or knows none of the packages, one line
says so, and that is no error: a check must not depend on the network. One package is asked for
first, so that this takes seconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

PROBE_SECONDS, SECONDS = 6, 180


def ask(pins: list[str], seconds: float) -> list[dict[str, Any]] | str:
    """What pip-audit says of some packages, or why it says nothing."""
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "packages.txt"
        listed.write_text("\n".join(pins) + "\n")
        options = ["--no-deps", "--disable-pip", "--progress-spinner=off", "--timeout=3"]
        command = [sys.executable, "-m", "pip_audit", "-r", str(listed), *options, "--format=json"]
        try:
            ended = subprocess.run(
                command, capture_output=True, text=True, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired:
            return f"no answer within {seconds} s"
    try:
        said: list[dict[str, Any]] = json.loads(ended.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        lines = ended.stderr.strip().splitlines()
        return lines[-1][:200] if lines else f"pip-audit ended with {ended.returncode}"
    answered = [package for package in said if "vulns" in package]
    return answered or "the service that it asks knows none of the packages"


def main() -> int:
    """Look at all packages of this environment."""
    found = {p.metadata["Name"]: p.version for p in distributions()}
    # A local build, such as torch's +cpu, is known by its public version.
    pins = [f"{name}=={version.partition('+')[0]}" for name, version in sorted(found.items())]
    pins = [pin for pin in pins if not pin.startswith("ocar==")]
    probe = ask([pin for pin in pins if pin.startswith("numpy==")], PROBE_SECONDS)
    answer = probe if isinstance(probe, str) else ask(pins, SECONDS)
    if isinstance(answer, str):
        print(f"pip-audit: not done, its data cannot be reached ({answer}).")
        return 0
    bad = [(package, vuln) for package in answer for vuln in package["vulns"]]
    for package, vuln in bad:
        fixed = ", ".join(vuln.get("fix_versions", [])) or "none yet"
        line = f"{package['name']} {package['version']}: {vuln['id']}, fixed in {fixed}"
        print(f"pip-audit: {line}", file=sys.stderr)
    print(f"pip-audit: {len(answer)} of {len(pins)} packages looked up, {len(bad)} findings.")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())

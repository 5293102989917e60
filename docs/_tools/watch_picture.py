"""The picture of the live page in the guide, from runs that it makes while it watches them.

    python docs/_tools/watch_picture.py

It runs ER and OCAR on the bundled digits, in a temporary folder, and draws
``docs/guides/watching.png`` by a headless Chromium while the last run goes on.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from ocar_lab.report.live import Server

PICTURE = Path(__file__).resolve().parents[1] / "guides" / "watching.png"
RUN = [sys.executable, "-m", "ocar_lab", "run", "split-digits"]
BEGUN = "document.querySelector('#runs progress')?.value > 0.3"


def photograph(port: int, command: list[str]) -> bytes:
    """The table of runs, two of them side by side, while a command adds another run."""
    with sync_playwright() as driver:
        path = shutil.which("chromium")
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1000, "height": 900})
        page.goto(f"http://127.0.0.1:{port}/")
        page.wait_for_selector("html[data-drawn]")
        page.add_style_tag(content="#pair .scroll { display: none } #runs { padding: 0 8px }")
        page.get_by_label("Side by side: split-digits er, seed 0").check()
        with subprocess.Popen(command):
            page.wait_for_function(BEGUN, timeout=300_000)
            page.get_by_label("Side by side: split-digits ocar, seed 2").check()
            page.wait_for_selector("#pair-figure svg.main-svg")
            picture: bytes = page.locator("#runs").screenshot()
        browser.close()
    return picture


def main() -> None:
    """Make the runs and the picture."""
    with tempfile.TemporaryDirectory() as name:
        runs = Path(name) / "runs"
        how = ["--threads", "1", "--workers", "1", "--out", str(runs)]
        subprocess.run([*RUN, "er", "ocar", "--seeds", "0", "1", *how], check=True)
        with Server([runs], host="127.0.0.1", port=0) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            picture = photograph(server.server_port, [*RUN, "ocar", "--seeds", "2", *how])
            server.shutdown()
    with Image.open(io.BytesIO(picture)) as whole:
        small = whole.convert("RGB").quantize(64, dither=Image.Dither.NONE)
    small.save(PICTURE, optimize=True)
    print(f"{PICTURE.name}: {PICTURE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()

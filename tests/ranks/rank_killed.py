"""One rank of the example, which is killed at a random moment after each of the first starts.

Arguments: how many times, then those of the example.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time

from scripts import load_script

from ocar.learner import Learner


def kill_soon(number: int) -> None:
    """Kill one of the ranks after some of the next batches, anywhere in a batch or a checkpoint."""
    draw = random.Random(number)
    rank, after, delay = draw.randrange(2), draw.randrange(1, 26), draw.random() * 0.05
    learn = Learner.learn
    learned = 0

    def kill() -> None:
        time.sleep(delay)
        os.kill(os.getpid(), signal.SIGKILL)

    def learn_and_count(self, x, y):
        nonlocal learned
        learned += 1
        if learned == after and int(os.environ["RANK"]) == rank:
            threading.Thread(target=kill, daemon=True).start()
        return learn(self, x, y)

    Learner.learn = learn_and_count


def main() -> None:
    kills = int(sys.argv.pop(1))
    started = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    print(f"start {started}", flush=True)
    if started < kills:
        kill_soon(started)
    load_script("examples/ranks.py").main()


if __name__ == "__main__":
    main()

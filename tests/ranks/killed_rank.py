"""A plugin of ``ocar run``: the second rank of the first start is killed before its sixth batch."""

from __future__ import annotations

import os
import signal
from typing import Any

from ocar.learner import Learner

LEARN = Learner.learn


def learn_or_die(self: Learner, x: Any, y: Any) -> Any:
    if os.environ.get("RANK") == "1" and self.batches == 5:
        print("start", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
    return LEARN(self, x, y)


Learner.learn = learn_or_die  # type: ignore[method-assign]

"""One rank of a test: learns the streams of some cases, and saves what came of each.

Arguments: a folder, the number of batches, then cases such as ``"ocar mlp"``.
"""

from __future__ import annotations

import sys
from copy import deepcopy
from pathlib import Path

import torch
from axes import InAxes
from rank_cases import learn, make_learner, make_stream, parse

import ocar


def main() -> None:
    folder, count, *cases = sys.argv[1:]
    torch.set_num_threads(1)
    ocar.register("axes", InAxes)
    groups: dict[str, ocar.Ranks] = {}
    for case in cases:
        method, model, settings = parse(case)
        how = {name: settings.pop(name, False) for name in ("uneven", "forget", "spoil")}
        exports = settings.pop("export", False)
        placed = {
            "memory": "sharded" if settings.pop("sharded", False) else "replicated",
            "batchnorm": "own" if settings.pop("own", False) else "synchronized",
            "inverses": settings.pop("inverses", "replicated"),
            "factor_dtype": settings.pop("factor_dtype", "same"),
        }
        if f"{placed}" not in groups:
            groups[f"{placed}"] = ocar.Ranks(timeout=100, **placed)
        ranks = groups[f"{placed}"]
        learner = make_learner(method, model, ranks, **settings)
        if model == "evaluated":
            (*_, end) = ocar.evaluate(learner, ocar.make_stream("split-digits"), every="task")
            print(f"{case}: accuracy {end.summary.acc:.6f}")
            continue
        stream = make_stream(model, int(count))
        learn(learner, stream[:-1], **how)
        if exports and (ranks.rank == 0 or ranks.memory == "sharded"):
            assert learner.export(Path(folder) / f"{ranks.memory}.{ranks.rank}.pt2") < 1e-9
        before = deepcopy(ranks.traffic)
        learn(learner, stream[-1:], **how)
        messages = ranks.traffic.messages - before.messages
        sizes = ranks.traffic.bytes - before.bytes
        for kind in messages:
            print(f"{case}: {kind} {messages[kind]} messages, {sizes[kind]} bytes")
        torch.save(learner.state(), Path(folder) / f"{case.replace(' ', '_')}.{ranks.rank}")


if __name__ == "__main__":
    main()

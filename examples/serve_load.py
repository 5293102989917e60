"""Load for ``ocar serve``: questions from several connections while batches are posted.

    python examples/serve_load.py [digits|cifar100] [--seconds 20] [--clients 4]
    python examples/serve_load.py digits --kills 10

It serves OCAR on an MLP for digits, or on a Slim-ResNet18 for Split-CIFAR100, as a process of its
own, and streams the benchmark to it without a pause. Then it learns the same batches itself,
without any service, and compares: every answer has to be, bit for bit, that of the learner after
the batch that the answer names, and what the service has kept at the end has to be that learner.
With ``--kills`` the service is killed (SIGKILL) under load and started again; then too every
acknowledged batch must have been learned once and in order.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import ocar
from ocar.items import Item
from ocar.service.opened import open_service
from ocar_lab.runs.provenance import describe_process

PAUSE = 0.02
"""Seconds until the next try where learning could not follow. ``Retry-After`` says 1, for the
well-behaved; this client is here to press."""


def mlp() -> nn.Module:
    """The model for digits."""
    return ocar.make_model("mlp", image_shape=(1, 8, 8), seed=0)


def slim_resnet18() -> nn.Module:
    """The model for Split-CIFAR100."""
    return ocar.make_model("slim-resnet18", image_shape=(3, 32, 32), seed=0)


CASES = {
    "digits": ("split-digits", mlp, (1, 8, 8)),
    "cifar100": ("split-cifar100", slim_resnet18, (3, 32, 32)),
}
"""Benchmark, model and shape of a sample."""


class Server:
    """``ocar serve`` as a process, on a port that is free.

    Args:
        folder: Of checkpoint and state.
        case: One of ``CASES``.
        *options: More of its options.
    """

    def __init__(self, folder: Path, case: str, *options: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.case, self.state = case, folder / "state"
        self.checkpoint = folder / "learner.safetensors"
        _, model, shape = CASES[case]
        if not self.checkpoint.exists():
            new_learner(case).save(self.checkpoint)
        words = ["serve", self.checkpoint, "--model", f"serve_load:{model.__name__}"]
        words += ["--state", self.state, "--port", self.port, "--shape", *shape, *options]
        self.command = [sys.executable, "-m", "ocar_lab", *map(str, words)]
        path = [str(Path(__file__).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        self.environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start it and wait until it is ready; the seconds that it took."""
        begun = time.perf_counter()
        self.process = subprocess.Popen(
            self.command, env=self.environment, stdout=subprocess.DEVNULL
        )
        while not self._ready():
            if self.process.poll() is not None:
                raise SystemExit("The service did not start.")
            time.sleep(0.05)
        return time.perf_counter() - begun

    def _ready(self) -> bool:
        try:
            return self.ask("GET", "/ready")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def ask(self, method: str, path: str, content: object = None) -> tuple[int, Any]:
        """Status and content of an answer."""
        with closing(Connection(self.port)) as connection:
            return connection.ask(
                method, path, None if content is None else json.dumps(content).encode()
            )

    def status(self) -> dict[str, Any]:
        """What the service says of itself."""
        said: dict[str, Any] = self.ask("GET", "/status")[1]
        return said

    def end(self, how: signal.Signals) -> None:
        """Send it a signal and wait for its end."""
        assert self.process is not None
        self.process.send_signal(how)
        self.process.wait()


class Connection:
    """A connection that is kept, and made again after it was lost."""

    def __init__(self, port: int) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
        """Status and content of the answer."""
        try:
            self._http.request(method, path, body, {"Content-Type": "application/json"})
            answer = self._http.getresponse()
            return answer.status, json.loads(answer.read())
        except BaseException:
            self._http.close()  # the next request begins anew
            raise

    def close(self) -> None:
        """Close it."""
        self._http.close()


@dataclass
class Seen:
    """What the clients have seen."""

    answers: dict[int, list[tuple[int, list[float]]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """Question and logits, by the batches that the answering model had learned."""
    classes: dict[int, set[tuple[int, ...]]] = field(default_factory=lambda: defaultdict(set))
    latencies: list[float] = field(default_factory=list)
    batches: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Those that were acknowledged, in order."""
    counts: Counter[str] = field(default_factory=Counter)


class Load:
    """Threads that ask, and one that posts batches.

    Args:
        port: Where the service is.
        case: What it serves.
        clients: How many ask.
        may_be_lost: Whether connections may be lost, because the service is killed.
    """

    def __init__(self, port: int, case: str, *, clients: int, may_be_lost: bool) -> None:
        self.port, self.case, self.may_be_lost = port, case, may_be_lost
        self.seen = Seen()
        self.questions = ocar.make_stream(CASES[case][0], seed=0).test(0)[0][:100]
        self._bodies = [json.dumps({"x": [x.flatten().tolist()]}).encode() for x in self.questions]
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=(seed,)) for seed in range(clients)
        ]
        self._threads.append(threading.Thread(target=self._post))
        for thread in self._threads:
            thread.start()

    def stop(self) -> Seen:
        """Let all end what they are at; what they have seen."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        return self.seen

    def _ask(self, seed: int) -> None:
        chosen = random.Random(seed)
        with closing(Connection(self.port)) as connection:
            while not self._over.is_set():
                self._ask_one(connection, chosen.randrange(len(self._bodies)))

    def _ask_one(self, connection: Connection, question: int) -> None:
        begun = time.perf_counter()
        answer = self._try(connection, "/predict", self._bodies[question])
        if answer is not None and answer[0] == 200:
            self.seen.latencies.append(time.perf_counter() - begun)
            said = answer[1]
            self.seen.answers[said["batches"]].append((question, said["logits"][0]))
            self.seen.classes[said["batches"]].add(tuple(said["classes"]))
        elif answer is not None and not self._starts(answer):
            self._count("errors")

    def _starts(self, answer: tuple[int, Any]) -> bool:
        """Whether a killed service is on its way back."""
        starts = self.may_be_lost and answer[0] == 503 and "is starting" in answer[1]["detail"]
        if starts:
            time.sleep(PAUSE)
        return starts

    def _post(self) -> None:
        batches = enumerate(stream(self.case), start=1)
        with closing(Connection(self.port)) as connection:
            while not self._over.is_set():
                number, (x, y) = next(batches)
                if not self._post_one(connection, number, x, y):
                    return
                self.seen.batches.append((x, y))

    def _post_one(self, connection: Connection, number: int, x: Tensor, y: Tensor) -> bool:
        """Send a batch until it is known to be on disk; False if it is not."""
        lesson = {"x": x.flatten(1).tolist(), "y": y.tolist(), "key": f"batch-{number}"}
        body = json.dumps(lesson).encode()
        while (
            (answer := self._try(connection, "/learn", body)) is None
            or answer[0] == 429
            or self._starts(answer)
        ):
            if answer is not None and answer[0] == 429:
                if self._over.is_set():
                    return False
                self._count("told to wait")
                time.sleep(PAUSE)
        repeated = {"number": number, "repeated": True}
        if answer == (200, repeated) and self.may_be_lost:
            self._count("on disk, answer lost")  # by a kill between the two
        elif answer != (200, repeated | {"repeated": False}):
            self._count("errors")
            return False
        return True

    def _count(self, what: str) -> None:
        with self._lock:
            self.seen.counts[what] += 1

    def _try(self, connection: Connection, path: str, body: bytes) -> tuple[int, Any] | None:
        """Status and content; None if the connection was lost."""
        try:
            return connection.ask("POST", path, body)
        except (OSError, http.client.HTTPException):
            self._count("connections lost" if self.may_be_lost else "errors")
            time.sleep(PAUSE)
            return None


def new_learner(case: str) -> ocar.Learner:
    """A learner that has seen nothing yet."""
    benchmark, model, _ = CASES[case]
    return ocar.make_learner("ocar", model(), preset=benchmark, seed=0)


def stream(case: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of the benchmark, again and again in other orders."""
    for seed in itertools.count():
        for experience in ocar.make_stream(CASES[case][0], seed=seed):
            yield experience.x, experience.y


def compare(seen: Seen, questions: Tensor, server: Server) -> dict[str, Any]:
    """Learn the same without a service, and count what differs."""
    learner = new_learner(server.case)
    wrong = 0
    for batches in range(len(seen.batches) + 1):
        if batches:
            learner.learn(*seen.batches[batches - 1])
        expected: dict[int, list[float]] = {}
        for question, logits in seen.answers.get(batches, ()):
            if question not in expected:
                expected[question] = learner.predict(questions[question : question + 1])[0].tolist()
            wrong += logits != expected[question]
        wrong += sum(said != learner.classes for said in seen.classes.get(batches, ()))
    wrong += sum(len(said) for batches, said in seen.answers.items() if batches > learner.batches)
    _, model, shape = CASES[server.case]
    item = Item(torch.Size(shape), torch.uint8)
    kept = open_service(server.checkpoint, server.state, model=model, item=item)
    kept.close()  # it has learned what the journal held
    (tensors, values), (theirs, said) = learner.state(), kept.learner.state()
    same = values == said and tensors.keys() == theirs.keys()
    return {
        "inconsistent answers": wrong,
        "models that answered": len(seen.answers),
        "batches learned in the end": kept.learner.batches,
        "the saved learner is the same": same
        and all(torch.equal(tensor, theirs[name]) for name, tensor in tensors.items()),
    }


def percentile(values: list[float], share: float) -> float:
    """The value below which that share of all is."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def run(
    folder: Path,
    case: str,
    *options: str,
    seconds: float,
    clients: int,
    kills: int,
    seed: int = 0,
) -> dict[str, Any]:
    """Put the service under load, and look at what came of it."""
    server = Server(folder, case, *options)
    server.start()
    load = Load(server.port, case, clients=clients, may_be_lost=kills > 0)
    moments, restarts = random.Random(seed), []
    begun = time.perf_counter()
    try:
        for _ in range(kills):
            time.sleep(moments.uniform(0.3, 2))
            server.end(signal.SIGKILL)
            restarts.append(server.start())
        time.sleep(seconds)
        learned = server.status()["batches"]
    finally:
        took = time.perf_counter() - begun
        seen = load.stop()
        server.end(signal.SIGTERM)
    milliseconds = [1000 * latency for latency in seen.latencies]
    result = {
        "seconds": round(took, 1),
        "predictions": len(milliseconds),
        "predictions a second": round(len(milliseconds) / took, 1),
        "p50 ms": round(percentile(milliseconds, 0.5), 2),
        "p99 ms": round(percentile(milliseconds, 0.99), 2),
        "largest ms": round(max(milliseconds), 2),
        "batches acknowledged": len(seen.batches),
        "batches learned under load": learned,
        "batches learned a second": round(learned / took, 2),
        "errors": seen.counts["errors"],
        **{name: count for name, count in seen.counts.items() if name != "errors"},
        **compare(seen, load.questions, server),
    }
    if kills:
        result |= {"kills": kills, "longest restart s": round(max(restarts), 1)}
    return result


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("case", nargs="?", default="digits", choices=CASES)
    parser.add_argument("--seconds", type=float, default=20, help="of load, after the last kill")
    parser.add_argument("--clients", type=int, default=4, help="threads that ask")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--waiting", type=int, default=64, help="most batches that wait")
    parser.add_argument("--every", type=int, default=100, help="batches between two checkpoints")
    parser.add_argument("--save", type=Path, help="file of results to add this one to")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        result = run(
            Path(folder),
            given.case,
            *("--waiting", str(given.waiting), "--every", str(given.every)),
            seconds=given.seconds,
            clients=given.clients,
            kills=given.kills,
            seed=given.seed,
        )
    for name, value in result.items():
        print(f"{name:32}{value}")
    if given.save is not None:
        keep(given.save, given.case, given.kills, result)
    right = result["the saved learner is the same"]
    sys.exit(0 if right and not result["errors"] + result["inconsistent answers"] else 1)


def keep(path: Path, case: str, kills: int, result: dict[str, Any]) -> None:
    """Add a result to a file, with what it was measured on."""
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    name = f"{case}, killed {kills} times" if kills else case
    command = " ".join(["python examples/serve_load.py", *sys.argv[1:]])
    kept[name] = describe_process(torch.device("cpu")) | {"command": command, "result": result}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

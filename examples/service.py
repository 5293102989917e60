"""A small HTTP service that answers predictions while it learns.

    python examples/service.py --state service-state [--port 8000]

    POST /predict  {"x": [[0, 0, 75, ...], ...]}                  64 grey levels a sample
    POST /learn    {"x": [[0, 0, 75, ...], ...], "y": [7, ...]}   answered once it is on disk
    GET  /health

OCAR on an MLP, for images of 8×8 pixels. A batch to learn from is written to a journal,
acknowledged with its number, and learned by one thread in that order. Every so often the learner is
saved and the journal cut. After a kill the service starts from the last checkpoint and learns again
what the journal holds: nothing that was acknowledged is lost or learned twice. SIGTERM and Ctrl-C
save before they end.

It listens on this machine only, knows no users and sets no limit to the size of a request: put a
proxy in front of it that does.
"""

from __future__ import annotations

import argparse
import asyncio
import queue
import threading
import warnings
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field
from service_journal import Journal, sync_folder
from torch import Tensor

import ocar
from ocar.errors import CheckpointWarning, DataError
from ocar.state import previous

ITEM = (1, 8, 8)
PIXELS = 64
MOST_SAMPLES = 256
"""Samples in one request: a question is answered in the thread that also reads the others."""

Pixel = Annotated[int, Field(ge=0, le=255, strict=True)]
Samples = Annotated[
    list[Annotated[list[Pixel], Field(min_length=PIXELS, max_length=PIXELS)]],
    Field(min_length=1, max_length=MOST_SAMPLES),
]
Label = Annotated[int, Field(ge=0, lt=2**31, strict=True)]


class Question(BaseModel):
    """What to predict."""

    x: Samples


class Answer(BaseModel):
    """What one model predicts."""

    labels: list[int]
    """The most probable class of each sample; empty before anything was learned."""
    logits: list[list[float]]
    classes: list[int]
    """The class of each column."""
    batches: int
    """How many batches the model that answers has learned."""


class Lesson(BaseModel):
    """A batch to learn from."""

    x: Samples
    y: list[Label]
    number: int | None = None
    """The number that the batch must get, or it is refused with 409. A client that got no answer
    sends the batch again with the same number, and it is learned once."""


class Acknowledged(BaseModel):
    """The batch is on disk and will be learned; answers with ``batches ≥ number`` know it."""

    number: int


class Service:
    """A learner, its journal and the thread that learns.

    Args:
        folder: Where the checkpoint and the journal are.
        every: Batches between two checkpoints.
        waiting: Most batches that wait for being learned.

    Raises:
        OcarError: Checkpoint or journal are damaged beyond what a kill can do.
    """

    def __init__(self, folder: Path, *, every: int, waiting: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.checkpoint = folder / "learner.safetensors"
        self.every = every
        self.learner = restored(self.checkpoint)
        self.saved = self.learner.batches
        self.journal = Journal(folder, item=ITEM, first=self.learner.batches + 1)
        self.failure = ""
        for batch in self.journal.batches(after=self.learner.batches):
            self.learner.learn(batch.x, batch.y)
        if self.learner.batches != self.journal.last:
            self.journal.close()
            raise DataError(
                f"Checkpoint and journal in {folder} hold {self.learner.batches} batches, the last "
                f"of which has number {self.journal.last}: some are missing."
            )
        self.serving = ocar.Serving(self.learner)
        self._queue: queue.Queue[tuple[Tensor, Tensor] | None] = queue.Queue(waiting)
        self._writer = ThreadPoolExecutor(1)
        self._thread = threading.Thread(target=self._learn, daemon=True)
        self._thread.start()

    def predict(self, x: Tensor) -> Answer:
        """Answer by the model that was published last."""
        answer = self.serving.predict(x)
        best = answer.logits.argmax(1).tolist() if answer.classes else []
        return Answer(
            labels=[answer.classes[column] for column in best],
            logits=answer.logits.tolist(),
            classes=list(answer.classes),
            batches=answer.batches,
        )

    async def accept(self, x: Tensor, y: Tensor, number: int | None) -> int:
        """Write a batch to the journal, then give it to the thread that learns."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._writer, self._accept, x, y, number)

    def _accept(self, x: Tensor, y: Tensor, number: int | None) -> int:
        if self.failure:
            raise HTTPException(503, f"Learning has stopped: {self.failure}")
        if number not in (None, self.journal.last + 1):
            raise HTTPException(409, f"The next batch is number {self.journal.last + 1}.")
        if self._queue.full():
            said = f"{self._queue.maxsize} batches wait for being learned; come back later."
            raise HTTPException(429, said, headers={"Retry-After": "1"})
        try:
            given = self.journal.append(x, y)
        except OSError as error:  # what is on disk now is only known after a start
            self.failure = f"The journal cannot be written: {error}"
            raise HTTPException(503, self.failure) from error
        self._queue.put_nowait((x, y))  # has room: only this thread puts
        return given

    def _learn(self) -> None:
        while (batch := self._queue.get()) is not None:
            try:
                self.learner.learn(*batch)
                if self.learner.batches - self.saved >= self.every:
                    self.save()
            except Exception as error:
                self.failure = f"{type(error).__name__}: {error}"
                raise

    def save(self) -> None:
        """Save the learner, and drop what is older than the checkpoint before it."""
        self.learner.save(self.checkpoint)
        sync_folder(self.checkpoint.parent)
        self.journal.trim(needed=self.saved + 1)
        self.saved = self.learner.batches

    def health(self) -> dict[str, Any]:
        """How the service is."""
        return {
            "failure": self.failure,
            "batches": self.learner.batches,
            "accepted": self.journal.last,
            "waiting": self._queue.qsize(),
            "saved": self.saved,
            "classes": list(self.learner.classes),
            "guard": asdict(self.learner.guarded),
        }

    def close(self) -> None:
        """Learn what was acknowledged, save, end."""
        self._writer.shutdown()
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        if not self.failure:
            self.save()
        self.journal.close()


def new_learner() -> ocar.Learner:
    """A learner that has seen nothing yet."""
    model = ocar.make_model("mlp", image_shape=ITEM, seed=0)
    return ocar.make_learner("ocar", model, preset="split-digits", seed=0)


def restored(checkpoint: Path) -> ocar.Learner:
    """The learner of a checkpoint; a new one if there is none."""
    if not checkpoint.exists() and not previous(checkpoint).exists():
        return new_learner()
    with warnings.catch_warnings():
        # The one before the newest may be used: the journal reaches back to it.
        warnings.simplefilter("ignore", CheckpointWarning)
        return ocar.load(checkpoint, ocar.make_model("mlp", image_shape=ITEM))


def to_tensor(x: list[list[int]]) -> Tensor:
    """Samples as they came, as images."""
    return torch.tensor(x, dtype=torch.uint8).view(-1, *ITEM)


def make_app(folder: Path, *, every: int, waiting: int) -> FastAPI:
    """The service as an application; it starts and ends with the server."""
    services: list[Service] = []

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        services.append(Service(folder, every=every, waiting=waiting))
        yield
        services.pop().close()

    app = FastAPI(title="A service that learns", lifespan=lifespan)

    @app.post("/predict")
    async def predict(question: Question) -> Answer:
        return services[0].predict(to_tensor(question.x))

    @app.post("/learn")
    async def learn(lesson: Lesson) -> Acknowledged:
        if len(lesson.y) != len(lesson.x):
            raise HTTPException(
                422,
                f"y must have a label for each of {len(lesson.x)} samples; given {len(lesson.y)}.",
            )
        x, y = to_tensor(lesson.x), torch.tensor(lesson.y)
        return Acknowledged(number=await services[0].accept(x, y, lesson.number))

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return services[0].health()

    return app


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--state", type=Path, required=True, help="folder of checkpoint and journal"
    )
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--every", type=int, default=100, help="batches between two checkpoints")
    parser.add_argument("--waiting", type=int, default=64, help="most batches that wait")
    given = parser.parse_args()
    torch.set_num_threads(1)  # the model is tiny: threads of one operation only get in the way
    app = make_app(given.state, every=given.every, waiting=given.waiting)
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=given.port,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=75,
    )


if __name__ == "__main__":
    main()

"""A small HTTP service that answers predictions while it learns.

    python examples/service.py --state service-state [--port 8000]

    POST /predict  {"x": [[0, 0, 75, ...], ...]}                  64 grey levels a sample
    POST /learn    {"x": [[0, 0, 75, ...], ...], "y": [7, ...]}   answered once it is on disk
    GET  /health

OCAR on an MLP, for images of 8×8 pixels. What has been acknowledged is kept, whatever happens to
the process: see ``ocar.service``, which does the work. SIGTERM and Ctrl-C save before they end.

It listens on this machine only, knows no users and sets no limit to the size of a request: put a
proxy in front of it that does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from torch import Tensor

import ocar
from ocar.errors import InputError, OcarError
from ocar.inputs import Item
from ocar.service import Refused, Service

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
Key = Annotated[str, Field(pattern=r"^[!-~]{0,64}$")]


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
    key: Key = ""
    """The client's name for the batch, such as a UUID. A client that got no answer sends the batch
    again with the same key, and it is learned once."""
    number: int | None = None
    """The number that the batch must get, or it is refused with 409."""


class Acknowledged(BaseModel):
    """The batch is on disk and will be learned; answers with ``batches ≥ number`` know it."""

    number: int
    repeated: bool
    """Whether it had been acknowledged before, under the same key."""


def open_service(folder: Path, **options: int) -> Service:
    """The service of a folder, new or as it was left."""
    return Service(
        folder,
        new=new_learner,
        load=lambda path: ocar.load(path, ocar.make_model("mlp", image_shape=ITEM)),
        item=Item(torch.Size(ITEM), torch.uint8),
        **options,
    )


def new_learner() -> ocar.Learner:
    """A learner that has seen nothing yet."""
    model = ocar.make_model("mlp", image_shape=ITEM, seed=0)
    return ocar.make_learner("ocar", model, preset="split-digits", seed=0)


def to_tensor(x: list[list[int]]) -> Tensor:
    """Samples as they came, as images."""
    return torch.tensor(x, dtype=torch.uint8).view(-1, *ITEM)


def said(status: int, detail: object, **headers: str) -> Response:
    """An answer that is an error; what is not ASCII is escaped, so it can always be sent."""
    body = json.dumps({"detail": detail})
    return Response(body, status, headers, media_type="application/json")


def make_app(service: Service) -> FastAPI:
    """The service as an application, which closes it in the end."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(title="A service that learns", lifespan=lifespan)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        # Without what was given: JSON cannot hold NaN or half of a pair of surrogates.
        return said(422, [{k: e[k] for k in ("type", "loc", "msg")} for e in error.errors()])

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> Response:
        later = {"Retry-After": "1"} if error.status in (429, 503) else {}
        return said(error.status, str(error), **later)

    @app.exception_handler(InputError)
    async def unfit(request: Request, error: InputError) -> Response:
        return said(422, str(error))

    @app.post("/predict")
    async def predict(question: Question) -> Answer:
        answer = service.predict(to_tensor(question.x))
        best = answer.logits.argmax(1).tolist() if answer.classes else []
        return Answer(
            labels=[answer.classes[column] for column in best],
            logits=answer.logits.tolist(),
            classes=list(answer.classes),
            batches=answer.batches,
        )

    @app.post("/learn")
    async def learn(lesson: Lesson) -> Acknowledged:
        x, y = to_tensor(lesson.x), torch.tensor(lesson.y, dtype=torch.int64)
        accepted = await asyncio.to_thread(
            service.accept, x, y, key=lesson.key, number=lesson.number
        )
        return Acknowledged(number=accepted.number, repeated=accepted.repeated)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return service.health()

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
    parser.add_argument("--classes", type=int, default=1000, help="most classes")
    parser.add_argument(
        "--grace", type=int, default=10, help="seconds that requests have to end after SIGTERM"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)  # the model is tiny: threads of one operation only get in the way
    try:
        service = open_service(
            given.state, every=given.every, waiting=given.waiting, classes=given.classes
        )
    except (OcarError, OSError) as error:
        sys.exit(f"The service did not start: {error}")
    try:
        uvicorn.run(
            make_app(service),
            host="127.0.0.1",
            port=given.port,
            log_level="warning",
            access_log=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=given.grace,
        )
    finally:
        service.close()


if __name__ == "__main__":
    main()

"""The application: routes, and the service behind them, which starts while probes are answered."""

from __future__ import annotations

import asyncio
import platform
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Annotated, Any

import torch
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field

from ocar import accel
from ocar.errors import InputError
from ocar.integrations.web.limits import Limits, error
from ocar.integrations.web.metrics import Measured, Metrics
from ocar.integrations.web.payload import to_labels, to_samples, to_targets
from ocar.service import Refused, Service
from ocar.version import __version__

STAYS = (
    "Weights, curvature, running mean and variance have learned from these samples, and stay as "
    "they are. Older checkpoints were removed."
)

Opener = Callable[[Callable[[float], None]], Service]
"""Makes the service; its argument is called with the seconds that each batch took."""


class Question(BaseModel):
    """What to predict."""

    x: Any  #: Samples: a list of nested or flat lists of numbers.


class Answer(BaseModel):
    """What one model predicts."""

    #: The most probable class of each sample; empty in regression and before the first batch.
    labels: list[int]
    logits: list[list[float]]  #: A row for each sample; in regression the predicted numbers.
    classes: list[int]  #: The class of each column.
    batches: int  #: How many batches the model that answers has learned.


class Lesson(BaseModel):
    """A batch to learn from."""

    x: Any
    y: Any  #: A label for each sample, or the numbers to predict.
    #: The client's name for the batch, such as a UUID. A client that got no answer sends the batch
    #: again with the same key, and it is learned once.
    key: Annotated[str, Field(pattern=r"^[!-~]{0,64}$")] = ""
    number: int | None = None  #: The number that the batch must get, or it is refused with 409.


class Acknowledged(BaseModel):
    """The batch is on disk and will be learned; answers with ``batches ≥ number`` know it."""

    number: int
    repeated: bool  #: Whether it had been acknowledged before, under the same key.


class Target(BaseModel):
    """Where to go back to."""

    batches: Annotated[int, Field(ge=0, strict=True)]  #: One of ``GET /checkpoints``.


class Removal(BaseModel):
    """What to forget: samples or a class."""

    x: Any = None
    label: Annotated[int, Field(ge=0, strict=True)] | None = None


class Running:
    """A service that is opened in a thread of its own, so that probes are answered meanwhile.

    Args:
        opener: Makes the service.
        opened: Called once it is made.
        failed: Called if it cannot be made.

    Attributes:
        metrics: The metrics for Prometheus.
        error: Why the service could not be made.
    """

    def __init__(
        self,
        opener: Opener,
        *,
        failed: Callable[[], None],
        opened: Callable[[], None] = lambda: None,
    ) -> None:
        self.metrics = Metrics(lambda: self._service)
        self.error: Exception | None = None
        self._opener, self._opened, self._failed = opener, opened, failed
        self._service: Service | None = None
        self._thread = threading.Thread(target=self._open, daemon=True)

    def start(self) -> None:
        """Begin to open it."""
        self._thread.start()

    def _open(self) -> None:
        try:
            self._service = self._opener(self.metrics.learning.observe)
            self._opened()
        except Exception as error:  # noqa: BLE001 (it is raised again by who waits)
            self.error = error
            self._failed()

    def service(self) -> Service:
        """The service.

        Raises:
            Refused: It is not there yet.
        """
        if self._service is None:
            raise Refused(503, "The service is starting: it reads its checkpoint and journal.")
        return self._service

    def close(self, *, within: float) -> None:
        """Close the service once it is open."""
        self._thread.join()
        if self._service is not None:
            self._service.close(within=within)


def make_app(
    running: Running,
    *,
    token: str = "",
    rate: float = 0.0,
    most_bytes: int = 8 << 20,
    threads: int = 2,
    grace: float = 10.0,
) -> FastAPI:
    """The application.

    Args:
        running: The service, which starts and ends with the application.
        token: What ``Authorization: Bearer`` has to say; empty if nothing is asked for.
        rate: Requests a second from one client; 0 for no limit.
        most_bytes: Largest body of a request.
        threads: Predictions at a time.
        grace: Seconds after the last request in which waiting batches are learned.
    """
    predicting = ThreadPoolExecutor(threads, thread_name_prefix="predict")

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        running.start()
        yield
        await asyncio.to_thread(running.close, within=grace)
        predicting.shutdown()

    app = FastAPI(
        title="ocar", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    _add_errors(app)
    _add_learning(app, running, predicting)
    _add_operations(app, running)
    paths = [getattr(route, "path", "") for route in app.routes]
    # The last is the outermost: refused requests are counted too.
    app.add_middleware(Limits, token=token, rate=rate, most_bytes=most_bytes)
    app.add_middleware(Measured, metrics=running.metrics, paths=paths)
    return app


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, given: RequestValidationError) -> Response:
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return error(
                422, "The body must be JSON, with the header Content-Type: application/json."
            )
        # Without what was given: JSON cannot hold NaN or half of a pair of surrogates.
        return error(422, [{k: e[k] for k in ("type", "loc", "msg")} for e in given.errors()])

    @app.exception_handler(Refused)
    async def refused(request: Request, given: Refused) -> Response:
        later = {"Retry-After": "1"} if given.status in (429, 503) else {}
        return error(given.status, str(given), **later)

    @app.exception_handler(InputError)
    async def unfit(request: Request, given: InputError) -> Response:
        return error(422, str(given))


def _add_learning(app: FastAPI, running: Running, predicting: ThreadPoolExecutor) -> None:
    @app.post("/predict")
    async def predict(question: Question) -> Answer:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(predicting, _predict, running.service(), question.x)

    @app.post("/learn")
    async def learn(lesson: Lesson) -> Acknowledged:
        return await asyncio.to_thread(_learn, running.service(), lesson)


def _predict(service: Service, x: Any) -> Answer:
    samples = to_samples(x, service.item)
    with accel.own_stream():
        answer = service.predict(samples)
        best = answer.logits.argmax(1).tolist() if answer.classes else []
        return Answer(
            labels=[answer.classes[column] for column in best],
            logits=answer.logits.tolist(),
            classes=list(answer.classes),
            batches=answer.batches,
        )


def _learn(service: Service, lesson: Lesson) -> Acknowledged:
    x, regression = to_samples(lesson.x, service.item), service.learner.head is None
    y = to_targets(lesson.y, service.learner.dtype) if regression else to_labels(lesson.y)
    with accel.own_stream():
        accepted = service.accept(x, y, key=lesson.key, number=lesson.number)
    return Acknowledged(number=accepted.number, repeated=accepted.repeated)


def _add_operations(app: FastAPI, running: Running) -> None:
    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/ready")
    async def ready() -> dict[str, str]:
        if running.service().failure:
            raise Refused(503, "Learning has stopped; GET /status says why.")
        return {"status": "ready"}

    @app.get("/version")
    async def version() -> dict[str, str]:
        versions = {"ocar": __version__, "torch": torch.__version__}
        return {**versions, "python": platform.python_version()}

    # Functions without async run in threads: some wait for the disk or for a batch.

    @app.get("/status")
    def status() -> dict[str, Any]:
        service = running.service()
        return {**service.status(), "prequential": service.score()}

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(running.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/checkpoints")
    def checkpoints() -> dict[str, list[int]]:
        return {"batches": running.service().checkpoints()}

    @app.post("/rollback")
    def rollback(target: Target) -> dict[str, int]:
        running.service().roll_back(target.batches)
        return {"batches": target.batches}

    @app.post("/forget")
    def forget(removal: Removal) -> dict[str, Any]:
        service = running.service()
        x = None if removal.x is None else to_samples(removal.x, service.item)
        return {"removed": service.forget(x, label=removal.label), "note": STAYS}

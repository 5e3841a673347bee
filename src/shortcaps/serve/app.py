"""The web application: one page, `POST /predict` and `/predict/batch`, health, metrics, and OpenAPI.

Nothing that comes in is trusted: bodies, pixels and the queue are limited, uploads that dawdle are cut off, and what
cannot be read gets a 4xx with one line that says why.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

import shortcaps
from shortcaps.errors import RunError
from shortcaps.inference.predict import Predictor
from shortcaps.models import CapsuleNetwork
from shortcaps.serve.access import Access
from shortcaps.serve.guard import Guard
from shortcaps.serve.limits import Limits
from shortcaps.serve.refusals import Refused, busy
from shortcaps.serve.schema import BATCH_BODY, BODY, PROBLEMS, Answer, Answers, PictureProblem
from shortcaps.serve.service import Service
from shortcaps.serve.shares import address_of
from shortcaps.serve.upload import uploaded_picture, uploaded_pictures

PAGE = Path(__file__).with_name("page.html")
DOCS = Path(__file__).with_name("docs.html")
QUESTIONS = frozenset({"/predict", "/predict/batch"})


@dataclass
class How:
    """How pictures are to be looked at, from the query of a request."""

    rotation: Annotated[float, Query(ge=-180, le=180, description="degrees, clockwise")] = 0.0
    scale: Annotated[float, Query(ge=0.2, le=3)] = 1.0
    shear: Annotated[float, Query(ge=-1, le=1)] = 0.0
    shift_x: Annotated[float, Query(ge=-40, le=40, description="pixels")] = 0.0
    shift_y: Annotated[float, Query(ge=-40, le=40, description="pixels")] = 0.0
    invert: Annotated[bool | None, Query(description="exchange light and dark; left out, the rim decides")] = None

    @property
    def moves(self) -> dict[str, float]:
        """What `transformed` takes."""
        return {name: getattr(self, name) for name in ("rotation", "scale", "shear", "shift_x", "shift_y")}


def create_app(predictor: Predictor, limits: Limits | None = None, access: Access | None = None) -> FastAPI:
    """The web application for a trained network, to be run by any ASGI server.

    Limits on connections, headers and sending are the server's business: `shortcaps.serve.server` keeps them.

    Args:
        predictor: The network, with the way its pictures are prepared.
        limits: What it takes before it says no.
        access: Who may ask; by default who calls it by a name of this machine.

    Returns:
        The application, with its `Service` as `app.state.service`.

    Raises:
        RunError: The network cannot be served.
    """
    limits = limits or Limits()
    if predictor.preparation.channels not in (1, 3):
        raise RunError(
            f"this network takes {predictor.preparation.channels} channels, and a picture has 1 or 3: it cannot be served"
        )
    network = predictor.network
    about = {
        "classes": list(predictor.class_names),
        "digits": predictor.preparation.digits,
        "colour": predictor.preparation.colour,
        "bright_on_dark": predictor.preparation.bright_on_dark,
        "network": network.title,
        "routing": network.routing.name if isinstance(network, CapsuleNetwork) else None,
        "shortcut": isinstance(network, CapsuleNetwork) and network.shortcut,
        "trained_on": predictor.manifest.data.label,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
    }
    service = Service(predictor, limits)
    about |= {"pictures": service.max_pictures, "body_bytes": limits.body_bytes}

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.start()
        yield
        await service.stop()

    app = FastAPI(
        title="shortcaps",
        version=shortcaps.__version__,
        description="A capsule network that says what it sees, and where it looked.",
        lifespan=lifespan,
        docs_url=None,
        redirect_slashes=False,
        redoc_url=None,
    )
    app.state.service = service
    app.add_middleware(Guard, paths=QUESTIONS, queue=service.queue, access=access or Access(), metrics=service.metrics)
    _say_why(app, service)

    about_text = json.dumps(about).replace("<", "\\u003c")
    pages = {
        "/": HTMLResponse(PAGE.read_text("utf-8").replace("/*ABOUT*/ {}", about_text)),
        "/docs": HTMLResponse(DOCS.read_text("utf-8")),
    }

    @app.get("/", include_in_schema=False)
    async def page() -> HTMLResponse:
        return pages["/"]

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return pages["/docs"]

    @app.get("/healthz")
    async def health() -> dict[str, Any]:
        """Whether the server is alive, what it serves and how many requests wait."""
        return {"status": "ok", "classes": len(predictor.class_names), "waiting": service.batcher.waiting}

    @app.get("/readyz", responses={503: PROBLEMS[503]})
    async def ready() -> dict[str, str]:
        """Whether requests should be sent here now: not while it starts, is full or shuts down."""
        if reason := service.why_not_ready():
            raise busy("not_ready", reason)
        return {"status": "ready"}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> PlainTextResponse:
        """Requests by status, refusals by reason, latency, queue and connections, in the text format of Prometheus."""
        return PlainTextResponse(service.metrics.render(), media_type="text/plain; version=0.0.4")

    @app.post("/predict", responses=PROBLEMS, openapi_extra=BODY)
    async def predict(
        request: Request,
        how: Annotated[How, Depends()],
        details: Annotated[bool, Query(description="pose, routing maps and the image as the network sees it")] = False,
    ) -> Answer:
        """What the network says of a picture, which may be turned, scaled, sheared and shifted first."""
        async with uploaded_picture(request, limits, service.uploads) as content:
            return await service.answer(
                content, invert=how.invert, moves=how.moves, details=details, address=address_of(request.client)
            )

    @app.post("/predict/batch", responses=PROBLEMS, openapi_extra=BATCH_BODY)
    async def predict_batch(request: Request, how: Annotated[How, Depends()]) -> Answers:
        """What the network says of several pictures; one that cannot be used has its problem in its place."""
        async with uploaded_pictures(request, limits, service.uploads, service.max_pictures) as contents:
            found = await service.answer_many(
                contents, invert=how.invert, moves=how.moves, address=address_of(request.client)
            )
        return Answers(
            answers=[
                PictureProblem(error=one.detail, status=one.status_code) if isinstance(one, Refused) else one
                for one in found
            ]
        )

    return app


def _say_why(app: FastAPI, service: Service) -> None:
    """Every error is one line of JSON, and every refusal is counted."""

    @app.exception_handler(HTTPException)
    async def say_why(_: Request, error: HTTPException) -> Response:
        if isinstance(error, Refused):
            service.metrics.refused(error.reason)
        return JSONResponse({"error": str(error.detail)}, error.status_code, headers=error.headers)

    @app.exception_handler(RequestValidationError)
    async def say_which(_: Request, error: RequestValidationError) -> Response:
        service.metrics.refused("query")
        first = error.errors()[0]
        return JSONResponse({"error": f"{'.'.join(map(str, first['loc'][1:]))}: {first['msg']}"}, 422)

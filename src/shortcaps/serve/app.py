"""The web application: one page, `POST /predict`, `/healthz`, and OpenAPI.

Nothing that comes in is trusted: bodies, pixels and the queue are limited, uploads that dawdle are cut off, and what
cannot be read gets a 4xx with one line that says why.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
import json
import logging
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect
from torch import Tensor

import shortcaps
from shortcaps.data.decode import TooManyPixels
from shortcaps.errors import DataError, RunError
from shortcaps.inference.explain import routing_maps, transformed
from shortcaps.inference.predict import Prediction, Predictor
from shortcaps.serve.batching import Batcher
from shortcaps.serve.guard import HEADERS, Guard

PAGE = Path(__file__).with_name("page.html")
DOCS = Path(__file__).with_name("docs.html")
log = logging.getLogger("shortcaps.serve")
# Who sends a broken form is told so; the parser need not tell the operator as well.
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)


@dataclass(frozen=True)
class Limits:
    """What the server takes before it says no.

    Attributes:
        body_bytes: Of an upload.
        pixels: Of a picture.
        queue: Requests that may wait; more get a 503.
        batch: Pictures that the network looks at together.
        upload_seconds: For the whole upload.
        answer_seconds: From the upload to the answer.
    """

    body_bytes: int = 8_000_000
    pixels: int = 25_000_000
    queue: int = 128
    batch: int = 32
    upload_seconds: float = 10.0
    answer_seconds: float = 20.0


class Answer(BaseModel):
    """What the network says of one picture."""

    answer: str = Field(description="the class with the largest probability")
    probabilities: dict[str, float] = Field(description="by class; they sum to 1")
    activations: dict[str, float] = Field(description="of the class capsules, each in 0–1; they need not sum to 1")
    pose: list[list[float]] | None = Field(
        default=None, description="the pose matrix of the winning class, where asked for"
    )
    maps: list[list[list[float]]] | None = Field(
        default=None,
        description="for each shortcut, how much more than its share the winning class takes from each position, where asked for",
    )
    image: list[list[float]] | None = Field(
        default=None, description="the picture as the network sees it, where asked for"
    )


class Problem(BaseModel):
    error: str


@dataclass(frozen=True)
class Question:
    image: Tensor
    details: bool


PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "the body is not what it says it is"},
    408: {"model": Problem, "description": "the upload took too long"},
    413: {"model": Problem, "description": "too many bytes or pixels"},
    415: {"model": Problem, "description": "neither a picture, nor a form with one, nor JSON"},
    422: {"model": Problem, "description": "the picture or a number cannot be used"},
    503: {"model": Problem, "description": "too many requests are waiting; Retry-After says when to come back"},
    504: {"model": Problem, "description": "no answer in time"},
}
BODIES = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {"image": {"type": "string", "format": "binary"}},
                    "required": ["image"],
                }
            },
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "image": {"type": "string", "description": "a picture file in base64, or a data address"}
                    },
                    "required": ["image"],
                }
            },
            **{kind: {"schema": {"type": "string", "format": "binary"}} for kind in ("image/png", "image/jpeg")},
        },
    }
}


def create_app(predictor: Predictor, limits: Limits | None = None) -> FastAPI:
    """The web application for a trained network, to be run by any ASGI server.

    Args:
        predictor: The network, with the way its pictures are prepared.
        limits: What it takes before it says no.

    Raises:
        RunError: The network cannot be served.
    """
    limits = limits or Limits()
    if predictor.preparation.channels not in (1, 3):
        raise RunError(
            f"this network takes {predictor.preparation.channels} channels, and a picture has 1 or 3: it cannot be served"
        )
    about = {
        "classes": list(predictor.class_names),
        "digits": predictor.preparation.digits,
        "routing": predictor.model.routing.name,
        "shortcut": predictor.model.shortcut,
        "trained_on": predictor.manifest.data.label,
        "parameters": sum(parameter.numel() for parameter in predictor.model.parameters()),
    }
    batcher: Batcher[Question, Answer] = Batcher(
        lambda questions: answer_all(predictor, questions), largest=limits.batch
    )
    # Decoding has a thread of its own, so that a large picture does not hold up the network.
    decoder = ThreadPoolExecutor(1, thread_name_prefix="decoder")

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        batcher.start()
        yield
        await batcher.stop()
        decoder.shutdown(wait=True)

    app = FastAPI(
        title="shortcaps",
        version=shortcaps.__version__,
        description="A capsule network that says what it sees, and where it looked.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )

    @app.exception_handler(HTTPException)
    async def say_why(_: Request, error: HTTPException) -> Response:
        return JSONResponse({"error": str(error.detail)}, error.status_code, headers=error.headers)

    @app.exception_handler(Exception)
    async def say_sorry(_: Request, error: Exception) -> Response:
        log.error("unexpected %s: %s", type(error).__name__, error)
        # This answer is made outside the guard, which would have added them.
        headers = {name.decode(): value.decode() for name, value in HEADERS}
        return JSONResponse({"error": "something went wrong here, not with what you sent"}, 500, headers)

    app.add_middleware(Guard, path="/predict", most=limits.queue)

    @app.get("/", include_in_schema=False)
    async def page() -> HTMLResponse:
        text = json.dumps(about).replace("<", "\\u003c")
        return HTMLResponse(PAGE.read_text("utf-8").replace("/*ABOUT*/ {}", text))

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(DOCS.read_text("utf-8"))

    @app.get("/healthz")
    async def health() -> dict[str, Any]:
        """Whether the server is up, what it serves and how many requests wait."""
        return {"status": "ok", "classes": len(predictor.class_names), "waiting": batcher.waiting}

    @app.post("/predict", responses=PROBLEMS, openapi_extra=BODIES)
    async def predict(
        request: Request,
        rotation: Annotated[float, Query(ge=-180, le=180, description="degrees, clockwise")] = 0.0,
        scale: Annotated[float, Query(ge=0.2, le=3)] = 1.0,
        shear: Annotated[float, Query(ge=-1, le=1)] = 0.0,
        shift_x: Annotated[float, Query(ge=-40, le=40, description="pixels")] = 0.0,
        shift_y: Annotated[float, Query(ge=-40, le=40, description="pixels")] = 0.0,
        invert: Annotated[bool | None, Query(description="exchange light and dark; left out, the rim decides")] = None,
        details: Annotated[bool, Query(description="pose, routing maps and the image as the network sees it")] = False,
    ) -> Answer:
        """What the network says of a picture, which may be turned, scaled, sheared and shifted first."""
        content = await read_picture(request, limits)
        loop = asyncio.get_running_loop()
        moves = {"rotation": rotation, "scale": scale, "shear": shear, "shift_x": shift_x, "shift_y": shift_y}
        try:
            async with asyncio.timeout(limits.answer_seconds):
                image = await loop.run_in_executor(
                    decoder, lambda: predictor.read(io.BytesIO(content), invert=invert, max_pixels=limits.pixels)
                )
                return await batcher.ask(Question(transformed(image[None], **moves)[0], details))
        except DataError as reason:
            code = 413 if isinstance(reason, TooManyPixels) else 422
            raise HTTPException(code, f"the picture is {reason}") from reason
        except TimeoutError as error:
            raise HTTPException(504, "no answer in time: try again") from error

    @app.exception_handler(RequestValidationError)
    async def say_which(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return JSONResponse({"error": f"{'.'.join(map(str, first['loc'][1:]))}: {first['msg']}"}, 422)

    return app


@torch.inference_mode()
def answer_all(predictor: Predictor, questions: list[Question]) -> list[Answer]:
    """One run of the network for all; another, with routing maps, for those who ask for details."""
    found = predictor.activations(torch.stack([question.image for question in questions]))
    answers = []
    for question, activations in zip(questions, found.tolist(), strict=True):
        said = Prediction("", dict(zip(predictor.class_names, activations, strict=True)))
        answers.append(
            Answer(answer=said.ranking[0][0], probabilities=said.probabilities, activations=said.activations)
        )
        if question.details:
            explained = routing_maps(predictor.model, question.image[None].to(predictor.device))
            winner = int(explained.classes[0])
            answers[-1].pose = explained.poses[0, winner].tolist()
            answers[-1].maps = [block[0, -1].tolist() for block in explained.over_channels()]
            answers[-1].image = question.image.mean(0).tolist()
    return answers


async def read_picture(request: Request, limits: Limits) -> bytes:
    """The bytes of the picture in a request, whichever way they came."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind not in ("multipart/form-data", "application/json", "application/octet-stream") and not kind.startswith(
        "image/"
    ):
        raise HTTPException(
            415, f"content type {kind or 'missing'!r}: send a form with an image, JSON, or a picture itself"
        )
    try:
        body = await asyncio.wait_for(_read_body(request, limits.body_bytes), limits.upload_seconds)
    except ClientDisconnect as error:
        raise HTTPException(400, "the upload broke off") from error
    except TimeoutError as error:
        raise HTTPException(408, f"the upload took more than {limits.upload_seconds:g} seconds") from error
    if kind == "multipart/form-data":
        return await _from_form(request, body)
    return _from_json(body) if kind == "application/json" else body


async def _read_body(request: Request, most: int) -> bytes:
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > most:
        raise HTTPException(413, f"{int(declared):,} bytes are more than the {most:,} this server takes")
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise HTTPException(413, f"more than the {most:,} bytes this server takes")
        parts.append(part)
    return b"".join(parts)


async def _from_form(request: Request, body: bytes) -> bytes:
    sent = False

    async def receive() -> dict[str, Any]:
        nonlocal sent
        part = b"" if sent else body
        sent = True
        return {"type": "http.request", "body": part, "more_body": False}

    try:
        async with Request(request.scope, receive).form(max_files=1, max_fields=8) as form:
            image = form.get("image")
            if not isinstance(image, UploadFile):
                raise HTTPException(422, "the form has no file called 'image'")
            return await image.read()
    except (MultiPartException, KeyError, UnicodeDecodeError, ValueError) as error:
        raise HTTPException(400, "the form cannot be read") from error


def _from_json(body: bytes) -> bytes:
    try:
        values = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, "the body is not JSON") from error
    text = values.get("image") if isinstance(values, dict) else None
    if not isinstance(text, str):
        raise HTTPException(422, "the JSON has no text called 'image', with a picture in base64")
    encoded = text.partition(",")[2] if text.startswith("data:") else text
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise HTTPException(422, "'image' is not base64") from error

"""What goes in and out of the API, as OpenAPI describes it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field


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
    image: list[list[float]] | list[list[list[float]]] | None = Field(
        default=None,
        description="the picture as the network sees it, where asked for: rows of numbers in 0–1, or in colour three such planes, red, green and blue",
    )


class Problem(BaseModel):
    """Why there is no answer."""

    error: str


class PictureProblem(Problem):
    """Why there is no answer for one picture of several."""

    status: int = Field(description="what a request with this picture alone would have been answered with")


class Answers(BaseModel):
    """What the network says of several pictures."""

    answers: list[Answer | PictureProblem] = Field(description="one for each picture, in their order")


PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "the body is not what it says it is"},
    401: {"model": Problem, "description": "the token is missing or wrong, where the server has one"},
    403: {"model": Problem, "description": "a page of another site asks"},
    408: {"model": Problem, "description": "the upload took too long"},
    413: {"model": Problem, "description": "too many bytes or pixels"},
    415: {"model": Problem, "description": "neither a picture, nor a form with one, nor JSON"},
    421: {"model": Problem, "description": "the request is for a host that this server is not"},
    422: {"model": Problem, "description": "the picture or a number cannot be used"},
    503: {"model": Problem, "description": "too many requests are waiting; Retry-After says when to come back"},
    504: {"model": Problem, "description": "no answer in time"},
}
_FILE = {"type": "string", "format": "binary"}
_TEXT = {"type": "string", "description": "a picture file in base64, or a data address"}


def _body(form_field: dict[str, Any], json_name: str, json_field: dict[str, Any]) -> dict[str, Any]:
    def one_field(name: str, schema: dict[str, Any]) -> dict[str, Any]:
        return {"schema": {"type": "object", "properties": {name: schema}, "required": [name]}}

    content = {
        "multipart/form-data": one_field("image", form_field),
        "application/json": one_field(json_name, json_field),
        **{kind: {"schema": _FILE} for kind in ("image/png", "image/jpeg", "image/webp")},
    }
    return {"requestBody": {"required": True, "content": content}}


BODY = _body(_FILE, "image", _TEXT)
BATCH_BODY = _body({"type": "array", "items": _FILE}, "images", {"type": "array", "items": _TEXT})

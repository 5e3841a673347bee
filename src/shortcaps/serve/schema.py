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
    image: list[list[float]] | None = Field(
        default=None, description="the picture as the network sees it, where asked for"
    )


class Problem(BaseModel):
    """Why there is no answer."""

    error: str


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
            **{
                kind: {"schema": {"type": "string", "format": "binary"}}
                for kind in ("image/png", "image/jpeg", "image/webp")
            },
        },
    }
}

"""What the server takes before it says no."""

from __future__ import annotations

from dataclasses import dataclass

WAITING_CONNECTIONS = 2048
"""Connections that the kernel keeps until they are accepted."""


@dataclass(frozen=True)
class Limits:
    """What the server takes before it says no.

    Attributes:
        body_bytes: Of an upload.
        upload_bytes: Of all uploads that are held at one time; one address may hold a quarter.
        pictures: Of one request; and no more than one address may have waiting.
        pixels: Of a picture: more than a classifier needs, and what a telephone's camera makes.
        queue: Pictures that may wait; more get a 503. One address may fill half of it.
        batch: Pictures that the network looks at together.
        header_bytes: Of the head of a request.
        connections: At one time; more are turned away.
        connections_per_address: The same for one address.
        header_seconds: For the whole head of a request.
        upload_seconds: For the whole upload.
        decode_seconds: Processor time to decode a picture.
        decoder_bytes: Memory of each decoder.
        answer_seconds: From the upload to the answer.
        send_seconds: For a client to take its answer.
        idle_seconds: Between two requests on a connection.
        drain_seconds: For what is in hand when the server is told to stop.
    """

    body_bytes: int = 8_000_000
    upload_bytes: int = 256_000_000
    pictures: int = 16
    pixels: int = 4096 * 4096
    queue: int = 128
    batch: int = 32
    header_bytes: int = 16_384
    connections: int = 512
    connections_per_address: int = 128
    header_seconds: float = 5.0
    upload_seconds: float = 10.0
    decode_seconds: float = 3.0
    decoder_bytes: int = 800_000_000
    answer_seconds: float = 20.0
    send_seconds: float = 10.0
    idle_seconds: float = 15.0
    drain_seconds: float = 10.0

"""`shortcaps serve`."""

from __future__ import annotations

from typing import Annotated

import typer

from shortcaps.cli.app import app, console
from shortcaps.cli.shared import PLUGIN, RUN
from shortcaps.errors import RunError


@app.command(
    "serve",
    help="""Serve a web page and an API for a trained network.

The page: draw, or drop a picture, and see probabilities, routing maps and poses. The API: POST /predict, described at /docs.
Nobody outside this machine can reach it unless --host says so.

Examples:

    shortcaps serve mnist-baseline-fuzzy

    shortcaps serve runs/photos-baseline-fuzzy --port 9000 --host 0.0.0.0
""",
)
def serve_command(
    run: RUN,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port.", min=0, max=65535)] = 8000,
    queue: Annotated[int, typer.Option(help="Requests that may wait; more get a 503.", min=1)] = 128,
    body_megabytes: Annotated[float, typer.Option(help="The largest upload.", min=0.001)] = 8.0,
    plugin: PLUGIN = None,
) -> None:
    import socket

    import uvicorn

    from shortcaps.allocator import keep_freed_memory
    from shortcaps.inference.predict import Predictor
    from shortcaps.serve import Limits, create_app

    keep_freed_memory()
    predictor = Predictor(run)
    limits = Limits(queue=queue, body_bytes=int(body_megabytes * 1e6))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio sends small answers at once instead of waiting for more to send with them.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(2048)  # who connects at once, before the application is up, waits instead of being refused
        except OSError as error:
            raise RunError(
                f"cannot listen on {host}:{port} ({error.strerror}): choose another --host or --port"
            ) from error
        shown = f"[{host}]" if ":" in host else host
        console.print(f"http://{shown}:{listener.getsockname()[1]}  (stop with Ctrl-C)", highlight=False)
        config = uvicorn.Config(
            create_app(predictor, limits),
            log_level="warning",
            # More connections than may wait are turned away by the application, which says when to come back.
            timeout_keep_alive=15,
            h11_max_incomplete_event_size=64_000,
        )
        uvicorn.Server(config).run(sockets=[listener])

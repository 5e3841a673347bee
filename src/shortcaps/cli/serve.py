"""`shortcaps serve`."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from shortcaps.cli.app import app, console
from shortcaps.cli.shared import PLUGIN, RUN
from shortcaps.errors import RunError
from shortcaps.serve.limits import WAITING_CONNECTIONS, Limits


@app.command(
    "serve",
    help="""Serve a web page and an API for a trained network.

The page: draw, or drop a picture, and see probabilities, routing maps and poses. The API: POST /predict, described at /docs.
Nobody outside this machine can reach it unless --host says so; then use --token-file.

Examples:

    shortcaps serve mnist-baseline-fuzzy

    shortcaps serve runs/photos-compact-23k-fuzzy --port 9000 --host 0.0.0.0 --token-file token --allow-host example.org
""",
)
def serve_command(
    run: RUN,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port.", min=0, max=65535)] = 8000,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A further name that the server goes by, e.g. example.org. Repeatable.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="A file with a token; who asks must send it. [default: everybody may ask]")
    ] = None,
    queue: Annotated[int, typer.Option(help="Requests that may wait; more get a 503.", min=1)] = Limits.queue,
    body_megabytes: Annotated[float, typer.Option(help="The largest upload.", min=0.001)] = Limits.body_bytes / 1e6,
    connections: Annotated[int, typer.Option(help="Open connections in all.", min=1)] = Limits.connections,
    connections_per_address: Annotated[
        int, typer.Option(help="Open connections of one address. Behind a proxy, all are of one.", min=1)
    ] = Limits.connections_per_address,
    access_log: Annotated[bool, typer.Option(help="Print a line of JSON for each request.")] = False,
    plugin: PLUGIN = None,
) -> None:
    """Run `shortcaps serve`."""
    from shortcaps.allocator import keep_freed_memory
    from shortcaps.inference.predict import Predictor
    from shortcaps.serve import Access, create_app
    from shortcaps.serve.access import allowed_hosts, read_token
    from shortcaps.serve.server import run_server

    access = Access(host, allowed_hosts(allow_host or ()), read_token(token_file) if token_file else None)
    limits = Limits(
        queue=queue,
        body_bytes=int(body_megabytes * 1e6),
        connections=connections,
        connections_per_address=connections_per_address,
    )
    keep_freed_memory()
    application = create_app(Predictor(run), limits, access)
    if access_log:
        _print_requests()
    with _listening(host, port) as listener:
        shown = f"[{host}]" if ":" in host else host
        console.print(f"http://{shown}:{listener.getsockname()[1]}  (stop with Ctrl-C)", highlight=False)
        run_server(application, listener)


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio sends small answers at once instead of waiting for more to send with them.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            # Who connects at once, before the application is up, waits instead of being refused.
            listener.listen(WAITING_CONNECTIONS)
        except OSError as error:
            raise RunError(
                f"cannot listen on {host}:{port} ({error.strerror}): choose another --host or --port"
            ) from error
        yield listener


def _print_requests() -> None:
    """Let the access log go to standard output as it is."""
    log = logging.getLogger("shortcaps.serve.access")
    log.addHandler(logging.StreamHandler(sys.stdout))
    log.setLevel(logging.INFO)
    log.propagate = False

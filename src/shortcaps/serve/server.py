"""The application behind a socket, until it is told to stop."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
from types import FrameType

import torch
import uvicorn
from fastapi import FastAPI

from shortcaps.serve.limits import WAITING_CONNECTIONS
from shortcaps.serve.protocol import LimitedProtocol, ServiceConfig
from shortcaps.serve.service import Service

SWEEP_SECONDS = 0.25
ACCEPTED_AT_ONCE = 32
"""Connections that are accepted before those that are open get their turn again: as many as wait, asyncio would take."""


def run_server(app: FastAPI, listener: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM; then accept nothing more, finish what is in hand within `drain_seconds`, and return.

    Args:
        app: From `create_app`.
        listener: Bound, and listening.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        # One core is for decoding and talking: threads of the network that wait for each other while something else has a core
        # made answers take twenty times as long.
        torch.set_num_threads(max(1, torch.get_num_threads() - 1))
    Server(server_config(app)).run(sockets=[listener])


def server_config(app: FastAPI) -> ServiceConfig:
    """How uvicorn runs an application from `create_app`."""
    service: Service = app.state.service
    config = ServiceConfig(
        app,
        http=LimitedProtocol,
        ws="none",
        # What strangers send wrongly is counted, not logged: they could fill a disk with it.
        log_level="error",
        access_log=False,
        server_header=False,
        # Whoever sends X-Forwarded-For is not believed: limits for each address would be for the asking.
        proxy_headers=False,
        backlog=ACCEPTED_AT_ONCE,
        timeout_keep_alive=math.ceil(service.limits.idle_seconds),
        timeout_graceful_shutdown=math.ceil(service.limits.drain_seconds),
    )
    config.service = service
    return config


class Server(uvicorn.Server):
    """uvicorn, with a look at all connections every quarter of a second; a signal to stop is no failure."""

    config: ServiceConfig

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, and begin to look at the connections."""
        await super().startup(sockets)
        for listener in sockets or []:
            listener.listen(WAITING_CONNECTIONS)  # asyncio has told the kernel to keep as few as it accepts at once
        self._sweeper = asyncio.create_task(self._sweep())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, and look no more."""
        await super().shutdown(sockets)
        self._sweeper.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain; a second Ctrl-C does not wait."""
        # uvicorn's own would raise the signal again when all is done, and so end with its status.
        self.config.service.is_draining = True
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            for connection in list(self.server_state.connections):
                if isinstance(connection, LimitedProtocol):
                    connection.check_time(loop.time())

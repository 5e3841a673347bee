"""One decoder process, seen from the server: asked for an image at a time, killed when it does not answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

from shortcaps.serve.decoder import ANSWER, MAX_REASON, REQUEST, Outcome

SCRIPT = Path(__file__).with_name("decoder.py")
START_SECONDS = 30.0
"""For the first answer of a process, which has to start first, on a busy machine too."""


class DecoderProcess:
    """Runs `decoder.py` in a process group of its own: Ctrl-C in a terminal is not for it, and one signal ends all of it.

    Args:
        settings: What `decoder.py` takes, as JSON.
        image_bytes: Length that an image must have: a process that has handled hostile input is not believed.
    """

    def __init__(self, settings: str, image_bytes: int) -> None:
        self.settings, self.image_bytes = settings, image_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._has_answered = False

    @property
    def pid(self) -> int | None:
        """Of the process; None while none runs."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Raises OSError where no process can be started."""
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            # Its imports are ours, wherever they come from; its arithmetic has one thread, so that it may fork.
            paths = os.pathsep.join(path for path in sys.path if path)
            environment = {**os.environ, "PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-P", str(SCRIPT), self.settings]
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.DEVNULL,
                    env=environment,
                    process_group=0,
                )
            except OSError:
                ours.close()
                raise
        self._socket, self._has_answered = ours, False

    def kill(self) -> None:
        """End it, with its child, whatever they are doing."""
        process, connection = self._process, self._socket
        self._process = self._socket = None
        if connection is not None:
            connection.close()
        if process is not None:
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    async def ask(
        self, content: bytes, *, seconds: float, wall_seconds: float, invert: bool | None
    ) -> tuple[Outcome, bytes]:
        """What became of a picture, with the float32 pixels of the image or the reason.

        Args:
            content: Of the file.
            seconds: Processor time that it may take.
            wall_seconds: After which the process is killed.
            invert: As in `PixelPreparation.pixels`.

        Raises:
            OSError: No process can be started.
        """
        if self._socket is None:
            self.start()
        assert self._socket is not None
        if not self._has_answered:
            wall_seconds += START_SECONDS
        loop = asyncio.get_running_loop()
        done = False
        try:
            async with asyncio.timeout(wall_seconds):
                choice = -1 if invert is None else int(invert)
                await loop.sock_sendall(self._socket, REQUEST.pack(len(content), seconds, choice))
                await loop.sock_sendall(self._socket, content)
                outcome, length = ANSWER.unpack(await self._receive(ANSWER.size))
                expected = length == self.image_bytes if outcome == Outcome.IMAGE else length <= MAX_REASON
                if not expected or outcome not in iter(Outcome):
                    return Outcome.CRASHED, b""
                result = await self._receive(length)
                # After a crash nobody knows what of the request is still unread.
                self._has_answered = done = outcome != Outcome.CRASHED
                return Outcome(outcome), result
        except TimeoutError:
            return Outcome.TOO_SLOW, b""
        except (OSError, struct.error):
            return Outcome.CRASHED, b""
        finally:
            if not done:
                self.kill()

    async def _receive(self, length: int) -> bytes:
        """So many bytes; fewer where the process has ended."""
        assert self._socket is not None
        loop, parts, missing = asyncio.get_running_loop(), [], length
        while missing and (part := await loop.sock_recv(self._socket, missing)):
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

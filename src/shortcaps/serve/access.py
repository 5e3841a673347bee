"""Who may ask: requests that name this server as their host, come from its own page, and hold the token if there is one."""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from starlette.types import Scope

from shortcaps.errors import RunError
from shortcaps.serve.refusals import Refused

LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})
OPEN_PATHS = frozenset({"/", "/docs", "/openapi.json", "/healthz", "/readyz"})
"""What needs no token: a page that asks for it, and what tells nothing but whether the server is up."""
MIN_TOKEN = 16
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?")


@dataclass(frozen=True)
class Access:
    """Rules of who may ask.

    Attributes:
        bound: The name or address that the server was told to listen on, good with the server's own port.
        hosts: Further ones, `name` for any port or `name:port`.
        token: That `Authorization: Bearer …` must carry.
    """

    bound: str = "127.0.0.1"
    hosts: frozenset[str] = frozenset()
    token: bytes | None = None

    def check(self, scope: Scope, path: str) -> None:
        """Raises Refused where the request may not be answered."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if not self._is_us(host, scope.get("server")):
            # A page of somebody else's, whose name was made to point here (DNS rebinding), gives itself away by that name.
            message = f"this server is not called {host[:80]!r}: start it with --allow-host to call it that"
            raise Refused(421, "host", message)
        origins = [value.decode("latin-1").lower() for name, value in scope["headers"] if name == b"origin"]
        if any(origin.partition("://")[2] != host for origin in origins):
            raise Refused(403, "origin", "pages of other sites may not ask this server")
        if self.token is not None and path not in OPEN_PATHS:
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self.token):
                message = "this server wants its token: send it as 'Authorization: Bearer …'"
                raise Refused(401, "token", message, {"WWW-Authenticate": "Bearer"})

    def _is_us(self, host: str, server: tuple[str, int | None] | None) -> bool:
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name, port = found[1], int(found[2] or 80)
        if name in self.hosts or f"{name}:{port}" in self.hosts:
            return True
        address, own_port = server or (self.bound, 80)
        # The address that a connection came in by, as a number, cannot be a name that was made to point here.
        return port == own_port and (name in LOCAL or name in (_bracketed(self.bound), _literal(address)))


def _bracketed(host: str) -> str:
    return f"[{host}]".lower() if ":" in host else host.lower()


def _literal(address: str) -> str | None:
    try:
        return _bracketed(str(ipaddress.ip_address(address)))
    except ValueError:
        return None


def allowed_hosts(names: Iterable[str]) -> frozenset[str]:
    """What `--allow-host` says, checked.

    Raises:
        RunError: One of them is no name or address, with or without a port.
    """
    for name in names:
        if _HOST.fullmatch(name.lower()) is None:
            raise RunError(f"--allow-host {name} is neither a name nor an address, with or without a port: example.org")
    return frozenset(name.lower() for name in names)


def read_token(file: Path) -> bytes:
    """The token in a file, without the white space around it.

    Raises:
        RunError: There is none that would keep anybody out.
    """
    try:
        token = file.read_bytes().strip()
    except OSError as error:
        raise RunError(f"--token-file {file} cannot be read ({error.strerror})") from error
    if len(token) < MIN_TOKEN or re.fullmatch(rb"[!-~]+", token) is None:
        raise RunError(
            f"--token-file {file} must hold one word of at least {MIN_TOKEN} printable ASCII characters: "
            "write one with `openssl rand -hex 32`"
        )
    return token

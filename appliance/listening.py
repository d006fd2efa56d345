"""The listening socket: small send buffers, and an address that says what to do when it can not be had."""

import socket
from typing import Any

import uvicorn

from appliance.connection import connection_type

SEND_BUFFER_BYTES = 4_096
"""Kernel's send buffer of a connection (it doubles it): default ones hide megabytes of unread tokens."""
BACKLOG = 2_048


class PortTaken(Exception):
    """The address can not be listened on; the message says what to do."""


def listen(host: str, port: int) -> socket.socket:
    """A bound socket with small send buffers, which accepted connections inherit. Raises `PortTaken`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except socket.gaierror as error:
        raise PortTaken(f"host={host!r} is no address of this machine ({error.strerror}): use 127.0.0.1 or 0.0.0.0") from error
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        remedy = "stop what listens there, choose another port with --port, or 0 for any free one"
        raise PortTaken(f"can not listen on {host}:{port} ({error.strerror}): {remedy}") from error
    return sock


def url_of(sock: socket.socket) -> str:
    """The address as a client on this machine writes it."""
    bound: tuple[str, int] = sock.getsockname()[:2]
    host, port = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bound[0], bound[0]), bound[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def server_config(app: Any, write_deadline_s: float, trusted_proxies: str = "") -> uvicorn.Config:
    """uvicorn with httptools and nothing that we do ourselves: no lifespan, no access log, no logging set-up. Client address and scheme
    are taken from the headers of trusted proxies only."""
    return uvicorn.Config(
        app,
        http=connection_type(write_deadline_s),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=trusted_proxies,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=3,
    )

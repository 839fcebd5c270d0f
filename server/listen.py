"""The listening socket: bound before anything slow happens."""

from __future__ import annotations

import errno
import ipaddress
import socket


class ListenError(OSError):
    """The address can't be had; the message says which and what to do."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket on ``host:port`` (port 0: any free one). Raises ``ListenError``."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, OverflowError) as error:
        raise ListenError(f"can't listen on {host}: {error}") from None
    try:
        # Connections of a server that was killed may linger on this port for a minute; they must not stop the next.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ListenError(
                f"port {port} on {host} is taken; stop what uses it or choose another with --port"
            ) from None
        raise ListenError(f"can't listen on {host} port {port}: {error.strerror}") from None
    return listener


def reachable(listener: socket.socket) -> bool:
    """Whether other machines can reach it: its address is not the machine's own loopback."""
    return not ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

"""Telling systemd how the server is: sd_notify(3), a datagram to the socket it names; nothing where it named none."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable


def notify(state: str) -> None:
    """Send ``state`` (``READY=1``, ``STOPPING=1``, ``STATUS=...``) to ``$NOTIFY_SOCKET``; a lost one is no error."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):  # Linux's abstract names begin with a zero byte
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as link:
        link.sendto(state.encode(), address)


def watchdog_interval() -> float | None:
    """Seconds between two signs of life, half of what ``WatchdogSec=`` allows; None: none are asked of this process."""
    usec, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not usec.isdigit() or int(usec) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(usec) / 2e6


async def watchdog(healthy: Callable[[], bool]) -> None:
    """Give signs of life as long as ``healthy`` says so. Ends at once where none are asked for."""
    interval = watchdog_interval()
    while interval is not None:
        if healthy():
            notify("WATCHDOG=1")
        await asyncio.sleep(interval)

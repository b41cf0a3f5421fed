"""sd_notify: tells systemd, or another supervisor, that the server is ready, is alive, or stops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Notifier:
    """Where the supervisor listens.

    Attributes:
        address: of its datagram socket; a leading @ is Linux's abstract namespace. Empty: none listens.
        watchdog_s: the supervisor restarts a server that is silent for so many seconds; 0: never.
    """

    address: str = ""
    watchdog_s: float = 0.0

    @staticmethod
    def from_environment(environment: Mapping[str, str] | None = None) -> Notifier:
        """The notifier of what systemd tells a service: NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID."""
        told = os.environ if environment is None else environment
        address, micros = told.get("NOTIFY_SOCKET", ""), told.get("WATCHDOG_USEC", "")
        mine = told.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        return Notifier(address, int(micros) / 1e6 if mine and micros.isdigit() else 0.0)

    def send(self, text: str) -> None:
        """Send lines of NAME=VALUE, without waiting. It is no error if the supervisor has gone."""
        if not self.address:
            return
        name = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(text.encode(), name)


async def keep_alive(notifier: Notifier, lives: Callable[[], bool]) -> None:
    """Tell the watchdog that the event loop turns and the engine lives; say nothing while it does not."""
    if not notifier.watchdog_s:
        return
    while True:
        if lives():
            notifier.send("WATCHDOG=1")
        await asyncio.sleep(notifier.watchdog_s / 3)

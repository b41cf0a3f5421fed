"""sd_notify: systemd, or who speaks like it, hears that the server is ready, stops, and lives."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Notifier:
    """Where to say it.

    Attributes:
        address: of a datagram socket; a leading @ is Linux's abstract namespace. Empty: nobody listens.
        watchdog_s: who says nothing for so long is restarted; 0: nobody waits.
    """

    address: str = ""
    watchdog_s: float = 0.0

    @staticmethod
    def from_environment(environment: Mapping[str, str] | None = None) -> Notifier:
        """As systemd tells a service: NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID."""
        told = os.environ if environment is None else environment
        address, micros = told.get("NOTIFY_SOCKET", ""), told.get("WATCHDOG_USEC", "")
        mine = told.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        return Notifier(address, int(micros) / 1e6 if mine and micros.isdigit() else 0.0)

    def send(self, text: str) -> None:
        """Say it, as lines of NAME=VALUE. Nobody waits for it, and a listener that is gone is no error."""
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

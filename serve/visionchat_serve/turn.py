"""One at a time: what only one of the processes on a machine (or in a pod) may do just now.

Replicas that share a memory limit all see it reached at the same moment. Who retires takes the turn and keeps it to the
end of its process, who loads a model keeps it until it is ready; the others look again later, when memory may be free.
"""

from __future__ import annotations

import socket


class Turn:
    """Linux gives a name of a socket to one process of a network namespace at a time, and takes it back when that one
    ends, however it does; nothing is sent, nothing lies in a folder."""

    def __init__(self, name: str = "visionchat-retiring") -> None:
        self._address = f"\0{name}"
        self._held: socket.socket | None = None

    def take(self) -> bool:
        """True when it is ours, now or already."""
        if self._held is None:
            held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                held.bind(self._address)
            except OSError:
                held.close()
                return False
            self._held = held
        return True

    def give_back(self) -> None:
        """Nothing, if it is not ours."""
        if self._held is not None:
            self._held.close()
            self._held = None

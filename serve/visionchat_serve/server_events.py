"""The bytes of server-sent events: what a browser's EventSource reads.

An event with an `id` is one that a reader may resume after; a control event must have none, or a resumed reader would
skip what came between (the browser keeps the id of the last event that had one). Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

RETRY = b"retry: 1000\n\n"  # ms after which a browser that lost the connection comes back
ALIVE = b": alive\n\n"  # nothing new, but the connection lives


def event(name: str, data: Mapping[str, Any], event_id: str | None = None) -> bytes:
    """One event; JSON has no line breaks, so its data is one line."""
    place = f"id: {event_id}\n" if event_id is not None else ""
    return f"{place}event: {name}\ndata: {json.dumps(data)}\n\n".encode()


def comment(text: str) -> bytes:
    """A line that readers ignore and that keeps the connection alive."""
    return f": {text}\n\n".encode()

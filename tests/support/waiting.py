"""Waiting for a condition, never for a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable


async def wait_until(predicate: Callable[[], bool | Awaitable[bool]], what: str, seconds: float = 10) -> None:
    """Return as soon as `predicate` holds; after `seconds` fail, saying `what` did not come true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        held = predicate()
        if held if isinstance(held, bool) else await held:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"did not come true within {seconds} s: {what}")

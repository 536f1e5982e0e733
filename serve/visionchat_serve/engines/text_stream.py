"""Tokens in, whole characters out, with stop strings.

A token may end inside a UTF-8 sequence, and a stop string may span tokens; text is held back until neither can
still change it. Each token costs the decoding of the last few tokens, not of the whole answer. Knows no model:
`decode` turns ids into text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"


class TextStream:
    """`push` a token, get the text that is certain; `flush` at the end. `stopped` tells a stop string was met."""

    def __init__(self, decode: Callable[[Sequence[int]], str], stop: Sequence[str] = ()) -> None:
        self.stopped = False
        self._decode = decode
        self._stop = [s for s in stop if s]
        self._ids: list[int] = []  # from the last place where text was complete
        self._context = 0  # of those, how many were given out already
        self._held = ""  # text that may begin a stop string

    def push(self, token_id: int) -> str:
        self._ids.append(token_id)
        before = self._decode(self._ids[: self._context])
        now = self._decode(self._ids)
        if now.endswith(REPLACEMENT) and len(self._ids) - self._context < 8:
            return ""  # the character is not complete yet
        self._ids, self._context = self._ids[self._context :], len(self._ids) - self._context
        return self._past_stops(now[len(before) :])

    def flush(self) -> str:
        """What is left when no more tokens come."""
        rest = self._decode(self._ids)[len(self._decode(self._ids[: self._context])) :]
        self._ids, self._context = [], 0
        text = self._past_stops(rest) + self._held
        self._held = ""
        return text

    def _past_stops(self, new: str) -> str:
        text = self._held + new
        self._held = ""
        places = [place for stop in self._stop if (place := text.find(stop)) >= 0]
        if places:
            self.stopped = True
            return text[: min(places)]
        keep = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)

"""How many values a JSON body may hold. A body of 50 MB of tiny ones would take 5 GB and half a minute to parse.

Pictures are few and long strings, so counting is cheap for every request that is one. Pure. Used by `intake`.
"""

from __future__ import annotations

import re
from itertools import islice

from visionchat_serve.errors import InvalidRequest

MAX_VALUES = 50_000
_MARKS = b",", b"[", b"{"
_STRING_OR_MARK = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|[,\[{]', re.DOTALL)
_QUOTE = ord('"')


def check_values(body: bytes | bytearray) -> None:
    """Raise `InvalidRequest` when `body` has more commas and opening brackets outside of strings."""
    if sum(map(body.count, _MARKS)) <= MAX_VALUES:
        return  # most of what is counted here may stand in texts
    marks = (found.start() for found in _STRING_OR_MARK.finditer(body) if body[found.start()] != _QUOTE)
    if next(islice(marks, MAX_VALUES, None), None) is not None:
        raise InvalidRequest(f"the body holds more than {MAX_VALUES} values; send fewer messages or parts")

"""`Idempotency-Key`: a request that is sent again is answered by the job it made the first time.

As the IETF draft "The Idempotency-Key HTTP Header Field" says: a key is good for one request, which is recognised by
the fingerprint of its body; the same key with another body is refused by the queue (422), a malformed one here (400).
The draft's key is a quoted string; as many clients send it bare, that is taken as well. Pure.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence

from visionchat_serve.errors import InvalidRequest

HEADER = "Idempotency-Key"
REPLAYED = "Idempotency-Replayed"  # on answers that were made for an earlier request with the same key

# A structured-fields string (RFC 8941): printable ASCII in quotes, where only \" and \\ are escaped.
_QUOTED = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\]){1,255})"')
_BARE = re.compile(r"[!#-+\--:<-\[\]-~]{1,255}")


def read_key(values: Sequence[str]) -> str | None:
    """The key in the header's values, None when it was not sent. Raises `InvalidRequest`."""
    if not values:
        return None
    [value, *more] = values
    if not more and (quoted := _QUOTED.fullmatch(value.strip(" \t"))):
        return re.sub(r"\\(.)", r"\1", quoted[1])
    if not more and (bare := _BARE.fullmatch(value.strip(" \t"))):
        return bare[0]
    raise InvalidRequest(
        f'{HEADER}: one key of 1 to 255 printable ASCII characters is needed, as in {HEADER}: "8e03978e-40d5"',
        param=HEADER,
    )


def fingerprint(path: str, body: bytes | bytearray) -> str:
    """Of a JSON request: the same whatever the order of its keys and its white space."""
    canonical = json.dumps(json.loads(body), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{path}\n{canonical}".encode()).hexdigest()

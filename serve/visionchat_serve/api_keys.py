"""Who may ask: API keys from a file that holds only their hashes.

    # name      SHA-256 of the key, in hex
    ana         9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08

`visionchat key NAME` makes a key and its line. The file is read again when it changes, so keys are added and revoked
without a restart; a file that has become unreadable keeps the last good keys and says so in the log. A key is 32
random bytes, so a plain hash is enough; all hashes are compared in constant time. Knows no HTTP.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from visionchat_serve.errors import ConfigError

log = logging.getLogger(__name__)

PREFIX = "vc-"
LOOK_EVERY = 1.0  # seconds between looks at the file
_LINE = re.compile(r"(?P<name>[A-Za-z0-9._-]{1,64})\s+(?P<hash>[0-9a-f]{64})")


def new_key(name: str) -> tuple[str, str]:
    """A fresh key and the file's line for it."""
    key = PREFIX + secrets.token_urlsafe(32)
    line = f"{name} {_hash(key)}"
    if _LINE.fullmatch(line) is None:
        raise ConfigError(f"the name {name!r} may have letters, digits, dots, dashes and underscores, at most 64")
    return key, line


def parse_keys(text: str) -> dict[str, str]:
    """Hash -> name. Raises `ConfigError` naming the first wrong line."""
    keys = {}
    for number, line in enumerate(text.splitlines(), start=1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        match = _LINE.fullmatch(entry)
        if match is None:
            raise ConfigError(
                f"line {number} of the API keys is not `name sha256-in-hex`; make one: visionchat key NAME"
            )
        keys[match["hash"]] = match["name"]
    return keys


class ApiKeys:
    """The keys of one file. Raises `ConfigError` at once when it cannot be read."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._looked_at = clock()
        self._seen = self._stamp()
        self._names = self._read()

    def owner(self, key: str) -> str | None:
        """The name a key belongs to, None for a key that is not (or no longer) valid."""
        self._refresh()
        given, found = _hash(key), None
        for known, name in self._names.items():
            if hmac.compare_digest(given, known):
                found = name
        return found

    def _refresh(self) -> None:
        if self._clock() - self._looked_at < LOOK_EVERY:
            return
        self._looked_at = self._clock()
        stamp = self._stamp()
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            self._names = self._read()
        except ConfigError as error:
            log.error("API keys not reloaded, the earlier ones stay valid: %s", error.message)

    def _stamp(self) -> tuple[int, int, int] | None:
        """Changes with the content, also when a mounted Secret swaps the link behind the path."""
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_ino, stat.st_size

    def _read(self) -> dict[str, str]:
        try:
            return parse_keys(self._path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the API keys in {self._path}: {error}") from error


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()

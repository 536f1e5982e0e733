"""Whether a live object still is what the operator wants. Pure; `apply` calls it.

Only the fields that the manifest names are compared: the API server's defaults and other people's fields are not
ours. A field that the manifest no longer names is told by the digest of what was applied last.
"""

from __future__ import annotations

from typing import Any

from visionchat_operator.names import APPLIED, digest
from visionchat_operator.world import Manifest


def signed(manifest: Manifest) -> Manifest:
    """The manifest with its own digest as an annotation."""
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), APPLIED: digest(manifest)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def differs(wanted: Manifest, live: Manifest | None) -> bool:
    """`wanted` is signed."""
    return live is None or not _within(wanted, live)


def _within(wanted: Any, live: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(k in live and _within(v, live[k]) for k, v in wanted.items())
    if isinstance(wanted, list):
        return isinstance(live, list) and _list_within(wanted, live)
    return bool(wanted == live)


def _list_within(wanted: list[Any], live: list[Any]) -> bool:
    """Lists of named things are sets by name, as the API server merges them; all others are whole values."""
    for mark in ("name", "uid"):
        if wanted and all(isinstance(item, dict) and mark in item for item in (*wanted, *live)):
            by_name = {item[mark]: item for item in live}
            return all(item[mark] in by_name and _within(item, by_name[item[mark]]) for item in wanted)
    return len(wanted) == len(live) and all(_within(w, x) for w, x in zip(wanted, live, strict=True))

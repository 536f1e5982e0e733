"""From `kubectl apply` to an answer."""

from __future__ import annotations

from pathlib import Path

from node.conftest import Service
from visionchat_serve.client import Timing, ask


def test_a_picture_asked_through_the_service_gives_a_streamed_answer(service: Service, picture: Path) -> None:
    service.apply()
    timing = Timing()
    pieces = list(ask(service.url, [picture], "What do you see?", timing))
    assert "".join(pieces) == "A red circle and a blue square on a white background."
    assert len(pieces) > 1
    assert timing.first_token is not None
    assert timing.first_token < timing.total
    assert service.status()["replicas"] == {"desired": 1, "ready": 1, "pinned": 0, "shared": 1, "current": 1}
    assert service.condition("CPUPinned") == ("False", "NotAsked")

"""An operator that has nothing to do does nothing: the API server's audit log says so."""

from __future__ import annotations

import os
from math import ceil

from support.cluster_fixtures import Quiet, eventually
from visionchat_operator.resync import PERIOD

# Longer than the operator ever waits before it plans again. Most of it has passed while other tests ran.
# VISIONCHAT_QUIET_SECONDS=300 is the long form.
QUIET_SECONDS = int(os.environ.get("VISIONCHAT_QUIET_SECONDS", "45"))
KINDS = 12  # that are listed now and then


def test_nothing_is_written_when_nothing_changes(quiet: Quiet) -> None:
    assert quiet.chats.ready(1)
    eventually(lambda: quiet.lasted >= QUIET_SECONDS, "some quiet time has passed", seconds=QUIET_SECONDS + 1)
    asked = quiet.requests("get", "list")
    print(f"{quiet.lasted:.0f} s: {len(asked)} requests, none of which writes")
    assert quiet.requests("create", "update", "patch", "delete") == []
    assert len(asked) <= KINDS * ceil(quiet.lasted / PERIOD.total_seconds())
    assert quiet.operator.metric("visionchat_operator_errors_total") == 0
    assert quiet.chats.ready(1)


def test_the_audit_log_knows_what_the_operator_writes(quiet: Quiet) -> None:
    """Last, because it ends the quiet."""
    quiet.chats.change(suspend=True)
    eventually(lambda: quiet.requests("create", "update", "patch", "delete"), "the log has it")

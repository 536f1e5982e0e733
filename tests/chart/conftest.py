"""The chart tier: the real helm renders, nothing is installed."""

from __future__ import annotations

import pytest

from support.chart import EVERYTHING, Objects, template


@pytest.fixture(scope="session")
def by_default() -> Objects:
    return template()


@pytest.fixture(scope="session")
def everything() -> Objects:
    return template(None, EVERYTHING)

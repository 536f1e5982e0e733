"""What was used last stays, as far as there is room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from visionchat_serve.engines.least_recently_used import LeastRecentlyUsed


def test_what_was_not_used_longest_makes_room() -> None:
    kept: LeastRecentlyUsed[str] = LeastRecentlyUsed(10)
    for key in (b"a", b"b"):
        kept.put(key, key.decode(), 5)
    assert kept.get(b"a") == "a"
    kept.put(b"c", "c", 5)
    assert [kept.get(key) for key in (b"a", b"b", b"c")] == ["a", None, "c"]
    kept.put(b"d", "d", 11)
    assert (kept.get(b"d"), len(kept), kept.bytes) == (None, 2, 10)
    kept.clear()
    assert (kept.get(b"a"), len(kept), kept.bytes) == (None, 0, 0)


@given(st.integers(0, 20), st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 9), st.booleans())))
def test_it_is_a_list_of_the_latest_that_fit(room: int, calls: list[tuple[str, int, bool]]) -> None:
    kept: LeastRecentlyUsed[int] = LeastRecentlyUsed(room)
    model: dict[str, int] = {}  # in order of use
    for key, size, puts in calls:
        if puts:
            model.pop(key, None)
            kept.put(key.encode(), size, size)
            model |= {key: size} if size <= room else {}
            while sum(model.values()) > room:
                model.pop(next(iter(model)))
        else:
            assert kept.get(key.encode()) == model.get(key)
            model |= {key: model.pop(key)} if key in model else {}
        assert (kept.bytes, len(kept)) == (sum(model.values()), len(model))

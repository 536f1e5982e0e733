"""Tokens in, whole characters out; stop strings wherever they begin."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from visionchat_serve.engines.text_stream import TextStream


def bytes_to_text(ids: Sequence[int]) -> str:
    """The hardest tokenizer there is: each token is one byte."""
    return bytes(ids).decode("utf-8", errors="replace")


def run(tokens: bytes, stop: Sequence[str] = ()) -> tuple[list[str], bool]:
    stream = TextStream(bytes_to_text, stop)
    pieces = []
    for token in tokens:
        pieces.append(stream.push(token))
        if stream.stopped:
            return pieces, True
    pieces.append(stream.flush())
    return pieces, stream.stopped


@given(st.text(max_size=40))
def test_any_text_comes_out_whole_and_never_in_broken_pieces(text: str) -> None:
    pieces, stopped = run(text.encode())
    assert "".join(pieces) == text
    assert not stopped
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


def test_bytes_that_are_no_text_do_not_hold_up_the_rest() -> None:
    pieces, _ = run(b"ok \xff\xfe then more text")
    assert "".join(pieces) == "ok \ufffd\ufffd then more text"


def test_an_answer_cut_inside_a_character_ends_with_its_mark() -> None:
    assert "".join(run("né".encode()[:-1])[0]) == "n\ufffd"


@given(
    text=st.text("abc", max_size=30),
    stop=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_the_answer_ends_before_the_first_stop_string(text: str, stop: list[str]) -> None:
    pieces, stopped = run(text.encode(), stop)
    out = "".join(pieces)
    ends = [text.index(s) + len(s) for s in stop if s in text]
    assert stopped == bool(ends)
    if not ends:
        assert out == text
    else:  # the one that is complete first decides; of two complete at the same token, the one that began first
        first = min(ends)
        assert out == text[: min(first - len(s) for s in stop if text[:first].endswith(s))]


def test_text_is_not_held_back_longer_than_a_stop_string_may_need() -> None:
    pieces, _ = run(b"abcabd", ["abce"])
    assert pieces == ["", "", "", "abc", "", "abd", ""]

"""One answer out of the events of one or several attempts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from visionchat_serve.answer import Answer
from visionchat_serve.errors import ContextTooLong, ReplicaLost
from visionchat_serve.messages import Finish, JobEvent, TokenChunk, TokenLogprob, Usage


def chunk(text: str, attempt: int = 1, index: int = 0, choice: int = 0, logprobs: str = "") -> JobEvent:
    """`logprobs` has a letter for each token."""
    tokens = tuple(TokenLogprob(letter, -1.0, (ord(letter),)) for letter in logprobs)
    return JobEvent("0-0", attempt, TokenChunk("job", attempt, index, text, choice, tokens))


def end(reason: str = "stop", attempt: int = 1, **more: str) -> JobEvent:
    return JobEvent("0-0", attempt, Finish(reason, Usage(1, 1), **more))  # type: ignore[arg-type]


def given_out(*events: JobEvent) -> list[str]:
    answer = Answer()
    return [answer.feed(event).text for event in events]


def test_text_goes_through_in_order() -> None:
    assert given_out(chunk("a ", index=0), chunk("red ", index=1), end()) == ["a ", "red ", ""]


def test_a_second_attempt_that_repeats_the_first_goes_on_where_it_stopped() -> None:
    events = [chunk("a r"), chunk("a ", 2, 0), chunk("red", 2, 1), chunk(" circle", 2, 2), end(attempt=2)]
    assert given_out(*events) == ["a r", "", "ed", " circle", ""]


def test_a_second_attempt_that_differs_is_never_spliced() -> None:
    answer = Answer()
    answer.feed(chunk("a red circle"))
    with pytest.raises(ReplicaLost, match="ask again"):
        answer.feed(chunk("a blue", 2))


def test_a_second_attempt_that_ends_early_is_an_error() -> None:
    answer = Answer()
    answer.feed(chunk("a red circle"))
    answer.feed(chunk("a red", 2))
    with pytest.raises(ReplicaLost):
        answer.feed(end(attempt=2))


def test_words_of_an_older_attempt_are_dropped() -> None:
    assert given_out(chunk("a", 2), chunk("zzz", 1), chunk("b", 2, 1), end(attempt=2)) == ["a", "", "b", ""]


def test_a_chunk_that_was_written_twice_is_given_once() -> None:
    assert given_out(chunk("a", 1, 0), chunk("a", 1, 0), chunk("b", 1, 1)) == ["a", "", "b"]


def test_a_failed_job_raises_what_the_replica_said() -> None:
    with pytest.raises(ContextTooLong, match="too long"):
        Answer().feed(end("error", error_code="context_length_exceeded", message="too long"))


@given(
    text=st.text(min_size=1, max_size=40),
    cuts=st.lists(st.lists(st.integers(0, 40), max_size=6), min_size=1, max_size=4),
)
def test_any_attempts_at_the_same_text_give_it_exactly_once(text: str, cuts: list[list[int]]) -> None:
    """Every attempt but the last dies after its last cut; all say the same text in pieces of their own."""
    answer, out = Answer(), ""
    for attempt, places in enumerate(cuts, start=1):
        places = sorted({p for p in places if p <= len(text)} | ({len(text)} if attempt == len(cuts) else set()))
        start = 0
        for index, place in enumerate(places):
            out += answer.feed(chunk(text[start:place], attempt, index)).text
            start = place
    out += answer.feed(end(attempt=len(cuts))).text
    assert out == text == answer.text


def test_choices_are_kept_apart() -> None:
    answer = Answer()
    pieces = [answer.feed(chunk(text, 1, i, choice)) for i, (text, choice) in enumerate([("a", 0), ("x", 1), ("b", 0)])]
    assert [(p.text, p.choice) for p in pieces] == [("a", 0), ("x", 1), ("b", 0)]
    assert (answer.choices[0].text, answer.choices[1].text, answer.text) == ("ab", "x", "ab")


def test_every_choice_is_held_against_its_own_first_attempt() -> None:
    answer = Answer()
    first = [chunk("red", 1, 0, 0), chunk("blue", 1, 1, 1)]
    second = [chunk("blue c", 2, 0, 1), chunk("red square", 2, 1, 0)]
    assert [answer.feed(event).text for event in first + second] == ["red", "blue", " c", " square"]
    with pytest.raises(ReplicaLost):
        answer.feed(chunk("green", 3, 0, 1))


def test_an_attempt_that_never_came_to_a_choice_cannot_end() -> None:
    answer = Answer()
    for event in (chunk("red", 1, 0, 0), chunk("blue", 1, 1, 1), chunk("red", 2, 0, 0)):
        answer.feed(event)
    with pytest.raises(ReplicaLost):
        answer.feed(end(attempt=2))


def test_log_probabilities_are_given_once_however_the_attempts_are_cut() -> None:
    answer = Answer()
    events = [
        chunk("ab", 1, 0, logprobs="abc"),  # c's text was still held back
        chunk("a", 2, 0, logprobs="a"),
        chunk("bcd", 2, 1, logprobs="bcd"),
    ]
    told = [answer.feed(event) for event in events]
    assert [(p.text, "".join(t.token for t in p.logprobs)) for p in told] == [("ab", "abc"), ("", ""), ("cd", "d")]
    assert [bool(p) for p in told] == [True, False, True]
    assert "".join(t.token for t in answer.choices[0].logprobs) == "abcd"

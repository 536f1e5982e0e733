"""How an answer in JSON is written: one way, so that white space cannot go on until the answer's limit."""

from __future__ import annotations

import pytest
from llguidance import LLMatcher, LLTokenizer

from visionchat_serve.json_grammar import ANY_OBJECT, grammar_of

SCHEMA = '{"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}}'


def taken(text: str, schema: str) -> str:
    """The part of `text` that the grammar lets through, byte by byte."""
    tokenizer = LLTokenizer("byte")
    matcher = LLMatcher(tokenizer, grammar_of(schema))
    return text[: matcher.validate_tokens(tokenizer.tokenize_str(text))]


@pytest.mark.parametrize("schema", [ANY_OBJECT, SCHEMA])
@pytest.mark.parametrize(
    ("text", "stops_after"),
    [
        ('{"a": [1, 2]}', '{"a": [1, 2]}'),
        ("{}", "{}"),
        ("{ }", "{"),
        ("{\n}", "{"),
        ('{"a":  [1]}', '{"a": '),
        ('{"a":\n[1]}', '{"a":'),
        ('{"a": [ 1]}', '{"a": ['),
        ('{"a": [1,  2]}', '{"a": [1, '),
        ('{"a": [1] }', '{"a": [1]'),
        ('{"a": [1]}   ', '{"a": [1]}'),
    ],
)
def test_white_space_between_values_is_one_space_or_none(schema: str, text: str, stops_after: str) -> None:
    assert taken(text, schema) == stops_after

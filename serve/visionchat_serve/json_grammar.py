"""From a JSON Schema to the grammar that an answer must keep to, by llguidance.

`intake` asks here whether a schema can be kept to, before the queue; the engines compile the same text against
their tokens. Knows neither HTTP nor models.
"""

from __future__ import annotations

from typing import Any

from visionchat_serve.errors import InvalidRequest

MAX_BYTES = 64 << 10  # compiling takes time and memory in proportion
ANY_OBJECT = '{"type": "object"}'

# One way to write each value, the one that models write by themselves; free white space could go on for ever.
_FORM: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": False}


def grammar_of(schema: str) -> str:
    """llguidance's text for a schema that `check_schema` let through."""
    from llguidance import LLMatcher

    grammar: str = LLMatcher.grammar_from_json_schema(schema, overrides=_FORM)
    return grammar


def check_schema(schema: str, param: str) -> None:
    """Raise `InvalidRequest` when `schema` (JSON text of an object) is none, or asks for what cannot be kept to."""
    from llguidance import LLMatcher

    if len(schema) > MAX_BYTES:
        raise InvalidRequest(f"{param}: the schema is over {MAX_BYTES >> 10} kB; make it smaller", param=param)
    try:
        failed, messages = LLMatcher.validate_grammar_with_warnings(grammar_of(schema))
    except ValueError as error:
        failed, messages = True, [str(error)]
    if failed:
        reason = messages[0].splitlines()[0][:300]
        raise InvalidRequest(f"{param}: the schema cannot be used: {reason}", param=param)

"""Time to the first token of further questions about a picture, with what the engine kept of the first and without.

    python tests/bench/asking_on.py [--model tiny|DIR] [--dtype D] [--rounds N] [--max-tokens N]

Prints JSON; times are medians over the rounds, both ways in turn in one process, after one round that warms both.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

from visionchat_serve import cpu

PICTURE = Path(__file__).parents[1] / "data" / "pictures" / "circle-and-square.png"
KEEP_BYTES = 512 << 20


def main(model: str, dtype: str, rounds: int, max_tokens: int) -> dict[str, Any]:
    threads = cpu.available_cpus().whole
    cpu.limit_threads(threads)
    from visionchat_serve.engines.registry import model_folder
    from visionchat_serve.engines.torch_engine import TorchEngine

    engine = TorchEngine(model_folder(model), dtype=dtype, threads=threads, keep_bytes=KEEP_BYTES)
    engine.warm_up()
    measured = [_round(engine, max_tokens) for _ in range(rounds + 1)][1:]
    return {
        "model": model,
        "dtype": engine.info.dtype,
        "threads": threads,
        "rounds": rounds,
        "answer_tokens": max_tokens,
        "first_token_ms": {key: statistics.median(one[key] for one in measured) for key in measured[0]},
    }


def _round(engine: Any, max_tokens: int) -> dict[str, float]:
    """Milliseconds of each question, with the engine's memory as the name says."""
    first, other = ([_said("user", text, 1)] for text in ("Describe the picture.", "Where is the circle?"))
    engine.forget()
    times = {"first question": _ask(engine, first, max_tokens)[0]}
    times["another question, known"] = _ask(engine, other, max_tokens)[0]
    _, answer = _ask(engine, first, max_tokens)
    going_on = [*first, _said("assistant", answer), _said("user", "And where is the square?")]
    times["conversation, known"] = _ask(engine, going_on, max_tokens)[0]
    for name, messages in (("another question", other), ("conversation", going_on)):
        engine.forget()
        times[f"{name}, anew"] = _ask(engine, messages, max_tokens)[0]
    return times


def _said(role: Any, text: str, pictures: int = 0) -> Any:
    from visionchat_serve.messages import ImagePart, Message, TextPart

    return Message(role, (*map(ImagePart, range(pictures)), TextPart(text)))


def _ask(engine: Any, messages: list[Any], max_tokens: int) -> tuple[float, str]:
    from visionchat_serve.engines.protocol import EngineRequest
    from visionchat_serve.images import normalise
    from visionchat_serve.messages import SamplingParams

    image = normalise(PICTURE.read_bytes()).data
    began, first, text = time.monotonic(), 0.0, ""
    engine.add(EngineRequest("bench", tuple(messages), (image,), SamplingParams(max_tokens, temperature=0)))
    while engine.has_work:
        for output in engine.step():
            first = first or 1000 * (time.monotonic() - began)
            text += output.text
    return first, text


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--max-tokens", type=int, default=24)
    args = parser.parse_args()
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    print(json.dumps(main(args.model, args.dtype, args.rounds, args.max_tokens), indent=2))

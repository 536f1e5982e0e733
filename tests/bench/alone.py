"""The engine without anything around it, in a process of its own: the yardstick for what the stack adds.

Reads `{"picture", "question", "max_tokens"}` lines, answers each with `{"first_token", "per_token", "cpu", "tokens"}`
(seconds; `cpu` is the process's CPU time for the request). The picture is checked and shrunk as the gateway would.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


def main(model: str, threads: int, dtype: str) -> None:
    from visionchat_serve import cpu

    cpu.limit_threads(threads)
    from visionchat_serve.engines.registry import load_engine

    began = time.monotonic()
    engine = load_engine("torch", model, dtype=dtype, threads=threads, max_context=4096)
    engine.warm_up()
    print(json.dumps({"ready": time.monotonic() - began}), flush=True)
    for number, line in enumerate(sys.stdin):
        print(json.dumps(answer(engine, str(number), json.loads(line))), flush=True)


def answer(engine: Any, name: str, asked: dict[str, Any]) -> dict[str, float]:
    from visionchat_serve.engines.protocol import EngineRequest
    from visionchat_serve.images import normalise
    from visionchat_serve.messages import ImagePart, Message, SamplingParams, TextPart

    cpu_before, began = time.process_time(), time.monotonic()
    image = normalise(Path(asked["picture"]).read_bytes()).data
    message = Message("user", (ImagePart(0), TextPart(asked["question"])))
    engine.add(EngineRequest(name, (message,), (image,), SamplingParams(asked["max_tokens"], temperature=0)))
    first, last, tokens = 0.0, 0.0, 0
    while engine.has_work:
        for output in engine.step():
            tokens, last = output.usage.completion_tokens, time.monotonic() - began
            first = first or (last if output.text else 0.0)
    per_token = (last - first) / max(1, tokens - 1)
    return {"first_token": first, "per_token": per_token, "cpu": time.process_time() - cpu_before, "tokens": tokens}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])

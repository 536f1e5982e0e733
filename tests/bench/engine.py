"""Our decode loop against transformers' `generate`: the same prompt, the same weights, in turn, in one process.

    python tests/bench/engine.py [--model tiny|DIR] [--dtype D] [--rounds N] [--max-tokens N]

Prints JSON; times are medians over the rounds, after one round that warms both.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import time
from pathlib import Path
from typing import Any

from visionchat_serve import cpu

PICTURE = Path(__file__).parents[1] / "data" / "pictures" / "circle-and-square.png"


def main(model: str, dtype: str, rounds: int, max_tokens: int) -> dict[str, Any]:
    threads = cpu.available_cpus().whole
    cpu.limit_threads(threads)
    from visionchat_serve.engines.registry import model_folder
    from visionchat_serve.engines.torch_engine import TorchEngine

    began = time.monotonic()
    engine = TorchEngine(model_folder(model), dtype=dtype, threads=threads)
    load = time.monotonic() - began
    after_load = _peak_gb()
    engine._eos = frozenset()  # both write exactly max_tokens, whatever random weights say
    ours, theirs = [], []
    for number in range(rounds + 1):
        one, other = _ours(engine, max_tokens), _theirs(engine, max_tokens)
        if number:
            ours.append(one)
            theirs.append(other)
    return {
        "model": model,
        "dtype": engine.info.dtype,
        "threads": threads,
        "rounds": rounds,
        "load_s": load,
        "peak_memory_gb": {"after load": after_load, "at the end": _peak_gb()},
        "ours": _medians(ours),
        "transformers": _medians(theirs),
        "decode_speedup": _medians(theirs)["per_token_ms"] / _medians(ours)["per_token_ms"],
    }


def _request(max_tokens: int) -> Any:
    from visionchat_serve.engines.protocol import EngineRequest
    from visionchat_serve.images import normalise
    from visionchat_serve.messages import ImagePart, Message, SamplingParams, TextPart

    message = Message("user", (ImagePart(0), TextPart("Describe the picture.")))
    image = normalise(PICTURE.read_bytes()).data
    return EngineRequest("bench", (message,), (image,), SamplingParams(max_tokens, temperature=0))


def _ours(engine: Any, max_tokens: int) -> dict[str, float]:
    began = time.monotonic()
    engine.add(_request(max_tokens))
    times = []
    while engine.has_work:
        engine.step()
        times.append(time.monotonic() - began)
    return {"first_token_ms": 1000 * times[0], "per_token_ms": 1000 * (times[-1] - times[0]) / (len(times) - 1)}


def _theirs(engine: Any, max_tokens: int) -> dict[str, float]:
    """`generate` for one token and for all of them; the difference is what the later ones cost."""
    import torch

    request = _request(max_tokens)
    engine.add(request)
    run = engine._runs["bench"]
    pixels, grid = engine._vision.prepare(request.images)
    inputs = {
        "input_ids": run.ids[None],
        "attention_mask": torch.ones_like(run.ids)[None],
        "pixel_values": pixels,
        "image_grid_thw": grid,
        "mm_token_type_ids": (run.ids == engine._prompt.image_id).int()[None],
    }
    engine.abort("bench")
    seconds = []
    for count in (1, max_tokens):
        began = time.monotonic()
        with torch.inference_mode():
            engine._model.generate(**inputs, do_sample=False, min_new_tokens=count, max_new_tokens=count)
        seconds.append(time.monotonic() - began)
    return {"first_token_ms": 1000 * seconds[0], "per_token_ms": 1000 * (seconds[1] - seconds[0]) / (max_tokens - 1)}


def _medians(of: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(one[key] for one in of) for key in of[0]}


def _peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--max-tokens", type=int, default=24)
    args = parser.parse_args()
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    print(json.dumps(main(args.model, args.dtype, args.rounds, args.max_tokens), indent=2))

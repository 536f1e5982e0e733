"""The server our users start from: a thread for each request, each calling `generate` with torch's own threads.

    python tests/bench/naive.py [--model tiny|DIR] [--dtype D]

Same weights and same prompts as VisionChat's. Takes chat completions with pictures as data: URLs and answers each
whole. Prints its address when it is ready. It exists to be measured.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

from visionchat_serve.engines.protocol import EngineRequest
from visionchat_serve.engines.registry import model_folder
from visionchat_serve.engines.torch_engine import TorchEngine
from visionchat_serve.images import normalise
from visionchat_serve.messages import ImagePart, Message, SamplingParams, TextPart


class Model:
    """The library's model; our engine only reads the prompts."""

    def __init__(self, name: str, dtype: str) -> None:
        self.engine = TorchEngine(model_folder(name), dtype=dtype, threads=torch.get_num_threads())
        self.numbers = itertools.count()
        self.lock = threading.Lock()

    def answer(self, body: dict[str, Any]) -> str:
        inputs = self._inputs(body["messages"][0]["content"])
        with torch.inference_mode():
            tokens = self.engine._model.generate(**inputs, do_sample=False, max_new_tokens=body["max_tokens"])
        written = tokens[0, inputs["input_ids"].shape[1] :].tolist()
        return str(self.engine._tokenizer.decode(written, skip_special_tokens=True))

    def _inputs(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        urls = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
        images = tuple(normalise(base64.b64decode(url.partition(",")[2])).data for url in urls)
        texts = (TextPart(part["text"]) for part in content if part["type"] == "text")
        parts = (*(ImagePart(number) for number in range(len(images))), *texts)
        with self.lock:
            name = str(next(self.numbers))
            self.engine.add(EngineRequest(name, (Message("user", parts),), images, SamplingParams(1)))
            run = self.engine._runs[name]
            self.engine.abort(name)
        return {
            "input_ids": run.ids[None],
            "attention_mask": torch.ones_like(run.ids)[None],
            "pixel_values": torch.cat([picture.pixels for picture in run.pictures]),
            "image_grid_thw": torch.cat([picture.grid for picture in run.pictures]),
            "mm_token_type_ids": (run.ids == self.engine._prompt.image_id).int()[None],
        }


def serve(model: Model) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            reply = json.dumps({"choices": [{"message": {"content": model.answer(body)}}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--dtype", default="auto")
    args = parser.parse_args()
    serve(Model(args.model, args.dtype))

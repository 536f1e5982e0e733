"""The reference engine: transformers' Qwen3-VL weights and vision tower, our own decode loop over a static cache.

Runs one request at a time, so that an answer never depends on who else is asking. The same code loads the tiny
model and Qwen/Qwen3-VL-2B-Instruct, offline, from a folder.
"""

from __future__ import annotations

import ctypes
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from visionchat_serve.engines.chat_prompt import ChatPrompt
from visionchat_serve.engines.decoder import Decoder
from visionchat_serve.engines.grammar import Grammar, Grammars
from visionchat_serve.engines.least_recently_used import LeastRecentlyUsed
from visionchat_serve.engines.logprobs import Logprobs
from visionchat_serve.engines.prompt_parts import Part, parts_of
from visionchat_serve.engines.protocol import EngineInfo, EngineOutput, EngineRequest
from visionchat_serve.engines.read_prompts import ReadPrompts
from visionchat_serve.engines.sampling import ModelDefaults, Sampler
from visionchat_serve.engines.scheduler import Decode, Prefill, Scheduler
from visionchat_serve.engines.text_stream import TextStream
from visionchat_serve.engines.vision import Picture, Vision
from visionchat_serve.errors import ContextTooLong, InvalidRequest
from visionchat_serve.messages import FinishReason, ImagePart, Message, SamplingParams, TextPart, TokenLogprob, Usage


@dataclass(slots=True)
class _Run:
    """A request and how far it is. Prompt tensors are dropped after the prefill."""

    request: EngineRequest
    ids: torch.Tensor  # (prompt tokens,)
    pictures: list[Picture]
    parts: list[Part]
    sampler: Sampler
    stream: TextStream
    grammar: Grammar | None
    limit: int  # tokens it may write
    usage: Usage
    length: int = 0  # tokens in the cache
    next_position: int = 0  # M-RoPE position of the next token
    last: int = 0  # the token that was chosen last


class TorchEngine:
    """See `engines.protocol.Engine`."""

    max_running = 1

    def __init__(
        self, path: Path, *, dtype: str = "auto", threads: int = 1, max_context: int = 4096, keep_bytes: int = 0
    ) -> None:
        """`keep_bytes`: memory for what earlier requests had the engine compute, to be used again; 0: none."""
        from visionchat_serve.engines.checkpoint import load_checkpoint, revision_of

        torch.set_num_threads(threads)
        loaded = load_checkpoint(path, dtype)
        self._model, self._tokenizer = loaded.model, loaded.tokenizer
        self._kept: LeastRecentlyUsed[Any] = LeastRecentlyUsed(keep_bytes)
        self._vision = Vision(self._model, loaded.image_processor, self._kept)
        self._prompt = ChatPrompt(self._tokenizer)
        self._decoder = Decoder(self._model)
        limit = min(max_context, self._model.config.text_config.max_position_embeddings)
        self._cache = self._decoder.new_cache(limit)
        self._read = ReadPrompts(self._cache, self._kept)
        self._defaults = ModelDefaults.of(self._model.generation_config)
        eos = self._model.generation_config.eos_token_id
        self._eos = frozenset([eos] if isinstance(eos, int) else eos)
        self._grammars = Grammars(self._tokenizer, self._model.config.text_config.vocab_size, sorted(self._eos))
        self._logprobs = Logprobs(self._tokenizer)
        self._scheduler = Scheduler(self.max_running)
        self._runs: dict[str, _Run] = {}
        name = str(self._decoder.dtype).removeprefix("torch.")
        self.info = EngineInfo("torch", path.name, name, threads, limit, revision_of(path, f"torch-{name}"))

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    def warm_up(self) -> None:
        picture = io.BytesIO()
        pixels = np.random.default_rng(0).integers(0, 255, (384, 512, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(picture, "PNG")
        message = Message("user", (ImagePart(0), TextPart("What is this?")))
        self.add(EngineRequest("warm-up", (message,), (picture.getvalue(),), SamplingParams(max_tokens=4)))
        while self.has_work:
            self.step()
        self.forget()

    def add(self, request: EngineRequest) -> None:
        pictures = [self._vision.look(image, request.owner) for image in request.images]
        image_tokens = [picture.count for picture in pictures]
        ids = self._prompt.ids(request.messages, image_tokens)
        room = self.info.max_context - len(ids)
        if room < 1:
            raise ContextTooLong(
                f"the prompt has {len(ids)} tokens, {sum(image_tokens)} of them for pictures; the model takes "
                f'{self.info.max_context}. Send a smaller picture, use detail "low", or shorten the text'
            )
        schema = request.sampling.json_schema
        grammar = self._grammars.start(schema) if schema is not None else None
        tensor = torch.tensor(ids)
        self._runs[request.id] = _Run(
            request=request,
            ids=tensor,
            pictures=pictures,
            parts=parts_of(ids, [picture.digest for picture in pictures], self._prompt.marks, request.owner),
            sampler=Sampler(request.sampling, self._defaults, tensor, grammar),
            stream=TextStream(self._decode_text, request.sampling.stop),
            grammar=grammar,
            limit=min(room, request.sampling.max_tokens),
            usage=Usage(prompt_tokens=len(ids), image_tokens=sum(image_tokens)),
        )
        self._scheduler.add(request.id)

    def abort(self, request_id: str) -> None:
        self._scheduler.remove(request_id)
        self._runs.pop(request_id, None)

    @torch.inference_mode()
    def step(self) -> list[EngineOutput]:
        plan = self._scheduler.plan()
        if isinstance(plan, Prefill):
            run = self._runs[plan.request_id]
            return [self._advance(run, self._prefill(run))]
        if isinstance(plan, Decode):
            return [self._advance(run, self._decode(run)) for run in map(self._runs.__getitem__, plan.request_ids)]
        return []

    def forget(self) -> None:
        if self._kept.bytes:
            self._kept.clear()
            give_back()
        self._read.forget()

    def close(self) -> None:
        self._runs.clear()
        self.forget()
        del self._model, self._vision, self._decoder, self._cache, self._read

    # --- the model ---

    def _prefill(self, run: _Run) -> torch.Tensor:
        """Read what is not known of the prompt, part by part."""
        positions = self._positions(run)
        known = self._read.restore(run.parts)
        encoded = 0
        for part in run.parts[known:]:
            encoded += sum(run.pictures[number].features is None for number in part.pictures)
            hidden = self._read_part(run, part, positions[:, part.start : part.end])
        if known < len(run.parts):
            self._read.end(run.parts, self._decoder.logits(hidden))
        run.usage = replace(
            run.usage,
            cached_tokens=run.parts[known - 1].end if known else 0,
            cached_images=len(run.pictures) - encoded,
        )
        run.length, run.next_position = len(run.ids), int(positions.max()) + 1
        run.pictures = []
        return self._read.logits

    def _read_part(self, run: _Run, part: Part, positions: torch.Tensor) -> torch.Tensor:
        ids = run.ids[part.start : part.end]
        hidden = self._decoder.embed(ids)
        rotary = self._decoder.rotary(positions)
        if not part.pictures:
            return self._decoder.forward(hidden, rotary, self._cache, part.start)
        features = [self._vision.features(run.pictures[number]) for number in part.pictures]
        visual = ids == self._prompt.image_id
        hidden = hidden.masked_scatter(visual[:, None], torch.cat([one.tokens for one in features]).to(hidden.dtype))
        deepstack = [torch.cat(layer) for layer in zip(*(one.deepstack for one in features), strict=True)]
        return self._decoder.forward(hidden, rotary, self._cache, part.start, visual, deepstack)

    def _positions(self, run: _Run) -> torch.Tensor:
        """M-RoPE positions (3, tokens) of the prompt."""
        kinds = (run.ids == self._prompt.image_id).int()
        grid = torch.cat([picture.grid for picture in run.pictures]) if run.pictures else None
        positions: torch.Tensor = self._model.model.get_rope_index(run.ids[None], kinds[None], grid)[0]
        return positions[:, 0]

    def _decode(self, run: _Run) -> torch.Tensor:
        position = torch.full((3, 1), run.next_position)
        hidden = self._decoder.embed(torch.tensor([run.last]))
        hidden = self._decoder.forward(hidden, self._decoder.rotary(position), self._cache, run.length)
        run.length, run.next_position = run.length + 1, run.next_position + 1
        return self._decoder.logits(hidden)

    # --- tokens to outputs ---

    def _advance(self, run: _Run, logits: torch.Tensor) -> EngineOutput:
        """Choose the next token and say what it means for the request."""
        token = run.last = run.sampler.choose(logits)
        written = run.usage.completion_tokens + 1
        run.usage = replace(run.usage, completion_tokens=written)
        finish: FinishReason | None = None
        logprobs: tuple[TokenLogprob, ...] = ()
        if run.grammar is not None and (failure := run.grammar.failure):
            self.abort(run.request.id)
            error = InvalidRequest(
                f"response_format: no answer could be kept to this schema ({failure}); make it simpler",
                param="response_format",
            )
            return EngineOutput(run.request.id, "", run.usage, "error", error=error)
        if token in self._eos:
            text, finish = run.stream.flush(), "stop"
        else:
            if run.request.sampling.logprobs is not None:
                logprobs = (self._logprobs.of(logits, token, run.request.sampling.logprobs),)
            text = run.stream.push(token)
            if run.stream.stopped:
                finish = "stop"
            elif written >= run.limit:
                text, finish = text + run.stream.flush(), "stop" if run.stream.stopped else "length"
        if finish is not None:
            self.abort(run.request.id)
        return EngineOutput(run.request.id, text, run.usage, finish, logprobs)

    def _decode_text(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text


def give_back() -> None:
    """Let the C library return what was freed; glibc would keep it for later."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)

"""The fast training forward pass gives what the library's own gives, for each way a conversation is packed."""

import itertools
import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from PIL import Image  # noqa: E402
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (  # noqa: E402
    Qwen2VLImageProcessorPil,
    smart_resize,
)

from visionchat_serve.tiny import rows as packing  # noqa: E402
from visionchat_serve.tiny import scenes  # noqa: E402
from visionchat_serve.tiny.batches import Mix, _assemble, held_out_source, make_batch, to_patches  # noqa: E402
from visionchat_serve.tiny.forward import Forward  # noqa: E402
from visionchat_serve.tiny.layout import CELL, MAX_PIXELS, MIN_PIXELS, PATCH, preprocessor_config  # noqa: E402
from visionchat_serve.tiny.network import build_config, build_network  # noqa: E402
from visionchat_serve.tiny.questions import questions  # noqa: E402
from visionchat_serve.tiny.rows import Picture  # noqa: E402
from visionchat_serve.tiny.sizes import MAX_CELLS, door_size, grid_of, random_size  # noqa: E402
from visionchat_serve.tiny.tokenizer import build_tokenizer  # noqa: E402


def library_scores(model, groups, batch):
    """Logits of each segment alone, through the library's forward."""
    for group in groups:
        for segment in group.segments:
            ids = torch.tensor([group.prompt.ids + segment.ids])
            cells = [cell for cell in group.prompt.cells + segment.cells if cell >= 0]
            shown = list(dict.fromkeys(cell // MAX_CELLS for cell in cells))
            flat, grid = [], []
            for picture in shown:
                rows, columns = batch.grids[picture]
                patches = batch.pixels[picture, : rows * columns * 4].reshape(-1, 3, 1, PATCH, PATCH)
                flat.append(np.repeat(patches, 2, axis=2).reshape(len(patches), -1))
                grid.append([1, rows * 2, columns * 2])
            pixels = torch.from_numpy(np.concatenate(flat)).float() / 127.5 - 1
            kind = (ids == model.config.image_token_id).int()
            model.model.rope_deltas = None
            yield model(
                input_ids=ids, pixel_values=pixels, image_grid_thw=torch.tensor(grid), mm_token_type_ids=kind
            ).logits[0, -len(segment.ids) :]


@torch.no_grad()
def test_packed_forward_equals_the_library() -> None:
    rng, source = random.Random(3), held_out_source()
    drawn = [scenes.shapes_scene(rng, source, size) for size in ((160, 160), (300, 100), (90, 200))]
    pictures = [Picture(i * MAX_CELLS, *grid_of(s.width, s.height)) for i, s in enumerate(drawn)]
    asked = list(itertools.islice(questions(rng, drawn[0], True), 3))
    groups = [
        packing.picture_first([pictures[0]], asked, "You are a helpful assistant."),
        packing.text_first(pictures[1], asked[0]),
        packing.many_turns(pictures[2], asked),
        packing.picture_first(pictures[:2], asked[:2]),
    ]
    batch = _assemble(rng, drawn, groups, row_count=4)
    model = build_network(build_config(build_tokenizer()), seed=1).eval()
    forward = Forward(model, compiled=False)
    hidden = forward.read(batch, forward.see(torch.from_numpy(batch.pixels), batch.grids)).hidden
    ours = model.lm_head(hidden)
    numbers = [n for n in sorted(set(batch.segments.flatten().tolist())) if n >= 0]
    spans = [np.argwhere(batch.segments == number) for number in numbers]
    prompts = set(batch.parents.flatten().tolist())
    answered = [
        ours[span[0][0], span[:, 1]] for number, span in zip(numbers, spans, strict=True) if number not in prompts
    ]
    theirs = list(library_scores(model, groups, batch))
    assert len(answered) == len(theirs) == 7
    for mine, library in zip(answered, theirs, strict=True):
        torch.testing.assert_close(mine, library, atol=2e-4, rtol=1e-3)


def test_a_batch_is_the_same_each_time() -> None:
    mix = Mix(asked=4, packed=2, rows=4)
    first, second = (make_batch(5, 1, mix, held_out_source()) for _ in range(2))
    assert (first.pixels == second.pixels).all()
    assert (first.ids == second.ids).all()


def test_grids_and_patches_are_those_of_the_library() -> None:
    settings = {k: v for k, v in preprocessor_config().items() if not k.endswith(("_class", "_type"))}
    rng = random.Random(5)
    for _ in range(200):
        width, height = door_size(*random_size(rng))
        rows, columns = grid_of(width, height)
        assert smart_resize(height, width, CELL, MIN_PIXELS, MAX_PIXELS) == (rows * CELL, columns * CELL)
    pixels = np.random.default_rng(0).integers(0, 256, (128, 160, 3), dtype=np.uint8)
    ours = torch.from_numpy(to_patches(pixels, 4, 5)).float() / 127.5 - 1
    seen = Qwen2VLImageProcessorPil(**settings)(images=[Image.fromarray(pixels)], return_tensors="pt")
    theirs = seen["pixel_values"].view(-1, 3, 2, PATCH * PATCH)[:, :, 0].flatten(1)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)

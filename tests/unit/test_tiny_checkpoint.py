"""The checkpoint that ships: small, complete, and readable by the same code as the real Qwen3-VL."""

import json

import pytest

pytest.importorskip("tokenizers")

from tokenizers import Tokenizer

from visionchat_serve.tiny import CHECKPOINT
from visionchat_serve.tiny.tokenizer import SPECIALS, build_tokenizer

FILES = {
    "chat_template.jinja", "config.json", "generation_config.json", "merges.txt", "model.safetensors",
    "preprocessor_config.json", "tokenizer.json", "tokenizer_config.json", "video_preprocessor_config.json",
    "vocab.json",
}  # fmt: skip


def test_it_is_complete_and_small() -> None:
    assert {path.name for path in CHECKPOINT.iterdir()} == FILES
    assert sum(path.stat().st_size for path in CHECKPOINT.iterdir()) <= 12_000_000


def test_its_tokenizer_is_the_one_made_here() -> None:
    shipped = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    assert shipped.get_vocab() == build_tokenizer().get_vocab()


@pytest.mark.parametrize(
    "text",
    [
        "What colour is the circle?",
        "Ünïcode, 漢字 and 😀\n\n  spaces",
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Hi<|im_end|>\n",
    ],
)
def test_every_text_comes_back(text: str) -> None:
    tokenizer = build_tokenizer()
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_read_characters_stay_apart_and_words_whole() -> None:
    tokenizer = build_tokenizer()
    assert tokenizer.encode("redX9").tokens == ["r", "e", "d", "X", "9"]
    assert tokenizer.encode("A red circle").tokens == ["A", "Ġred", "Ġcircle"]


def test_config_names_the_special_tokens() -> None:
    config = json.loads((CHECKPOINT / "config.json").read_text())
    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    assert config["architectures"] == ["Qwen3VLForConditionalGeneration"]
    assert config["image_token_id"] == tokenizer.token_to_id("<|image_pad|>")
    assert max(tokenizer.token_to_id(token) for token in SPECIALS) < config["text_config"]["vocab_size"]
    assert config["vision_config"]["deepstack_visual_indexes"]
    assert sum(config["text_config"]["rope_scaling"]["mrope_section"]) == config["text_config"]["head_dim"] // 2

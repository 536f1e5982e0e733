"""The JSON files of the checkpoint, in the form Qwen/Qwen3-VL-2B-Instruct has them on the hub.

Only sizes and token ids differ from the real ones. Called by the export; `network.py` reads the same values
to build the model, so that training and the shipped configuration cannot drift apart.
"""

from typing import Any

from tokenizers import Tokenizer

from visionchat_serve.tiny.tokenizer import PLAIN_ADDED, SPECIALS, padded_size, token_id

PATCH = 16
MERGE = 2
CELL = PATCH * MERGE  # side, in pixels, of what becomes one token of the language model
MIN_PIXELS = 16 * CELL * CELL  # smaller pictures are enlarged to this area
MAX_PIXELS = 25 * CELL * CELL  # larger ones are shrunk to it: this cap decides what the model sees and what it costs
Json = dict[str, Any]


def model_config(tokenizer: Tokenizer) -> Json:
    ids = {token: token_id(tokenizer, token) for token in SPECIALS}
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "image_token_id": ids["<|image_pad|>"],
        "model_type": "qwen3_vl",
        "text_config": text_config(padded_size(tokenizer), ids),
        "tie_word_embeddings": True,
        "transformers_version": "4.57.0",
        "video_token_id": ids["<|video_pad|>"],
        "vision_config": vision_config(),
        "vision_end_token_id": ids["<|vision_end|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
    }


def text_config(vocab_size: int, ids: dict[str, int]) -> Json:
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": ids["<|endoftext|>"],
        "dtype": "bfloat16",
        "eos_token_id": ids["<|im_end|>"],
        "head_dim": 32,
        "hidden_act": "silu",
        "hidden_size": 192,
        "initializer_range": 0.02,
        "intermediate_size": 512,
        "max_position_embeddings": 4096,
        "model_type": "qwen3_vl_text",
        "num_attention_heads": 6,
        "num_hidden_layers": 4,
        "num_key_value_heads": 3,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [6, 5, 5], "rope_type": "default"},
        "rope_theta": 10000,
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": vocab_size,
    }


def vision_config() -> Json:
    return {
        "deepstack_visual_indexes": [1, 2],
        "depth": 4,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 160,
        "in_channels": 3,
        "initializer_range": 0.02,
        "intermediate_size": 640,
        "model_type": "qwen3_vl",
        "num_heads": 5,
        "num_position_embeddings": 256,
        "out_hidden_size": 192,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": 2,
    }


def generation_config(tokenizer: Tokenizer) -> Json:
    """Greedy: its answers are one right form each, so there is nothing to sample."""
    end, pad = token_id(tokenizer, "<|im_end|>"), token_id(tokenizer, "<|endoftext|>")
    return {
        "bos_token_id": pad,
        "do_sample": False,
        "eos_token_id": [end, pad],
        "pad_token_id": pad,
        "transformers_version": "4.57.0",
    }


def preprocessor_config() -> Json:
    return {
        "size": {"longest_edge": MAX_PIXELS, "shortest_edge": MIN_PIXELS},
        "patch_size": PATCH,
        "temporal_patch_size": 2,
        "merge_size": MERGE,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "processor_class": "Qwen3VLProcessor",
        "image_processor_type": "Qwen2VLImageProcessorFast",
    }


def video_preprocessor_config() -> Json:
    """Never trained on videos; the file is there because `AutoProcessor` insists on it."""
    picture = preprocessor_config()
    del picture["image_processor_type"]
    return picture | {"video_processor_type": "Qwen3VLVideoProcessor"}


def tokenizer_config(tokenizer: Tokenizer, chat_template: str) -> Json:
    def entry(token: str, special: bool) -> Json:
        flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
        return {"content": token, **flags, "special": special}

    added = {str(token_id(tokenizer, token)): entry(token, True) for token in SPECIALS}
    added |= {str(token_id(tokenizer, token)): entry(token, False) for token in PLAIN_ADDED}
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "additional_special_tokens": list(SPECIALS[1:]),
        "bos_token": None,
        "chat_template": chat_template,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 4096,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }

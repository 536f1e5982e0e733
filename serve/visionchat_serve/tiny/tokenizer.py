"""Makes the tiny model's byte-level BPE with Qwen's pre-tokenizer and special tokens.

The merges are written down, not learnt: each known word is glued left to right from the space before it, so a
known word is one token, while a string read from a picture (no space before it) stays one token for each
character. A model of this size can then copy what it reads. Called by the export and the tests.
"""

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from visionchat_serve.tiny.words import FIRST_WORDS, INNER_WORDS

SPECIALS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
PLAIN_ADDED = (
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>",
)  # fmt: skip
SPACE = "Ġ"  # how byte-level BPE writes a space
QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# The three role names, one token each as in Qwen's own vocabulary. Each chain starts at its rarest pair, since
# that pair is glued inside strings read from a picture too.
ROLE_CHAINS = (
    ("s", "s"), ("a", "ss"), ("ass", "i"), ("assi", "s"), ("assis", "t"), ("assist", "a"), ("assista", "n"),
    ("assistan", "t"),
    ("u", "s"), ("us", "e"), ("use", "r"),
    ("y", "s"), ("s", "ys"), ("sys", "t"), ("syst", "e"), ("syste", "m"),
)  # fmt: skip


def merges() -> list[tuple[str, str]]:
    """Prefix chains of all known words, in a fixed order and without doubles."""
    words = [SPACE + word for word in INNER_WORDS] + [word for word in FIRST_WORDS if len(word) > 1]
    pairs = ((word[:end], word[end]) for word in words for end in range(1, len(word)))
    return list(dict.fromkeys((*pairs, *ROLE_CHAINS)))


def vocabulary() -> dict[str, int]:
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet()) + [left + right for left, right in merges()]
    return {token: index for index, token in enumerate(dict.fromkeys(tokens))}


def build_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(BPE(vocab=vocabulary(), merges=merges(), fuse_unk=False, byte_fallback=False))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_PATTERN), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIALS])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in PLAIN_ADDED])
    return tokenizer


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """The number of a token that must be there."""
    number = tokenizer.token_to_id(token)
    if number is None:
        raise KeyError(token)
    return int(number)


def padded_size(tokenizer: Tokenizer, multiple: int = 64) -> int:
    """Rows of the embedding table: a round number, as matrix products like."""
    return -(-tokenizer.get_vocab_size() // multiple) * multiple

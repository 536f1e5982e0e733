"""Strings to be read from pictures, chosen so that each can be read in one way only.

Some letters look alike in both cases, some look like digits. A string is all capitals, all digits, all small
letters or a capital with small letters after it, and never one whose reading would be a guess.
"""

import random
import string

WORDS = (
    "hello", "world", "stop", "open", "exit", "cat", "dog", "sun", "moon", "tree", "house", "book", "car",
    "bus", "train", "plane", "ship", "road", "river", "lake", "hill", "bird", "fish", "milk", "bread",
    "tea", "apple", "lemon", "sale", "push", "pull", "danger", "north", "south", "east", "west", "left",
    "right", "up", "down", "on", "off", "yes", "no", "start", "end", "home", "work", "play", "game",
    "music", "radio", "paris", "london", "tokyo", "rome", "berlin", "lima", "model", "test", "chat",
    "vision", "photo", "light", "night", "day", "year", "red", "green", "blue", "black", "white", "zero",
    "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "hotel", "bank", "taxi",
    "police", "cafe", "park", "zoo", "shop", "bar", "pizza", "menu", "love", "peace", "happy", "quick",
    "brown", "fox", "jumps", "lazy", "queen", "king", "jack", "knife", "ruby", "python", "go", "rust",
)  # fmt: skip
HELD_OUT_WORDS = (
    "water", "fire", "wind", "earth", "market", "school", "garden", "bridge", "window", "door", "orange",
    "purple", "yellow", "beach", "forest", "desert", "ocean", "kiwi", "grape", "mango", "tiger", "zebra",
    "panda", "slow", "fast", "warm", "cold", "madrid", "vienna", "oslo", "cairo", "delhi", "wait", "enter",
    "closed", "free", "new",
)  # fmt: skip
CLEAR_SMALL = set("abdefghijmnqrty")  # small letters that no capital or digit resembles
UNCLEAR_CAPITALS = set("IO")


def random_string(rng: random.Random, length: int, held_out: bool = False) -> str:
    if length > 2 and rng.random() < 0.3:
        words = [word for word in (HELD_OUT_WORDS if held_out else WORDS) if len(word) == length]
        if words:
            return _cased_word(rng, rng.choice(words))
    while True:
        text = _random_characters(rng, length)
        if is_clear(text):
            return text


def _cased_word(rng: random.Random, word: str) -> str:
    cased = rng.choice((word.upper(), word, word.capitalize()))
    return cased if is_clear(cased) else word.upper()


def _random_characters(rng: random.Random, length: int) -> str:
    kind = rng.choices(("capitals", "digits", "small", "capitalised"), (38, 27, 23, 12))[0]
    if kind == "capitals":
        return "".join(rng.choices(string.ascii_uppercase, k=length))
    if kind == "digits":
        return "".join(rng.choices(string.digits, k=length))
    small = "".join(rng.choices(string.ascii_lowercase, k=length))
    return small.capitalize() if kind == "capitalised" and length > 1 else small


def is_clear(text: str) -> bool:
    if text.isdigit():
        return text.strip("0") != "" and text != "1"
    if text.isupper():
        return (len(text) == 1 and text not in UNCLEAR_CAPITALS) or bool(set(text) - UNCLEAR_CAPITALS)
    tail = text[1:] if text[0].isupper() else text
    return bool(set(tail) & CLEAR_SMALL) and text[0] not in UNCLEAR_CAPITALS

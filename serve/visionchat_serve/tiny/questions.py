"""Asks about a scene: questions of every skill that the scene allows, each with its one right answer.

An answer is always written in the same form (`Red`, `Top left`, `3`, `Yes`), so that it can be compared
letter by letter. Pure: scenes in, strings out.
"""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from visionchat_serve.tiny.scenes import Scene, Thing, place_of
from visionchat_serve.tiny.wordings import phrase
from visionchat_serve.tiny.words import COLOURS, NONE, SHAPES

NUMBERS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven")
CLEARLY_APART = 0.2  # of width or height: nearer things are neither left nor right of each other
NAMED_THINGS = 3  # a description names this many things, and only counts more
ABSENT = 0.15  # share of questions about a thing that is not there
MIXED = "Mixed"  # the colour of a background that has no one colour


@dataclass(frozen=True, slots=True)
class Mention:
    """Words of a question that mean one thing in the picture, and where its middle is (0 to 1)."""

    words: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Question:
    skill: str
    text: str
    answer: str
    mentions: tuple[Mention, ...] = ()  # what training may point at; no answer needs it


Asker = Callable[[random.Random, Scene, bool], Question | None]


def plural(shape: str) -> str:
    return "crosses" if shape == "cross" else f"{shape}s"


def article(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"


def ask_colour(rng: random.Random, scene: Scene, held_out: bool) -> Question | None:
    if rng.random() < ABSENT:
        absent = [shape for shape in SHAPES if all(t.shape != shape for t in scene.things)]
        return _colour_question(rng, rng.choice(absent), NONE, held_out) if absent and scene.things else None
    if len(scene.things) == 1 and rng.random() < 0.3:
        return Question("colour", phrase(rng, "only_colour", held_out), scene.things[0].colour.capitalize())
    shapes = {t.shape: {o.colour for o in scene.things if o.shape == t.shape} for t in scene.things}
    clear = [(shape, min(colours)) for shape, colours in shapes.items() if len(colours) == 1]
    if not clear:
        return None
    shape, colour = rng.choice(clear)
    return _colour_question(rng, shape, colour.capitalize(), held_out)


def _colour_question(rng: random.Random, shape: str, answer: str, held_out: bool) -> Question:
    return Question("colour", phrase(rng, "colour", held_out, shape=shape), answer)


def ask_shape(rng: random.Random, scene: Scene, held_out: bool) -> Question | None:
    if not scene.things:
        return None
    if rng.random() < ABSENT:
        absent = [colour for colour in COLOURS if all(t.colour != colour for t in scene.things)]
        return _shape_question(rng, rng.choice(absent), NONE, held_out)
    if len({t.shape for t in scene.things}) == 1 and rng.random() < 0.5:
        return Question("shape", phrase(rng, "only_shape", held_out), scene.things[0].shape.capitalize())
    colours = {t.colour: {o.shape for o in scene.things if o.colour == t.colour} for t in scene.things}
    clear = [(colour, min(shapes)) for colour, shapes in colours.items() if len(shapes) == 1]
    if not clear:
        return None
    colour, shape = rng.choice(clear)
    return _shape_question(rng, colour, shape.capitalize(), held_out)


def _shape_question(rng: random.Random, colour: str, answer: str, held_out: bool) -> Question:
    return Question("shape", phrase(rng, "shape", held_out, colour_name=colour), answer)


def ask_exist(rng: random.Random, scene: Scene, held_out: bool) -> Question | None:
    present = rng.random() < 0.5 and bool(scene.things)
    thing = rng.choice(scene.things) if scene.things else None
    both = rng.random() < 0.6
    there = thing.name if thing and both else thing.shape if thing else ""
    bare = there if present else _absent_name(rng, scene, thing, both)
    text = phrase(rng, "exist", held_out, thing=article(bare), bare=bare)
    return Question("exist", text, "Yes" if present else "No")


def _absent_name(rng: random.Random, scene: Scene, near: Thing | None, both: bool) -> str:
    """A thing that is not there, as often as not half right: right colour, other shape."""
    names = {t.name for t in scene.things} | {t.shape for t in scene.things}
    while True:
        shape, colour = rng.choice(SHAPES), rng.choice(COLOURS)
        if near and rng.random() < 0.3:
            colour = near.colour
        elif near and rng.random() < 0.4:
            shape = near.shape
        bare = f"{colour} {shape}" if both or {t.shape for t in scene.things} >= set(SHAPES) else shape
        if bare not in names:
            return bare


def ask_count(rng: random.Random, scene: Scene, held_out: bool) -> Question | None:
    kind = rng.choices(("all", "shape", "colour", "both"), (35, 25, 20, 20))[0]
    thing = rng.choice(scene.things) if scene.things and rng.random() > 0.12 else None
    shape, colour = (thing.shape, thing.colour) if thing else (rng.choice(SHAPES), rng.choice(COLOURS))
    word = rng.choice(("shapes", "shapes", "objects"))
    things, chosen = {
        "all": (word, scene.things),
        "shape": (plural(shape), [t for t in scene.things if t.shape == shape]),
        "colour": (f"{colour} {word}", [t for t in scene.things if t.colour == colour]),
        "both": (
            f"{colour} {plural(shape)}",
            [t for t in scene.things if (t.shape, t.colour) == (shape, colour)],
        ),
    }[kind]
    return Question("count", phrase(rng, "count", held_out, things=things), str(len(chosen)))


def ask_background(rng: random.Random, scene: Scene, held_out: bool) -> Question | None:
    if scene.backdrop.colour is None and rng.random() < 0.6:
        return None
    answer = (scene.backdrop.colour or MIXED).capitalize()
    return Question("background", phrase(rng, "background", held_out), answer)


def ask_describe(rng: random.Random, scene: Scene, held_out: bool) -> Question | None:
    answer = description(scene)
    return Question("describe", phrase(rng, "describe", held_out), answer) if answer else None


def description(scene: Scene) -> str | None:
    """One sentence; None where the order from left to right is not plain to see."""
    behind = f" on {article(scene.backdrop.colour)} background." if scene.backdrop.colour else "."
    if scene.bars:
        return f"A bar chart with {NUMBERS[len(scene.bars)].lower()} bars{behind}"
    groups = _groups(scene.things)
    if groups is None:
        return None
    parts = [f'{line.colour} text "{line.text}"' for line in scene.lines] + groups
    if not parts:
        return f"An empty picture{behind}"
    sentence = parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
    return sentence[0].upper() + sentence[1:] + behind


def _groups(things: tuple[Thing, ...]) -> list[str] | None:
    if len(things) > NAMED_THINGS:
        return [f"{NUMBERS[len(things)].lower()} shapes"]
    ordered = sorted(things, key=lambda t: t.x)
    firsts = {t.name: t for t in reversed(ordered)}
    leftmost = sorted(t.x for t in firsts.values())
    if any(b - a < 0.08 for a, b in itertools.pairwise(leftmost)):
        return None
    counts = Counter(t.name for t in ordered)  # keeps the order of first appearance
    return [_amount(count, firsts[name]) for name, count in counts.items()]


def _amount(count: int, thing: Thing) -> str:
    return article(thing.name) if count == 1 else f"{NUMBERS[count].lower()} {thing.colour} {plural(thing.shape)}"


def ask_read(rng: random.Random, scene: Scene, held_out: bool) -> Question | None:
    if not scene.lines:
        return Question("read none", phrase(rng, "read", held_out), NONE) if rng.random() < 0.1 else None
    text = scene.lines[0].text
    skill = "read 1-3" if len(text) <= 3 else "read 4-8"
    return Question(skill, phrase(rng, "read", held_out), text)


def ask_text_colour(rng: random.Random, scene: Scene, held_out: bool) -> Question | None:
    if not scene.lines:
        return None
    return Question("text colour", phrase(rng, "text_colour", held_out), scene.lines[0].colour.capitalize())


def referring_name(rng: random.Random, thing: Thing, things: tuple[Thing, ...]) -> str | None:
    """Words that mean this thing and no other, or None."""
    names = [thing.name]
    if sum(t.shape == thing.shape for t in things) == 1:
        names += [thing.shape]
    if sum(t.colour == thing.colour for t in things) == 1:
        names += [f"{thing.colour} {rng.choice(('shape', 'object'))}"]
    unique = sum(t.name == thing.name for t in things) == 1
    return rng.choice(names) if unique else None


def ask_place(rng: random.Random, scene: Scene, held_out: bool) -> Question | None:
    if scene.things and rng.random() < 0.08:
        bare = _absent_name(rng, scene, None, True)
        return Question("place none", phrase(rng, "place", held_out, name=bare), NONE)
    named = [(referring_name(rng, t, scene.things), place_of(t.x, t.y), t) for t in scene.things]
    clear = [(name, place, thing) for name, place, thing in named if name and place]
    if not clear:
        return None
    name, place, thing = rng.choice(clear)
    mention = Mention(name, thing.x, thing.y)
    return Question("place", phrase(rng, "place", held_out, name=name), place.capitalize(), (mention,))


def ask_relation(rng: random.Random, scene: Scene, held_out: bool) -> Question | None:
    """Left or right, above or below another thing."""
    if len(scene.things) < 2:
        return None
    a, b = rng.sample(scene.things, 2)
    name_a, name_b = referring_name(rng, a, scene.things), referring_name(rng, b, scene.things)
    if not name_a or not name_b:
        return None
    level = rng.random() < 0.5
    gap = b.x - a.x if level else b.y - a.y
    question = _relation("relation", rng, (name_a, name_b), gap, level, held_out)
    return question and replace(question, mentions=(Mention(name_a, a.x, a.y), Mention(name_b, b.x, b.y)))


def ask_half(rng: random.Random, scene: Scene, held_out: bool) -> Question | None:
    """The same about the middle of the picture: with one thing to find, it is the way into the relation of two."""
    named = [(name, thing) for thing in scene.things if (name := referring_name(rng, thing, scene.things))]
    if not named:
        return None
    name, thing = rng.choice(named)
    level = rng.random() < 0.5
    gap = 2 * (0.5 - thing.x if level else 0.5 - thing.y)
    question = _relation("half", rng, (name, rng.choice(("middle", "center"))), gap, level, held_out)
    return question and replace(question, mentions=(Mention(name, thing.x, thing.y),))


def _relation(
    skill: str, rng: random.Random, names: tuple[str, str], gap: float, level: bool, held_out: bool
) -> Question | None:
    """As a choice of two, or as yes and no; `gap` is how far the second lies to the right of or below the first."""
    if abs(gap) < CLEARLY_APART:
        return None
    first, second = ("left", "right") if level else ("above", "below")
    true, false = (first, second) if gap > 0 else (second, first)
    if rng.random() < 0.7:
        options = [_before_the(first, rng), _before_the(second, rng)]
        if level:
            options = ["left", "right of"] if rng.random() < 0.7 else ["to the left", "to the right of"]
        if rng.random() < 0.25:
            options = ["right", "left of"] if level else options[::-1]
        text = phrase(rng, "side", held_out, a=names[0], b=names[1], first=options[0], second=options[1])
        return Question(skill, text, true.capitalize())
    asked = rng.choice((true, false))
    text = phrase(rng, "beside", held_out, a=names[0], b=names[1], side=_before_the(asked, rng))
    return Question(skill, text, "Yes" if asked == true else "No")


def _before_the(side: str, rng: random.Random) -> str:
    """How a side is said before "the blue square"."""
    return side if side in ("above", "below") else rng.choice((f"{side} of", f"to the {side} of"))


def ask_bars(rng: random.Random, scene: Scene, held_out: bool) -> Question | None:
    if not scene.bars:
        return None
    tallest = rng.random() < 0.75
    bar = (max if tallest else min)(scene.bars, key=lambda b: b.height)
    return Question("tallest bar", phrase(rng, "tallest" if tallest else "shortest", held_out), bar.colour.capitalize())


# asker -> how often it is tried on a scene with things, with text, with bars
ASKERS: dict[Asker, tuple[int, int, int]] = {
    ask_colour: (9, 1, 0),
    ask_shape: (14, 1, 0),
    ask_exist: (6, 2, 0),
    ask_count: (28, 1, 0),
    ask_background: (6, 3, 1),
    ask_describe: (26, 12, 3),
    ask_read: (3, 30, 1),
    ask_text_colour: (0, 20, 0),
    ask_place: (20, 1, 0),
    ask_relation: (36, 0, 0),
    ask_half: (5, 0, 0),
    ask_bars: (0, 0, 12),
}


def questions(rng: random.Random, scene: Scene, held_out: bool) -> Iterator[Question]:
    """Endless questions about one picture, without telling twice the same in the same words."""
    kind = 2 if scene.bars else 1 if scene.lines else 0
    askers, weights = list(ASKERS), [weights[kind] for weights in ASKERS.values()]
    while True:
        question = rng.choices(askers, weights)[0](rng, scene, held_out)
        if question is not None:
            yield question


def follow_ups(rng: random.Random, scene: Scene, held_out: bool) -> list[Question]:
    """Three turns about the one thing in the picture, where "it" means what was said before."""
    (thing,) = scene.things
    place = place_of(thing.x, thing.y)
    turns = [
        Question("three turns", phrase(rng, "only_shape", held_out), thing.shape.capitalize()),
        Question("three turns", phrase(rng, "follow_colour", held_out), thing.colour.capitalize()),
    ]
    if place:
        turns.append(Question("three turns", phrase(rng, "follow_place", held_out), place.capitalize()))
    return turns


def pair_questions(rng: random.Random, first: Scene, second: Scene, held_out: bool) -> Iterator[Question]:
    """Endless questions about two pictures with one thing each."""
    things = (first.things[0], second.things[0])
    while True:
        which = rng.randrange(2)
        nth, thing, other = ("first", "second")[which], things[which], things[1 - which]
        kind = rng.choices(("which_picture", "in_picture", "colour_in_picture"), (2, 1, 1))[0]
        if kind == "which_picture":
            bare = rng.choice((thing.name, thing.shape))
            if bare in (other.name, other.shape):
                continue
            text = phrase(rng, kind, held_out, thing=article(bare))
            yield Question("two pictures", text, nth.capitalize())
        else:
            answer = thing.shape if kind == "in_picture" else thing.colour
            yield Question("two pictures", phrase(rng, kind, held_out, nth=nth), answer.capitalize())

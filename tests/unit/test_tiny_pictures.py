"""What the tiny model is trained on and asked: same seed, same pixels; every question has one answer."""

import itertools
import random
import re

import pytest

pytest.importorskip("PIL")

from visionchat_serve.tiny import scenes, strings
from visionchat_serve.tiny.batches import Mix, held_out_source, patch_at, random_scene, to_patches
from visionchat_serve.tiny.drawing import draw
from visionchat_serve.tiny.questions import description, follow_ups, pair_questions, questions
from visionchat_serve.tiny.scenes import place_of
from visionchat_serve.tiny.sizes import MAX_CELLS, door_size, grid_of, random_size, training_size
from visionchat_serve.tiny.words import COLOURS, PLACES, SHAPES

NAMES = {word.capitalize() for word in (*COLOURS, *SHAPES, *PLACES)}
RELATIONS = {"Left", "Right", "Above", "Below"}
CLOSED = NAMES | RELATIONS | {"Yes", "No", "None", "Mixed", "First", "Second"} | set("0123456789")
SENTENCE = re.compile(r'[A-Z][a-zA-Z0-9 ,"]+\.')


def some_scenes(count: int) -> list[scenes.Scene]:
    rng, mix = random.Random(7), Mix(simple=0.3, bars=0.2)
    return [random_scene(rng, held_out_source(), mix) for _ in range(count)]


def test_same_scene_same_pixels() -> None:
    for scene in some_scenes(12):
        assert draw(scene)[0].tobytes() == draw(scene)[0].tobytes()


def test_every_answer_has_a_known_form() -> None:
    for scene in some_scenes(60):
        for question in itertools.islice(questions(random.Random(1), scene, True), 12):
            if question.skill == "describe":
                assert SENTENCE.fullmatch(question.answer), question
            elif question.skill.startswith("read ") and scene.lines:
                assert question.answer == scene.lines[0].text
            else:
                assert question.answer in CLOSED, question


def test_questions_about_two_pictures_and_in_three_turns_have_known_answers() -> None:
    rng, source = random.Random(2), held_out_source()
    single = [s for s in (scenes.shapes_scene(rng, source, (200, 200), most=1) for _ in range(20)) if s.things]
    pairs = itertools.islice(pair_questions(rng, single[0], single[1], True), 20)
    turns = [question for scene in single for question in follow_ups(rng, scene, True)]
    assert {question.answer for question in (*pairs, *turns)} <= CLOSED


def test_things_do_not_touch_each_other_or_the_edge() -> None:
    for scene in some_scenes(60):
        short = min(scene.width, scene.height)
        for thing in scene.things:
            reach = thing.radius * short
            assert reach <= thing.x * scene.width + 1 <= scene.width - reach + 2
            assert reach <= thing.y * scene.height + 1 <= scene.height - reach + 2


@pytest.mark.parametrize(
    ("text", "clear"),
    [
        ("HELLO", True),
        ("cat", True),
        ("Cat", True),
        ("90", True),
        ("co", False),
        ("0", False),
        ("Il", False),
        ("l", False),
    ],
)
def test_only_strings_that_can_be_read_in_one_way(text: str, clear: bool) -> None:
    assert strings.is_clear(text) == clear


def test_places_have_names_away_from_their_borders() -> None:
    assert (place_of(0.1, 0.1), place_of(0.5, 0.5), place_of(0.9, 0.5)) == ("top left", "center", "right")
    assert place_of(0.34, 0.5) is None


def test_sizes_cover_what_people_send() -> None:
    rng = random.Random(4)
    sizes = [random_size(rng) for _ in range(500)]
    assert min(map(min, sizes)) == 64
    assert max(map(max, sizes)) > 3500
    assert all(max(door_size(*size)) <= 512 or min(door_size(*size)) <= 64 for size in sizes)
    trained = [grid_of(*training_size(rng)) for _ in range(500)]
    assert all(rows * columns <= MAX_CELLS for rows, columns in trained)
    assert {(5, 5), (4, 6), (6, 4)} <= set(trained)


def test_a_mark_lies_in_its_patch() -> None:
    import numpy as np

    pixels = np.zeros((128, 160, 3), np.uint8)
    pixels[70, 100] = 255
    assert to_patches(pixels, 4, 5)[patch_at(100.5 / 160, 70.5 / 128, 4, 5)].any()


def test_a_description_names_what_is_there() -> None:
    thing = scenes.Thing("star", "orange", 0.3, 0.5, 0.2, 0.0)
    other = scenes.Thing("circle", "red", 0.7, 0.5, 0.2, 0.0)
    white = scenes.Backdrop("plain", "white", None, 0, False)
    scene = scenes.Scene(200, 200, white, things=(other, thing))
    assert description(scene) == "An orange star and a red circle on a white background."

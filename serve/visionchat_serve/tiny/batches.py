"""Makes the training batches: pictures cut into patches, packed rows of questions, and targets for the helper heads.

Every batch has the same shape whatever its pictures, so that the network is compiled once: pictures are
padded to the largest number of cells, rows to a fixed length. Batch number n of a seed is always the same. No
torch here.
"""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image

from visionchat_serve.tiny import rows as packing
from visionchat_serve.tiny import scenes
from visionchat_serve.tiny.drawing import Mark, compress, draw
from visionchat_serve.tiny.fonts import HELD_OUT, training_fonts
from visionchat_serve.tiny.layout import CELL, MERGE, PATCH
from visionchat_serve.tiny.questions import Question, follow_ups, pair_questions, questions
from visionchat_serve.tiny.rows import Group, Picture, Point, Segment
from visionchat_serve.tiny.scenes import Scene, Source
from visionchat_serve.tiny.sizes import MAX_CELLS, grid_of, training_size
from visionchat_serve.tiny.wordings import SYSTEM_PROMPTS
from visionchat_serve.tiny.words import COLOURS, SHAPES

CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
PATCHES = MAX_CELLS * MERGE * MERGE
ROW_LENGTH = 192
SLOTS = 2  # characters whose middle lies in one cell, from left to right
Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Mix:
    """What a batch is made of. `simple` is the share of scenes with one or two things: the way into place questions."""

    asked: int = 64  # pictures with questions
    packed: int = 44  # dense pictures without questions, for the eyes
    rows: int = 38
    text: float = 0.4
    bars: float = 0.05
    pairs: float = 0.06
    simple: float = 0.5
    easy: float = 0.0  # share of dense pictures with large letters on a plain background: the way into reading

    @property
    def pictures(self) -> int:
        return self.asked + self.packed


@dataclass(slots=True)
class Batch:
    pixels: Array  # uint8 [pictures, PATCHES, 3 * PATCH * PATCH]
    grids: Array  # [pictures, 2] rows and columns of cells
    characters: Array  # [pictures, MAX_CELLS, SLOTS] 0 for none
    patch_characters: Array  # [pictures, PATCHES] the same in patches, without slots: easier to learn first
    shapes: Array  # [pictures, MAX_CELLS] 0 for none
    colours: Array
    ids: Array  # [rows, ROW_LENGTH]
    positions: Array  # [3, rows, ROW_LENGTH]
    cells: Array
    labels: Array
    segments: Array  # which segment a token belongs to, -1 for padding
    parents: Array  # the one other segment it sees
    answers: list[tuple[int, int, int, str]]  # row, first and last label, skill
    points: list[tuple[int, Point]]  # row, and the point with its place in the row


def training_source() -> Source:
    return Source(training_fonts(), held_out=False)


def held_out_source() -> Source:
    return Source((HELD_OUT,), held_out=True)


def make_batch(seed: int, number: int, mix: Mix, source: Source) -> Batch:
    rng = random.Random(f"{seed}/{number}")  # noqa: S311
    drawn: list[Scene] = []
    groups: list[Group] = []
    pictures: list[Picture] = []

    def add(scene: Scene) -> Picture:
        rows, columns = grid_of(scene.width, scene.height)
        pictures.append(Picture(len(drawn) * MAX_CELLS, rows, columns))
        drawn.append(scene)
        return pictures[-1]

    while len(drawn) < mix.asked:
        if rng.random() < mix.pairs and len(drawn) < mix.asked - 1:
            groups.append(_pair_group(rng, source, add))
        else:
            groups += _groups(rng, source, mix, add)
    while len(drawn) < mix.pictures:
        add(scenes.packed_scene(rng, source, training_size(rng), rng.random() < mix.easy))
    return _assemble(rng, drawn, groups, mix.rows)


def random_scene(rng: random.Random, source: Source, mix: Mix) -> Scene:
    size, luck = training_size(rng), rng.random()
    if luck < mix.text:
        return scenes.text_scene(rng, source, size)
    if luck < mix.text + mix.bars:
        return scenes.bars_scene(rng, source, size)
    return scenes.shapes_scene(rng, source, size, most=2 if rng.random() < mix.simple else 5)


def _pair_group(rng: random.Random, source: Source, add: Callable[[Scene], Picture]) -> Group:
    first, second = (_one_thing(rng, source) for _ in range(2))
    asked = list(itertools.islice(pair_questions(rng, first, second, source.held_out), 4))
    return packing.picture_first([add(first), add(second)], asked)


def _one_thing(rng: random.Random, source: Source) -> Scene:
    while True:
        scene = scenes.shapes_scene(rng, source, training_size(rng), most=1)
        if scene.things:
            return scene


def _groups(rng: random.Random, source: Source, mix: Mix, add: Callable[[Scene], Picture]) -> list[Group]:
    """All questions about one picture, in one or two of the forms that a conversation can take."""
    scene = random_scene(rng, source, mix)
    picture, asked = add(scene), _various(rng, scene, source.held_out)
    system = rng.choice(SYSTEM_PROMPTS) if rng.random() < 0.15 else None
    form = rng.random()
    if form < 0.15:
        return [packing.text_first(picture, question, system) for question in asked[:2]]
    if form < 0.27:
        turns = asked[:4]
        if len(scene.things) == 1 and not scene.lines and rng.random() < 0.6:
            turns = follow_ups(rng, scene, source.held_out)
        return [packing.many_turns(picture, turns, system)]
    return [packing.picture_first([picture], asked, system)]


def _various(rng: random.Random, scene: Scene, held_out: bool) -> list[Question]:
    """Up to eight questions, not more than two of a skill (four of the slow ones)."""
    chosen: list[Question] = []
    for question in itertools.islice(questions(rng, scene, held_out), 18):
        alike = [q for q in chosen if q.skill == question.skill]
        most = 4 if question.skill in ("place", "relation", "half") else 2
        same = any(
            q.answer == question.answer and q.skill not in ("place", "relation", "half", "exist", "count")
            for q in alike
        )
        if len(alike) < most and (not same or (question.skill.startswith("read") and len(alike) < 2)):
            chosen.append(question)
    return chosen[:8]


def _assemble(rng: random.Random, drawn: list[Scene], groups: list[Group], row_count: int) -> Batch:
    count = len(drawn)
    batch = Batch(
        pixels=np.zeros((count, PATCHES, 3 * PATCH * PATCH), np.uint8),
        grids=np.array([grid_of(scene.width, scene.height) for scene in drawn]),
        characters=np.zeros((count, MAX_CELLS, SLOTS), np.int64),
        patch_characters=np.zeros((count, PATCHES), np.int64),
        shapes=np.zeros((count, MAX_CELLS), np.int64),
        colours=np.zeros((count, MAX_CELLS), np.int64),
        ids=np.zeros((row_count, ROW_LENGTH), np.int64),
        positions=np.zeros((3, row_count, ROW_LENGTH), np.int64),
        cells=np.full((row_count, ROW_LENGTH), -1),
        labels=np.full((row_count, ROW_LENGTH), packing.IGNORED),
        segments=np.full((row_count, ROW_LENGTH), -1),
        parents=np.full((row_count, ROW_LENGTH), -2),
        answers=[],
        points=[],
    )
    for index, scene in enumerate(drawn):
        _draw_into(batch, index, scene, rng)
    _pack(batch, groups)
    return batch


def _draw_into(batch: Batch, index: int, scene: Scene, rng: random.Random) -> None:
    picture, marks = draw(scene)
    if rng.random() < 0.2:
        picture = compress(picture, rng.randint(40, 92))
    rows, columns = grid_of(scene.width, scene.height)
    picture = picture.resize((columns * CELL, rows * CELL), Image.Resampling.BICUBIC)
    patches = to_patches(np.asarray(picture), rows, columns)
    batch.pixels[index, : len(patches)] = patches
    _mark_targets(batch, index, scene, marks, rows, columns)


def to_patches(pixels: Array, rows: int, columns: int) -> Array:
    """Patches in the image processor's order: cell by cell, within a cell row by row, each patch channel first."""
    split = pixels.reshape(rows, MERGE, PATCH, columns, MERGE, PATCH, 3)
    return split.transpose(0, 3, 1, 4, 6, 2, 5).reshape(rows * columns * MERGE * MERGE, 3 * PATCH * PATCH)


def patch_at(x: float, y: float, rows: int, columns: int) -> int:
    """Number, in the order of `to_patches`, of the patch at a place from 0 to 1."""
    down = min(rows * MERGE - 1, max(0, int(y * rows * MERGE)))
    across = min(columns * MERGE - 1, max(0, int(x * columns * MERGE)))
    cell = (down // MERGE) * columns + across // MERGE
    return (cell * MERGE + down % MERGE) * MERGE + across % MERGE


def _mark_targets(batch: Batch, index: int, scene: Scene, marks: list[Mark], rows: int, columns: int) -> None:
    def cell_at(x: float, y: float) -> int:
        return min(rows - 1, max(0, int(y * rows))) * columns + min(columns - 1, max(0, int(x * columns)))

    in_cell: dict[int, list[Mark]] = {}
    for mark in marks:
        in_cell.setdefault(cell_at(mark.x, mark.y), []).append(mark)
    for mark in marks:
        patch = patch_at(mark.x, mark.y, rows, columns)
        batch.patch_characters[index, patch] = CHARACTERS.index(mark.character) + 1
    for cell, found in in_cell.items():
        for slot, mark in enumerate(sorted(found, key=lambda m: m.x)[:SLOTS]):
            batch.characters[index, cell, slot] = CHARACTERS.index(mark.character) + 1
            batch.colours[index, cell] = COLOURS.index(mark.colour) + 1
    for thing in scene.things:
        cell = cell_at(thing.x, thing.y)
        batch.shapes[index, cell] = SHAPES.index(thing.shape) + 1
        batch.colours[index, cell] = COLOURS.index(thing.colour) + 1


def _pack(batch: Batch, groups: list[Group]) -> None:
    """First fit; what finds no room is left out."""
    used = [0] * len(batch.ids)
    segments = itertools.count()
    for group in groups:
        kept, length = [], len(group.prompt.ids)
        for segment in group.segments:
            if length + len(segment.ids) <= ROW_LENGTH:
                kept.append(segment)
                length += len(segment.ids)
        row = next((r for r, start in enumerate(used) if start + length <= ROW_LENGTH), None)
        if row is None or not kept:
            continue
        prompt_number = next(segments)
        _write(batch, row, used[row], group.prompt, prompt_number, prompt_number)
        start = used[row] + len(group.prompt.ids)
        for segment in kept:
            _write(batch, row, start, segment, next(segments), prompt_number)
            start += len(segment.ids)
        used[row] = start


def _write(batch: Batch, row: int, start: int, segment: Segment, number: int, parent: int) -> None:
    if not segment.ids:
        return
    span = slice(start, start + len(segment.ids))
    batch.ids[row, span] = segment.ids
    batch.positions[:, row, span] = np.array(segment.positions).T
    batch.cells[row, span] = segment.cells
    batch.labels[row, span] = segment.labels
    batch.segments[row, span] = number
    batch.parents[row, span] = parent
    batch.points += [(row, replace(point, token=start + point.token)) for point in segment.points]
    batch.answers += [(row, start + first, start + last, skill) for first, last, skill in segment.answers]

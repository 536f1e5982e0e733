"""`python -m visionchat_serve.tiny.evaluate`: what the shipped checkpoint can do, by skill, on pictures never seen.

Another seed, photographs, wordings and strings kept back, and a font never trained on; each picture is made
at its full size, written as PNG or JPEG, and goes the way a request goes (`reader.py`). Writes
`evaluation.json` and `evaluation.md` beside this file.
"""

import argparse
import io
import itertools
import json
import math
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from PIL import Image

from visionchat_serve.tiny import CHECKPOINT, scenes
from visionchat_serve.tiny.batches import Mix, held_out_source, random_scene
from visionchat_serve.tiny.drawing import draw
from visionchat_serve.tiny.questions import Question, follow_ups, pair_questions, questions
from visionchat_serve.tiny.reader import Message, Reader, user_turn
from visionchat_serve.tiny.scenes import Scene
from visionchat_serve.tiny.sizes import random_size
from visionchat_serve.tiny.wordings import SYSTEM_PROMPTS

SEED = 20_261
# skill -> target in percent, or None where it is only stated
TARGETS: dict[str, int | None] = {
    "colour": 95, "shape": 95, "exist": 95, "count": 95, "background": 95, "text colour": 95, "describe": 95,
    "place": 85, "relation": 85, "read 1-3": 85,
    "read 4-8": None, "tallest bar": None, "two pictures": None, "three turns": None,
}  # fmt: skip
MEANING = {
    "colour": "colour of a thing, or that it is not there",
    "shape": "shape of a thing, or that it is not there",
    "exist": "whether a thing is there", "count": "how many, 0 to 5",
    "background": "colour of the background",
    "text colour": "colour of the text", "describe": "description in one sentence, every word",
    "place": "which ninth of the picture, things that are there",
    "relation": "left or right of, above or below",
    "read 1-3": "reading 1 to 3 characters", "read 4-8": "reading 4 to 8 characters",
    "tallest bar": "tallest or shortest bar", "two pictures": "questions about two pictures",
    "three turns": "each of three turns about one picture",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result:
    skill: str
    question: str
    answer: str
    said: str
    size: tuple[int, int]
    backdrop: str
    form: str  # "picture first", "text first", with "system" where there was a system prompt

    @property
    def right(self) -> bool:
        return self.said == self.answer


@dataclass(frozen=True, slots=True)
class Case:
    """Pictures with the questions asked one after the other in one conversation."""

    pictures: tuple[Scene, ...]
    turns: tuple[Question, ...]


def cases(rng: random.Random, count: int) -> Iterator[Case]:
    """About `count` questions, the same number for each skill, nearly always one to a picture."""
    wanted = dict.fromkeys(TARGETS, math.ceil(count / len(TARGETS)))
    source, mix = held_out_source(), Mix(simple=0.3, text=0.3, bars=0.08)
    while any(left > 0 for left in wanted.values()):
        scene = _native(rng, random_scene(rng, source, mix))
        case: Case | None = None
        if wanted["two pictures"] > 0 and rng.random() < 0.3:
            first, second = (_native(rng, _one_thing(rng)) for _ in range(2))
            case = Case((first, second), (next(pair_questions(rng, first, second, True)),))
        elif wanted["three turns"] > 0 and len(scene.things) == 1 and not scene.lines:
            turns = tuple(follow_ups(rng, scene, True))
            case = Case((scene,), turns) if len(turns) == 3 else None
        else:
            asked = (q for q in itertools.islice(questions(rng, scene, True), 12) if wanted.get(q.skill, 0) > 0)
            case = next((Case((scene,), (q,)) for q in asked), None)
        if case:
            for question in case.turns:
                wanted[question.skill] -= 1
            yield case


def _one_thing(rng: random.Random) -> Scene:
    while True:
        scene = scenes.shapes_scene(rng, held_out_source(), random_size(rng), most=1)
        if scene.things:
            return scene


def _native(rng: random.Random, scene: Scene) -> Scene:
    """The same scene at the full size a user would send: training never draws larger than it can see."""
    scale = math.exp(rng.uniform(0, math.log(4000 / max(scene.width, scene.height)))) if rng.random() < 0.7 else 1.0
    fields = {name: getattr(scene, name) for name in scene.__dataclass_fields__}
    return Scene(**fields | {"width": round(scene.width * scale), "height": round(scene.height * scale)})


def encode_picture(rng: random.Random, picture: Image.Image) -> bytes:
    file = io.BytesIO()
    if rng.random() < 0.5:
        picture.save(file, "PNG", compress_level=1)
    else:
        picture.save(file, "JPEG", quality=rng.randint(60, 95))
    return file.getvalue()


def run_case(reader: Reader, rng: random.Random, case: Case) -> Iterator[Result]:
    data = [encode_picture(rng, draw(scene)[0]) for scene in case.pictures]
    text_first, system = rng.random() < 0.2 and len(data) == 1, rng.random() < 0.2
    messages: list[Message] = [{"role": "system", "content": rng.choice(SYSTEM_PROMPTS)}] if system else []
    form = ("text first" if text_first else "picture first") + (", system prompt" if system else "")
    for number, question in enumerate(case.turns):
        messages.append(user_turn(question.text, data if number == 0 else (), text_first))
        said = reader.answer(messages)
        messages.append({"role": "assistant", "content": said})
        first = case.pictures[0]
        yield Result(
            question.skill, question.text, question.answer, said, (first.width, first.height), first.backdrop.kind, form
        )


def evaluate(folder: Path, count: int, seed: int) -> list[Result]:
    rng, reader = random.Random(seed), Reader.load(folder)  # noqa: S311
    return [result for case in cases(rng, count) for result in run_case(reader, rng, case)]


def shares(results: list[Result], key: str) -> dict[str, tuple[int, int]]:
    """Right and all answers for each value of a field."""
    groups: dict[str, list[bool]] = defaultdict(list)
    for result in results:
        groups[str(getattr(result, key))].append(result.right)
    return {name: (sum(right), len(right)) for name, right in groups.items()}


def markdown(results: list[Result]) -> str:
    by_skill = shares(results, "skill")
    lines = ["| skill | right | of | % | target |", "| --- | ---: | ---: | ---: | ---: |"]
    for skill, target in TARGETS.items():
        right, total = by_skill.get(skill, (0, 0))
        goal = f"{target}" if target else "-"
        lines.append(f"| {skill}: {MEANING[skill]} | {right} | {total} | {100 * right / max(1, total):.1f} | {goal} |")
    right = sum(result.right for result in results)
    lines.append(f"| **all** | {right} | {len(results)} | {100 * right / max(1, len(results)):.1f} | |")
    for title, key in (("background", "backdrop"), ("form", "form")):
        parts = [f"{name} {100 * r / n:.1f} % of {n}" for name, (r, n) in sorted(shares(results, key).items())]
        lines.append(f"\nBy {title}: {'; '.join(parts)}.")
    return "\n".join(lines) + "\n\nMade by `make evaluate`.\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m visionchat_serve.tiny.evaluate", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT)
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="folder for the two files")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    results = evaluate(options.checkpoint, options.questions, options.seed)
    table = markdown(results)
    (options.output / "evaluation.md").write_text(table)
    wrong = [asdict(result) for result in results if not result.right]
    summary = {"seed": options.seed, "by_skill": shares(results, "skill"), "wrong": wrong}
    (options.output / "evaluation.json").write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n")
    print(f"{table}\n{time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

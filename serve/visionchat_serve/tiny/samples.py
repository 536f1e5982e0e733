"""`python -m visionchat_serve.tiny.samples FOLDER`: the sample pictures that the demo and the tests ask about.

A handful of scenes written down by hand, drawn the same each time, with questions and their true answers in
`questions.json` beside them. Backgrounds are drawn, not photographed, so that the files are free of other
people's rights.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from visionchat_serve.tiny.backgrounds import Backdrop
from visionchat_serve.tiny.drawing import draw
from visionchat_serve.tiny.scenes import Bar, Line, Scene, Thing

SANS, SERIF = "DejaVu Sans Bold", "DejaVu Serif"


@dataclass(frozen=True, slots=True)
class Sample:
    file: str
    scene: Scene
    questions: tuple[tuple[str, str], ...]


def _plain(colour: str, kind: str = "plain") -> Backdrop:
    return Backdrop(kind, colour, None, seed=4, held_out=False)


def _clouds(seed: int, wash: str | None = None) -> Backdrop:
    return Backdrop("texture", None, wash, seed, held_out=False)


SAMPLES = (
    Sample(
        "circle-and-square.png",
        Scene(
            400, 300, _plain("white"),
            things=(Thing("circle", "red", 0.25, 0.5, 0.26, 0.0), Thing("square", "blue", 0.74, 0.48, 0.26, 0.1)),
        ),
        (
            ("What is in this picture?", "A red circle and a blue square on a white background."),
            ("What colour is the circle?", "Red"),
            ("Which shape is blue?", "Square"),
            ("Is the red circle left or right of the blue square?", "Left"),
            ("How many shapes are there?", "2"),
            ("Is there a triangle?", "No"),
        ),
    ),
    Sample(
        "star-on-clouds.jpg",
        Scene(1200, 900, _clouds(3, "white"), things=(Thing("star", "purple", 0.2, 0.2, 0.17, 0.3),), seed=1),
        (
            ("Which shape do you see?", "Star"),
            ("What color is the star?", "Purple"),
            ("Where is the star?", "Top left"),
        ),
    ),
    Sample(
        "three-in-a-column.png",
        Scene(
            240, 640, _plain("black"),
            things=(
                Thing("triangle", "yellow", 0.5, 0.17, 0.34, 0.0), Thing("circle", "green", 0.52, 0.5, 0.33, 0.0),
                Thing("diamond", "white", 0.48, 0.83, 0.36, 0.0),
            ),
        ),
        (
            ("How many shapes are there?", "3"),
            ("What colour is the triangle?", "Yellow"),
            ("Is the green circle above or below the white diamond?", "Above"),
            ("What colour is the background?", "Black"),
        ),
    ),
    Sample(
        "tiny-circle.png",
        Scene(64, 64, _plain("white"), things=(Thing("circle", "red", 0.5, 0.5, 0.32, 0.0),)),
        (("What do you see?", "A red circle on a white background."), ("What colour is the circle?", "Red")),
    ),
    Sample(
        "stop.png",
        Scene(480, 240, _plain("red"), lines=(Line("STOP", "white", SANS, 0.5, 0.5, 0.34, 0.0),)),
        (
            ("What does it say?", "STOP"),
            ("What colour is the text?", "White"),
            ("What colour is the background?", "Red"),
        ),
    ),
    Sample(
        "number.jpg",
        Scene(640, 480, _plain("yellow", "noise"), lines=(Line("527", "black", SERIF, 0.5, 0.45, 0.4, 0.0),), seed=2),
        (("Read the text in the picture.", "527"), ("What colour is the background?", "Yellow")),
    ),
    Sample(
        "bars.png",
        Scene(
            600, 400, _plain("white"),
            bars=(Bar("red", 0.2, 0.18, 0.4), Bar("blue", 0.5, 0.18, 0.8), Bar("green", 0.8, 0.18, 0.55)),
        ),
        (("Which bar is tallest?", "Blue"), ("Which bar is shortest?", "Red")),
    ),
    Sample(
        "five-things.png",
        Scene(
            500, 500, _plain("white"),
            things=(
                Thing("circle", "red", 0.2, 0.2, 0.13, 0.0), Thing("circle", "red", 0.5, 0.5, 0.13, 0.0),
                Thing("circle", "red", 0.8, 0.22, 0.13, 0.0), Thing("square", "green", 0.2, 0.8, 0.14, 0.0),
                Thing("square", "green", 0.8, 0.8, 0.14, 0.0),
            ),
        ),
        (
            ("How many shapes are there?", "5"), ("How many red circles are there?", "3"),
            ("How many green squares are there?", "2"), ("Is there a blue star?", "No"),
        ),
    ),
)  # fmt: skip


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for sample in SAMPLES:
        picture, _ = draw(sample.scene)
        picture.save(folder / sample.file, optimize=True, quality=70)
    listed = {
        sample.file: [{"question": question, "answer": answer} for question, answer in sample.questions]
        for sample in SAMPLES
    }
    (folder / "questions.json").write_text(json.dumps(listed, indent=2) + "\n")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m visionchat_serve.tiny.samples", description=__doc__)
    parser.add_argument("folder", type=Path)
    write(parser.parse_args(arguments).folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())

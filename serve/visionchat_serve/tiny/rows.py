"""Packs conversations into rows of tokens, so that one picture serves many questions in one forward pass.

A row holds groups. A group is one prompt with its picture, shared by several independent questions: each
question sees the prompt and itself and nothing else, at the positions it would have alone. So every question
in a row is exactly a single turn, as `generate` will see it; a conversation of several turns is one segment
that contains all of them.
"""

from dataclasses import dataclass, field
from functools import lru_cache

from tokenizers import Tokenizer

from visionchat_serve.tiny.questions import Question
from visionchat_serve.tiny.tokenizer import build_tokenizer, token_id

END_OF_TURN = "<|im_end|>"
IGNORED = -100  # a label that is not scored


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture in the batch: its first cell in the batch's list of cells, and its grid."""

    first_cell: int
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class Point:
    """What a token should know: where the thing that it names is, or how far two named things lie apart.

    `down` and `across` are shares of the picture: of -1 to 1 for a place, of -2 to 2 for a distance.
    """

    token: int
    is_distance: bool
    down: float
    across: float


@dataclass(slots=True)
class Segment:
    """Tokens at their positions; `cells` is the picture's cell a token shows, or -1; `labels` the token to come."""

    ids: list[int] = field(default_factory=list)
    positions: list[tuple[int, int, int]] = field(default_factory=list)
    cells: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    answers: list[tuple[int, int, str]] = field(default_factory=list)  # first and last label, skill
    points: list[Point] = field(default_factory=list)
    next_position: int = 0

    def add_text(self, text: str) -> None:
        for token in encode(text):
            self._add(token, (self.next_position,) * 3, -1)
            self.next_position += 1

    def add_picture(self, picture: Picture) -> None:
        self.add_text("<|vision_start|>")
        start = self.next_position
        pad = token_id(tokenizer(), "<|image_pad|>")
        for cell in range(picture.rows * picture.columns):
            row, column = divmod(cell, picture.columns)
            self._add(pad, (start, start + row, start + column), picture.first_cell + cell)
        self.next_position = start + max(picture.rows, picture.columns)
        self.add_text("<|vision_end|>")

    def add_question(self, question: Question, points: bool = True) -> None:
        """The words of the user; `points`: the picture came before, so that they can be found in it."""
        start = len(self.ids)
        self.add_text(question.text)
        for mention in question.mentions if points else ():
            token = last_token(question.text, mention.words)
            self.points.append(Point(start + token, False, mention.y * 2 - 1, mention.x * 2 - 1))

    def add_answer(self, question: Question) -> None:
        """The assistant's turn; each of its tokens is the label of the token before it."""
        first = len(self.ids) - 1
        if len(question.mentions) == 2 and self.points:
            a, b = question.mentions
            self.points.append(Point(first, True, (b.y - a.y) * 2, (b.x - a.x) * 2))
        before = len(self.ids)
        self.add_text(question.answer + END_OF_TURN)
        for index in range(before, len(self.ids)):
            self.labels[index - 1] = self.ids[index]
        self.answers.append((first, len(self.ids) - 1, question.skill))

    def _add(self, token: int, position: tuple[int, int, int], cell: int) -> None:
        self.ids.append(token)
        self.positions.append(position)
        self.cells.append(cell)
        self.labels.append(IGNORED)


@dataclass(frozen=True, slots=True)
class Group:
    """A shared prompt (possibly empty) and the segments that continue it independently of each other."""

    prompt: Segment
    segments: tuple[Segment, ...]


@lru_cache
def tokenizer() -> Tokenizer:
    return build_tokenizer()


def last_token(text: str, words: str) -> int:
    """Number of the token in which `words` end."""
    end = text.lower().index(words.lower()) + len(words)
    return next(i for i, (start, stop) in enumerate(tokenizer().encode(text).offsets) if start < end <= stop)


@lru_cache(maxsize=65536)
def encode(text: str) -> tuple[int, ...]:
    return tuple(tokenizer().encode(text).ids)


def system_turn(text: str | None) -> str:
    return f"<|im_start|>system\n{text}{END_OF_TURN}\n" if text else ""


def picture_first(pictures: list[Picture], asked: list[Question], system: str | None = None) -> Group:
    """The usual order, picture before question, which lets many questions share the picture."""
    prompt = Segment()
    prompt.add_text(system_turn(system) + "<|im_start|>user\n")
    for picture in pictures:
        prompt.add_picture(picture)
    return Group(prompt, tuple(_question_after(prompt, question) for question in asked))


def _question_after(prompt: Segment, question: Question) -> Segment:
    segment = Segment(next_position=prompt.next_position)
    _add_turn(segment, question)
    return segment


def _add_turn(segment: Segment, question: Question) -> None:
    segment.add_question(question)
    segment.add_text(f"{END_OF_TURN}\n<|im_start|>assistant\n")
    segment.add_answer(question)


def text_first(picture: Picture, question: Question, system: str | None = None) -> Group:
    segment = Segment()
    segment.add_text(f"{system_turn(system)}<|im_start|>user\n")
    segment.add_question(question, points=False)
    segment.add_picture(picture)
    segment.add_text(f"{END_OF_TURN}\n<|im_start|>assistant\n")
    segment.add_answer(question)
    return Group(Segment(), (segment,))


def many_turns(picture: Picture, asked: list[Question], system: str | None = None) -> Group:
    segment = Segment()
    segment.add_text(system_turn(system))
    for turn, question in enumerate(asked):
        segment.add_text("<|im_start|>user\n" if turn == 0 else "\n<|im_start|>user\n")
        if turn == 0:
            segment.add_picture(picture)
        _add_turn(segment, question)
    return Group(Segment(), (segment,))

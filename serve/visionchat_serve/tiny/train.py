"""`python -m visionchat_serve.tiny.train`: trains the tiny model from nothing, or goes on where it was stopped.

First the eyes alone learn dense pictures, then everything together learns to answer. The learning rate
follows the share of `--minutes` that has been spent, so a run always ends with a finished model; time in
which the process was stopped does not count. State is saved every two minutes and on SIGTERM; the same
command goes on from there.
"""

import argparse
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import platformdirs
import torch
import torch._inductor.config
from torch.utils.data import DataLoader, IterableDataset

from visionchat_serve.tiny import CHECKPOINT
from visionchat_serve.tiny.batches import Batch, Mix, make_batch, training_source
from visionchat_serve.tiny.export import export
from visionchat_serve.tiny.learner import Learner
from visionchat_serve.tiny.network import build_config, build_network, load_weights
from visionchat_serve.tiny.progress import quick_scores
from visionchat_serve.tiny.threads import Threads
from visionchat_serve.tiny.tokenizer import build_tokenizer

log = logging.getLogger("visionchat.tiny")
SAVE_SECONDS, SCORE_SECONDS, EXPORT_SECONDS = 120.0, 180.0, 600.0
LONGEST_STEP = 60.0  # a step that took longer was stopped in between (or compiled), and counts as this long
EYES = Mix(asked=32, packed=64, easy=0.6)
ANSWERS = Mix()


class Batches(IterableDataset[Batch]):
    """Endless batches from a number on; made in a process of its own."""

    def __init__(self, seed: int, first: int, mix: Mix) -> None:
        self.seed, self.first, self.mix = seed, first, mix

    def __iter__(self) -> Iterator[Batch]:
        os.nice(2)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        source, number = training_source(), self.first
        while True:
            yield make_batch(self.seed, number, self.mix, source)
            number += 1


def learning_rate(share: float, since_start: int) -> float:
    """Cosine from 1 to 0 over the run, with a short rise at the start of each phase and after each restart."""
    return min(1.0, (since_start + 1) / 20) * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m visionchat_serve.tiny.train", description=__doc__)
    add = parser.add_argument
    add("--minutes", type=float, default=180.0, help="time to train for, in all")
    add("--eyes", type=float, default=0.22, help="share of it for the vision tower alone")
    add(
        "--state",
        type=Path,
        default=Path(platformdirs.user_cache_dir("visionchat")) / "tiny",
        help="where to go on from",
    )
    add("--checkpoint", type=Path, default=CHECKPOINT, help="folder to export to")
    add("--from-checkpoint", action="store_true", help="without a state, start from the exported weights")
    add("--text", type=float, default=ANSWERS.text, help="share of pictures with text")
    add("--simple", type=float, default=ANSWERS.simple, help="share of scenes with one or two things only")
    add("--packed", type=int, default=ANSWERS.packed, help="dense pictures without questions in a batch")
    add("--rate", type=float, default=1.0, help="multiplies the learning rates")
    add("--helper", type=float, default=1.0, help="weight of the helper heads beside the answers")
    add("--threads", type=int, default=os.cpu_count() or 1)
    add("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def prepare(options: argparse.Namespace) -> Learner:
    model = build_network(build_config(build_tokenizer()), options.seed)
    if options.from_checkpoint:
        load_weights(model, options.checkpoint)
    learner = Learner(model)
    state: Path = options.state / "state.pt"
    options.state.mkdir(parents=True, exist_ok=True)
    if state.exists():
        learner.load(state)
        log.info("going on from step %(step)d after %(seconds).0f s", learner.progress)
    return learner


class Run:
    """The loop with its clock; `stop` is set by a signal."""

    def __init__(self, options: argparse.Namespace, learner: Learner) -> None:
        self.options, self.learner = options, learner
        self.stop = False
        self.threads = Threads(options.threads)
        now = float(learner.progress["seconds"])
        self.last = {"save": now, "score": now, "export": now - EXPORT_SECONDS}
        self.best = float(learner.progress.get("best", 0.0))

    @property
    def share(self) -> float:
        return float(self.learner.progress["seconds"] / (self.options.minutes * 60))

    def phase(self, mix: Mix, until: float, answers: bool) -> None:
        if self.share >= until or self.stop:
            return
        first = int(self.learner.progress["step"])
        data = DataLoader(Batches(self.options.seed, first, mix), batch_size=None, num_workers=1, prefetch_factor=6)
        batches, since = iter(data), 0
        while self.share < until and not self.stop:
            started = time.monotonic()
            rate = learning_rate(self.share, since) * self.options.rate
            numbers = self.learner.step(next(batches), rate, answers)
            seconds = time.monotonic() - started
            self.learner.progress["seconds"] += min(LONGEST_STEP, seconds)
            self.threads.took(seconds)
            since += 1
            if since % 20 == 0:
                self._report(numbers, rate)
            self._due(answers)

    def _report(self, numbers: dict[str, float], rate: float) -> None:
        progress = self.learner.progress
        shown = " ".join(f"{name} {value:.3f}" for name, value in numbers.items())
        log.info("%.1f min step %d rate %.3f %s", progress["seconds"] / 60, progress["step"], rate, shown)
        log.info("seconds a step by threads: %s", self.threads.seconds)

    def _passed(self, name: str, seconds: float) -> bool:
        if self.learner.progress["seconds"] - self.last[name] < seconds:
            return False
        self.last[name] = self.learner.progress["seconds"]
        return True

    def _due(self, answers: bool) -> None:
        if self._passed("save", SAVE_SECONDS):
            self.learner.save(self.options.state / "state.pt")
        if answers and self._passed("score", SCORE_SECONDS):
            score = self.score()
            if score > self.best and self._passed("export", EXPORT_SECONDS):
                self.best = self.learner.progress["best"] = score
                export(self.learner.model.state_dict(), self.options.checkpoint)

    def score(self) -> float:
        total, table = quick_scores(self.learner)
        log.info("scores at %.1f min: all %.1f | %s", self.learner.progress["seconds"] / 60, total, table)
        return total


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    torch._dynamo.config.recompile_limit = 64
    torch._inductor.config.cpp.dynamic_threads = True
    learner = prepare(options)
    learner.helper_weight = options.helper
    run = Run(options, learner)
    signal.signal(signal.SIGTERM, lambda *_: setattr(run, "stop", True))
    signal.signal(signal.SIGINT, lambda *_: setattr(run, "stop", True))
    run.phase(EYES, options.eyes, answers=False)
    mix = Mix(packed=options.packed, text=options.text, simple=options.simple, easy=0.2)
    run.phase(mix, 1.0, answers=True)
    learner.save(options.state / "state.pt")
    if not run.stop:
        run.score()
        export(learner.model.state_dict(), options.checkpoint)
        log.info("finished: exported to %s", options.checkpoint)
    return 0


if __name__ == "__main__":
    sys.exit(main())

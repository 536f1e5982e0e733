"""Quick scores while training: exact match by skill under teacher forcing, on pictures of another seed.

Greedy decoding gives an answer wholly right exactly when each of its tokens is the best after the right ones
before it, so these numbers equal those of real generation, at a small part of the time.
"""

from collections import defaultdict
from functools import lru_cache

import torch

from visionchat_serve.tiny.batches import Batch, Mix, held_out_source, make_batch, training_source
from visionchat_serve.tiny.learner import Learner

SEED = 77  # not the seed of the evaluation


@lru_cache
def _batches() -> tuple[Batch, ...]:
    mix = Mix(packed=44, simple=0.3)
    sources = (training_source(), held_out_source())
    return tuple(make_batch(SEED, number, mix, sources[number % 2]) for number in range(6))


@torch.no_grad()
def quick_scores(learner: Learner) -> tuple[float, str]:
    right: dict[str, list[bool]] = defaultdict(list)
    for number, batch in enumerate(_batches()):
        with torch.autocast("cpu", torch.bfloat16):
            seen = learner.forward.see(torch.from_numpy(batch.pixels), batch.grids)
            hidden = learner.forward.read(batch, seen).hidden
            best = (hidden @ learner.model.model.language_model.embed_tokens.weight.T).argmax(-1).numpy()
        good = best == batch.labels
        for row, first, last, skill in batch.answers:
            exact = bool(good[row, first:last].all())
            right[skill].append(exact)
            right["(held out)" if number % 2 else "(trained)"].append(exact)
    shown = " ".join(f"{skill} {100 * sum(r) / len(r):.0f}/{len(r)}" for skill, r in sorted(right.items()))
    everything = right["(trained)"] + right["(held out)"]
    return 100 * sum(everything) / len(everything), shown

"""One training step, and everything that must be saved to go on later: weights, heads, optimisers, progress.

Matrices inside the blocks are trained with Muon, which needs about half the steps; tables, norms and the rest
with AdamW.
"""

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Qwen3VLForConditionalGeneration

from visionchat_serve.tiny.batches import Batch
from visionchat_serve.tiny.forward import Forward
from visionchat_serve.tiny.heads import Heads
from visionchat_serve.tiny.rows import IGNORED

MUON_RATE, ADAM_RATE = 4e-3, 1.5e-3
BETAS = (0.9, 0.97)


class Learner:
    def __init__(self, model: Qwen3VLForConditionalGeneration, compiled: bool = True) -> None:
        self.model = model
        self.heads = Heads(model.lm_head.in_features, model.model.visual.pos_embed.embedding_dim)
        self.forward = Forward(model, compiled)
        matrices, others = split_parameters(model)
        muon = torch.optim.Muon(matrices, lr=MUON_RATE, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
        adam = torch.optim.AdamW([*others, *self.heads.parameters()], lr=ADAM_RATE, betas=BETAS, weight_decay=0.0)
        self.optimisers: list[torch.optim.Optimizer] = [muon, adam]
        self.progress: dict[str, Any] = {"step": 0, "seconds": 0.0}

    def losses(self, batch: Batch, answers: bool) -> tuple[Tensor, dict[str, float]]:
        """The helper loss and, when asked for, the answer loss; the numbers are for the log."""
        with torch.autocast("cpu", torch.bfloat16):
            seen = self.forward.see(torch.from_numpy(batch.pixels), batch.grids)
            understood = self.forward.read(batch, seen) if answers else None
        found = self.heads(seen, batch)
        if understood:
            found |= self.heads.points(understood, batch)
        helper = sum((value for name, value in found.items() if name.endswith("_loss")), torch.zeros(()))
        numbers = {name: value.item() for name, value in found.items() if not name.endswith("_loss")}
        numbers["helper"] = helper.item()
        if understood is None:
            return helper, numbers
        answer = answer_loss(understood.hidden, batch, self.model.model.language_model.embed_tokens.weight)
        numbers["answer"] = answer.item()
        return answer + self.helper_weight * helper, numbers

    helper_weight = 1.0

    def step(self, batch: Batch, rate: float, answers: bool) -> dict[str, float]:
        for optimiser, base in zip(self.optimisers, (MUON_RATE, ADAM_RATE), strict=True):
            for group in optimiser.param_groups:
                group["lr"] = base * rate
        loss, numbers = self.losses(batch, answers)
        loss.backward()  # type: ignore[no-untyped-call]
        every = [p for o in self.optimisers for group in o.param_groups for p in group["params"]]
        nn.utils.clip_grad_norm_([p for p in every if p.grad is not None], 1.0)
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        self.progress["step"] += 1
        return numbers

    def save(self, path: Path) -> None:
        """Never leaves half a file, whenever the process is ended."""
        state = {
            "model": self.model.state_dict(),
            "heads": self.heads.state_dict(),
            "optimisers": [o.state_dict() for o in self.optimisers],
            "progress": self.progress,
        }
        fresh = path.with_suffix(".new")
        torch.save(state, fresh)
        os.replace(fresh, path)

    def load(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.progress = state["progress"]
        if state["heads"].keys() != self.heads.state_dict().keys():
            return  # saved by another version: the weights are what counts, the optimisers start anew
        self.heads.load_state_dict(state["heads"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)


def split_parameters(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Matrices that map one hidden vector to another, and all the rest."""
    named = list(model.named_parameters())
    is_matrix = [p.ndim == 2 and "embed" not in name and "lm_head" not in name for name, p in named]
    matrices = [p for (_, p), yes in zip(named, is_matrix, strict=True) if yes]
    return matrices, [p for (_, p), yes in zip(named, is_matrix, strict=True) if not yes]


def answer_loss(hidden: Tensor, batch: Batch, table: Tensor) -> Tensor:
    labels = torch.from_numpy(batch.labels)
    scored = labels != IGNORED
    with torch.autocast("cpu", torch.bfloat16):
        scores = F.linear(hidden[scored], table)
    return F.cross_entropy(scores.float(), labels[scored])

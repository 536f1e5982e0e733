"""Helper heads: what each cell of the picture shows, learnt beside the answers and thrown away afterwards.

Answers alone teach the eyes too slowly: a wrong `Blue` does not say where to look. The heads read the very
vectors the language model gets, so what they find is there for it to use. Nor do they teach a relation of two
things: whether one lies left of the other is no use to learn before both are found. So a token that names a
thing learns where it is, one layer later the end of the question how far the two lie apart.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from visionchat_serve.tiny.batches import CHARACTERS, PATCHES, SLOTS, Batch
from visionchat_serve.tiny.forward import Seen, Understood
from visionchat_serve.tiny.layout import MERGE
from visionchat_serve.tiny.sizes import MAX_CELLS
from visionchat_serve.tiny.words import COLOURS, SHAPES

NAMED_AT, APART_AT = 1, 2  # after which layer of the language model
RARE = 0.15  # weight of "nothing here", which is what most cells show


class Heads(nn.Module):
    def __init__(self, width: int, patch_width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.characters = nn.Linear(width, SLOTS * (len(CHARACTERS) + 1))
        self.patch_norm = nn.LayerNorm(patch_width)
        self.patch_characters = nn.Linear(patch_width, len(CHARACTERS) + 1)
        self.shapes = nn.Linear(width, len(SHAPES) + 1)
        self.colours = nn.Linear(width, len(COLOURS) + 1)
        self.places = nn.Linear(width, 2)
        self.named = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2))
        self.apart = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2))

    def forward(self, seen: Seen, batch: Batch) -> dict[str, Tensor]:
        """The loss of each head, and the share of its marked cells that it names rightly."""
        real = torch.arange(MAX_CELLS)[None] < torch.from_numpy(batch.grids.prod(1))[:, None]
        x = self.norm(seen.cells[real].float())
        found: dict[str, Tensor] = {}
        patches = torch.arange(PATCHES)[None] < torch.from_numpy(batch.grids.prod(1) * MERGE * MERGE)[:, None]
        fine = self.patch_characters(self.patch_norm(seen.patches[patches].float()))
        _score(found, "char", fine, torch.from_numpy(batch.patch_characters)[patches])
        characters = torch.from_numpy(batch.characters)[real]
        for slot in range(SLOTS):
            scores = self.characters(x).unflatten(-1, (SLOTS, -1))[:, slot]
            _score(found, f"char{slot + 1}", scores, characters[:, slot])
        _score(found, "shape", self.shapes(x), torch.from_numpy(batch.shapes)[real])
        _score(found, "hue", self.colours(x), torch.from_numpy(batch.colours)[real])
        found["place_loss"] = F.mse_loss(self.places(x), _cell_places(batch)[real]) * 4
        return found

    def points(self, understood: Understood, batch: Batch) -> dict[str, Tensor]:
        """The losses of what tokens should know of places, as mean squared error (a constant scores about 1.2)."""
        found: dict[str, Tensor] = {}
        for name, head, level, is_distance in (
            ("named", self.named, NAMED_AT, False),
            ("apart", self.apart, APART_AT, True),
        ):
            wanted = [(row, point) for row, point in batch.points if point.is_distance is is_distance]
            if not wanted:
                continue
            rows, tokens = [row for row, _ in wanted], [point.token for _, point in wanted]
            truth = torch.tensor([(point.down, point.across) for _, point in wanted])
            loss = F.mse_loss(head(understood.layers[level][rows, tokens].float()), truth) * 4
            found[f"{name}_loss"], found[name] = loss, loss.detach()
        return found


def _score(found: dict[str, Tensor], name: str, scores: Tensor, truth: Tensor) -> None:
    weight = torch.ones(scores.shape[-1])
    weight[0] = RARE
    found[f"{name}_loss"] = F.cross_entropy(scores, truth, weight)
    marked = truth > 0
    found[name] = (scores.argmax(-1) == truth)[marked].float().mean()


def _cell_places(batch: Batch) -> Tensor:
    """Middle of each cell from -1 to 1, down and across."""
    rows, columns = (torch.from_numpy(part)[:, None] for part in batch.grids.T)
    cell = torch.arange(MAX_CELLS)[None]
    down = (torch.div(cell, columns, rounding_mode="floor") + 0.5) / rows
    across = (cell % columns + 0.5) / columns
    return torch.stack([down, across], -1) * 2 - 1

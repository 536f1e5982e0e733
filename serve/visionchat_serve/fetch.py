"""Fetches a model from the Hugging Face hub into a folder; what is there already is not fetched again.

python -m visionchat_serve.fetch Qwen/Qwen3-VL-2B-Instruct /models/qwen [--revision main]

Run by the model's Job. The folder appears whole or not at all, so that no replica loads half a checkpoint.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]

Download = Callable[[str, str | None, Path], None]


def fetch(model: str, folder: Path, revision: str | None, download: Download) -> bool:
    """False: it was there."""
    if (folder / "config.json").exists():
        return False
    partial = folder.with_name(f"{folder.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)  # what an earlier try has fetched is kept
    download(model, revision, partial)
    if not (partial / "config.json").exists():
        raise FileNotFoundError(f"{model} has no config.json: it is not a checkpoint that can be loaded")
    os.rename(partial, folder)
    return True


def from_hub(model: str, revision: str | None, folder: Path) -> None:
    from huggingface_hub import snapshot_download

    snapshot_download(model, revision=revision, local_dir=folder, allow_patterns=FILES)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--revision")
    args = parser.parse_args(argv)
    fetched = fetch(args.model, args.folder, args.revision, from_hub)
    print(f"{args.model} is in {args.folder}" + ("" if fetched else " already"))
    return 0


if __name__ == "__main__":
    sys.exit(main())

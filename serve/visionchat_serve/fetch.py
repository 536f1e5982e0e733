"""Fetches a model from the Hugging Face hub into a folder; what is there already is not fetched again.

python -m visionchat_serve.fetch Qwen/Qwen3-VL-2B-Instruct /models/qwen [--revision main]

Run by the model's Job, which tells the operator how far it is. The folder appears whole or not at all, so that no
replica loads half a checkpoint.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from fnmatch import fnmatch
from pathlib import Path

from visionchat_serve.config import Settings, load_settings
from visionchat_serve.connection import address
from visionchat_serve.fetch_progress import FetchProgress
from visionchat_serve.redis_link import RedisLink

EVERY = timedelta(seconds=5)  # how often the progress is told
FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]

Download = Callable[[str, str | None, Path], None]


def fetch(model: str, folder: Path, revision: str | None, download: Download) -> bool:
    """False: it was there."""
    if (folder / "config.json").exists():
        return False
    unfinished = partial(folder)
    unfinished.mkdir(parents=True, exist_ok=True)  # what an earlier try has fetched is kept
    download(model, revision, unfinished)
    if not (unfinished / "config.json").exists():
        raise FileNotFoundError(f"{model} has no config.json: it is not a checkpoint that can be loaded")
    os.rename(unfinished, folder)
    return True


def partial(folder: Path) -> Path:
    """Where the files are until they are all there."""
    return folder.with_name(f"{folder.name}.partial")


def from_hub(model: str, revision: str | None, folder: Path) -> None:
    from huggingface_hub import snapshot_download

    snapshot_download(model, revision=revision, local_dir=folder, allow_patterns=FILES)


def size_on_hub(model: str, revision: str | None) -> int:
    """Bytes of all that is fetched."""
    from huggingface_hub import HfApi

    files = HfApi().model_info(model, revision=revision, files_metadata=True).siblings or []
    return sum(f.size or 0 for f in files if any(fnmatch(f.rfilename, pattern) for pattern in FILES))


def size_in(folder: Path) -> int:
    """Bytes that are there, those of unfinished files too; what vanishes meanwhile has been renamed."""
    total = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += file.stat().st_size if file.is_file() else 0
    return total


async def telling(
    work: Callable[[], bool], folder: Path, total: Callable[[], int], settings: Settings, every: timedelta = EVERY
) -> bool:
    """Do the work in a thread, and tell the operator how far it is. Whoever cannot be told is no reason to fail."""
    doing = asyncio.create_task(asyncio.to_thread(work))
    if settings.redis_url is None:
        return await doing
    link, size = RedisLink(address(settings)), 0
    try:
        while not doing.done():
            try:
                size = size or await asyncio.to_thread(total)
                done = await asyncio.to_thread(size_in, partial(folder))
                await FetchProgress(done, size).tell(link, settings.namespace)
            except Exception as error:  # Redis, or what the hub's library raises
                print(f"the progress is not told: {error}", file=sys.stderr)
            await asyncio.wait({doing}, timeout=every.total_seconds())
        return doing.result()
    finally:
        await link.close()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--revision")
    args = parser.parse_args(argv)

    def work() -> bool:
        return fetch(args.model, args.folder, args.revision, from_hub)

    def total() -> int:
        return size_on_hub(args.model, args.revision)

    fetched = asyncio.run(telling(work, args.folder, total, load_settings()))
    print(f"{args.model} is in {args.folder}" + ("" if fetched else " already"))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`visionchat doctor`: looks at this machine, pod or node and at the queue, and says what to change and how.

Exit code 1 when something does not work or can be lost, 0 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from visionchat_serve.config import TINY, Settings, load_settings
from visionchat_serve.connection import address
from visionchat_serve.doctor import Finding, Level, Plan, examine
from visionchat_serve.errors import ConfigError
from visionchat_serve.node_facts import KUBELET, read_node
from visionchat_serve.queue_facts import QueueFacts, read_queue
from visionchat_serve.remedies import Platform

_MARKS = {Level.PROBLEM: "PROBLEM", Level.WARNING: "warning", Level.NOTE: "note", Level.GOOD: "good"}


def add_to(commands: Any) -> None:
    """Add `doctor` to the command line."""
    about = "look at this machine, pod or node and at the queue: what makes it slow or unsafe, and what to change"
    doctor = commands.add_parser("doctor", help=about, description=about)
    doctor.add_argument("--on", choices=[p.value for p in Platform], help="how to change it there only")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.add_argument("--config", type=Path, metavar="YAML", help="settings file")
    doctor.add_argument("--model", help="`tiny` or the folder that will be served")
    doctor.add_argument("--cpus", type=int, help="whole CPUs of a replica")
    doctor.add_argument("--redis", dest="redis_url", metavar="URL", help="the queue's Redis; default: the embedded one")
    doctor.add_argument("--data-dir", type=Path, help="where the embedded Redis keeps its data")
    doctor.add_argument(
        "--kubelet", type=Path, default=KUBELET, metavar="FOLDER", help=f"the node's kubelet (default {KUBELET})"
    )
    doctor.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    flags = {key: value for key, value in vars(args).items() if key in Settings.model_fields}
    settings = load_settings(args.config, flags=flags)
    node = read_node(kubelet=args.kubelet.resolve())
    findings = examine(node, _queue(settings), plan_of(settings))
    platforms = [Platform(args.on)] if args.on else list(Platform)
    print(as_json(findings, platforms) if args.json else as_text(findings, platforms))
    return int(any(finding.level is Level.PROBLEM for finding in findings))


def _queue(settings: Settings) -> QueueFacts | None:
    url = address(settings) if settings.redis_url is not None else _embedded(settings)
    if url is None:
        return None
    try:
        return asyncio.run(read_queue(url))
    except ValueError as error:
        raise ConfigError(f"setting redis_url: {error}") from error


def _embedded(settings: Settings) -> str | None:
    """The embedded Redis' address, if one runs."""
    from visionchat_serve.local import default_data_dir
    from visionchat_serve.redis_server import EmbeddedRedis

    url = EmbeddedRedis(settings.data_dir or default_data_dir()).url
    return url if Path(url.removeprefix("unix://").partition("?")[0]).exists() else None


def plan_of(settings: Settings) -> Plan:
    """What the settings mean for this machine. Raises `ConfigError` when the model is not there."""
    folder = None if settings.model == TINY else Path(settings.model).resolve()
    if folder is not None and not folder.is_dir():
        raise ConfigError(f"there is no model folder at {settings.model}; use `tiny` or a folder with a checkpoint")
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors")) if folder is not None else 0
    return Plan(
        cpus=settings.cpus,
        dtype=settings.dtype,
        weights_bytes=weights,
        cache_bytes=settings.picture_cache_bytes,
        model_folder=None if folder is None else str(folder),
    )


def as_json(findings: Iterable[Finding], platforms: Iterable[Platform]) -> str:
    """A list of {check, level, message, change, how}; `change` is null and `how` empty where nothing is to be done."""
    wanted = list(platforms)
    return json.dumps([_body(finding, wanted) for finding in findings], indent=2)


def _body(finding: Finding, platforms: list[Platform]) -> dict[str, Any]:
    remedy = finding.remedy
    how = {} if remedy is None else {p.value: remedy.how[p] for p in platforms if p in remedy.how}
    body = {"check": finding.check, "level": finding.level.value, "message": finding.message}
    return body | {"change": None if remedy is None else remedy.change, "how": how}


def as_text(findings: Iterable[Finding], platforms: Iterable[Platform]) -> str:
    """The worst first; a remedy that several findings share is told once."""
    wanted, told, lines = list(platforms), set(), []
    for finding in sorted(findings, key=lambda f: list(Level).index(f.level)):
        lines.append(f"{_MARKS[finding.level]:8} {finding.check}: {finding.message}")
        remedy = finding.remedy
        if remedy is None or remedy.change in told:
            continue
        told.add(remedy.change)
        lines.append(f"{'':8} -> {remedy.change}")
        lines += [f"{'':11} {p.value}: {remedy.how[p]}" for p in wanted if p in remedy.how]
    return "\n".join(lines)

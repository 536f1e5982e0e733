"""`visionchat queue`: look at the queue and put it right, from a terminal or a script (`--json`).

Speaks to Redis through the broker; no server is needed. Without `--redis` it is the embedded one of this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from visionchat_serve.broker import Broker
from visionchat_serve.config import Settings, load_settings
from visionchat_serve.messages import JobView

Action = Callable[
    [Broker, argparse.Namespace], Awaitable[Any]
]  # the queue and the arguments -> what is printed as JSON


def add_to(commands: Any) -> None:
    """Add `queue` with its own commands to the command line."""
    queue = commands.add_parser("queue", help="look at the queue, replay or drop dead jobs, cancel jobs")
    actions = queue.add_subparsers(required=True, metavar="ACTION")
    _add(actions, "stats", "how many jobs wait or are being answered, and who answers", _stats, _print_stats)
    dead = _add(actions, "dead", "jobs that no replica survived, latest first", _dead, _print_dead)
    dead.add_argument("--limit", type=_positive, default=100, help="at most this many (default 100)")
    replay = _add(actions, "replay", "ask dead jobs anew", _replay, _print_replayed)
    replay.add_argument("ids", nargs="+", metavar="ID", help="jobs on the dead list")
    _add(actions, "purge", "forget all dead jobs and their pictures", _purge, _print_purged)
    cancel = _add(actions, "cancel", "stop jobs, for all who wait for them", _cancel, _print_cancelled)
    cancel.add_argument("ids", nargs="+", metavar="ID")


def _add(actions: Any, name: str, about: str, act: Action, show: Callable[[Any], None]) -> Any:
    parser = actions.add_parser(name, help=about)
    parser.add_argument("--redis", dest="redis_url", metavar="URL", help="the queue's Redis; default: the embedded one")
    parser.add_argument("--namespace", help="which queue in that Redis (default: default)")
    parser.add_argument("--config", type=Path, metavar="YAML", help="settings file")
    parser.add_argument("--data-dir", type=Path, help="where the embedded Redis keeps its data")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=lambda args: _run(args, act, show))
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _run(args: argparse.Namespace, act: Action, show: Callable[[Any], None]) -> int:
    flags = {key: value for key, value in vars(args).items() if key in Settings.model_fields}
    result = asyncio.run(_with_broker(_with_redis(load_settings(args.config, flags=flags)), act, args))
    print(json.dumps(result, indent=2)) if args.json else show(result)
    return 0


def _with_redis(settings: Settings) -> Settings:
    if settings.redis_url is not None:
        return settings
    from visionchat_serve.local import default_data_dir
    from visionchat_serve.redis_server import EmbeddedRedis

    return settings.model_copy(update={"redis_url": EmbeddedRedis(settings.data_dir or default_data_dir()).url})


async def _with_broker(settings: Settings, act: Action, args: argparse.Namespace) -> Any:
    from visionchat_serve.connection import connect

    broker = connect(settings)
    try:
        return await act(broker, args)
    finally:
        await broker.close()


async def _stats(broker: Broker, _: argparse.Namespace) -> dict[str, Any]:
    load, reports = await broker.load(), await broker.reports()
    dead = len(await broker.dead(broker.policy.max_dead))
    own = {"backlog": load.backlog, "estimated_seconds": round(load.seconds, 1), "dead": dead}
    return asdict(load) | own | {"replicas": [asdict(report) for report in reports]}


def _print_stats(stats: dict[str, Any]) -> None:
    for key in ("waiting", "leased", "delayed", "dead"):
        print(f"{key:8} {stats[key]}")
    measured = f"about {stats['estimated_seconds']} s of work" if stats["pace"] else "no speed was measured yet"
    print(f"backlog  {stats['backlog']} ({measured}; the oldest waits {stats['oldest']:.0f} s)")
    for r in stats["replicas"]:
        print(f"replica  {r['replica']}: {r['model']} by {r['engine']}, {r['threads']} threads")


async def _dead(broker: Broker, args: argparse.Namespace) -> list[dict[str, Any]]:
    return [_of_dead(view) for view in await broker.dead(args.limit)]


def _of_dead(view: JobView) -> dict[str, Any]:
    ended = datetime.fromtimestamp(view.ended_at or 0, UTC).isoformat(timespec="seconds")
    reason = view.finish.message if view.finish is not None else None
    return {"id": view.id, "owner": view.owner, "attempts": view.attempt, "ended_at": ended, "reason": reason}


def _print_dead(jobs: list[dict[str, Any]]) -> None:
    for job in jobs:
        print(f"{job['id']}  {job['ended_at']}  {job['reason']}")
    if not jobs:
        print("no dead jobs")


async def _replay(broker: Broker, args: argparse.Namespace) -> list[dict[str, str]]:
    return [{"id": job_id, "new_id": await broker.replay(job_id)} for job_id in args.ids]


def _print_replayed(jobs: list[dict[str, str]]) -> None:
    for job in jobs:
        print(f"{job['id']} is asked anew as {job['new_id']}")


async def _purge(broker: Broker, _: argparse.Namespace) -> dict[str, int]:
    return {"purged": await broker.purge_dead()}


def _print_purged(result: dict[str, int]) -> None:
    print(f"{result['purged']} dead jobs forgotten")


async def _cancel(broker: Broker, args: argparse.Namespace) -> list[dict[str, Any]]:
    return [{"id": job_id, "cancelled": await broker.cancel(job_id)} for job_id in args.ids]


def _print_cancelled(jobs: list[dict[str, Any]]) -> None:
    for job in jobs:
        print(f"{job['id']} {'is being stopped' if job['cancelled'] else 'is unknown or has ended already'}")

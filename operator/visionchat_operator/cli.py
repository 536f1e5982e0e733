"""The command `visionchat-operator`.

run    look after the VisionChats of a cluster; outside of it with --kubeconfig
crd    print the CustomResourceDefinition
check  validate VisionChat resources in files, without a cluster
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from visionchat_operator.api import API_VERSION, KIND, SecretKey, VisionChatSpec
from visionchat_operator.crd import custom_resource_definition, spec_schema
from visionchat_operator.environment import Defaults

OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def main(argv: Sequence[str] | None = None) -> int:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("visionchat-operator", description=__doc__, formatter_class=formatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_run(commands.add_parser("run", help="look after the VisionChats of a cluster"))
    commands.add_parser("crd", help="print the CustomResourceDefinition").set_defaults(run=_crd)
    check = commands.add_parser("check", help="validate VisionChat resources without a cluster")
    check.add_argument("files", nargs="+", type=Path)
    check.set_defaults(run=_check)
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0].startswith("--") and words[0] != "--help":
        words.insert(0, "run")  # `visionchat-operator --kubeconfig FILE` is enough
    args = parser.parse_args(words)
    code: int = args.run(args)
    return code


def _add_run(run: argparse.ArgumentParser) -> None:
    defaults = Defaults()
    run.add_argument("--kubeconfig", type=Path, metavar="FILE", help="default: the pod's service account")
    run.add_argument("--namespace", help="look after this namespace only (default: all)")
    run.add_argument("--lease-namespace", help="namespace of the leader's Lease (default: the pod's own)")
    run.add_argument("--host", default="0.0.0.0", help="where /healthz and /metrics listen (default %(default)s)")  # noqa: S104
    run.add_argument("--port", type=int, default=8080, help="and on which port (default %(default)s)")
    image = _env("DEFAULT_IMAGE", defaults.image)
    run.add_argument("--default-image", default=image, help="image of VisionChats that name none (default %(default)s)")
    redis = _env("REDIS_URL", defaults.redis_url)
    run.add_argument("--redis-url", default=redis, help="Redis of VisionChats that name none")
    run.add_argument(
        "--redis-secret",
        metavar="NAME[/KEY]",
        type=_secret_key,
        default=_env("REDIS_SECRET", "") or None,
        help="instead: a Secret with the address, password included, in each VisionChat's namespace (default key url)",
    )
    run.add_argument("--head-url", help="where Ray heads are reached, with {name} and {namespace}")
    run.set_defaults(run=_run)


def _secret_key(text: str) -> SecretKey:
    name, _, key = text.partition("/")
    return SecretKey(name=name, key=key or None)


def _env(name: str, default: str) -> str:
    return os.environ.get(f"VISIONCHAT_OPERATOR_{name}", default)


def _run(args: argparse.Namespace) -> int:
    from kubernetes.aio.config import ConfigException

    from visionchat_operator.plan import PlanSettings
    from visionchat_operator.run import HEAD_URL, Options, run

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    for noisy in ("kopf", "httpx", "visionchat_serve.redis_link"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    own = args.lease_namespace or _own_namespace(args)
    options = Options(
        kubeconfig=args.kubeconfig,
        namespace=args.namespace,
        lease_namespace=own,
        host=args.host,
        port=args.port,
        head_url=args.head_url or HEAD_URL,
        plan=PlanSettings(Defaults(args.default_image, args.redis_url, args.redis_secret), own),
    )
    try:
        asyncio.run(run(options))
    except ConfigException as error:
        where = args.kubeconfig or "the pod's service account (outside of a cluster give --kubeconfig FILE)"
        print(f"visionchat-operator: no access to a cluster by {where}: {error}", file=sys.stderr)
        return 2
    return 0


def _own_namespace(args: argparse.Namespace) -> str:
    if args.kubeconfig is None and OWN_NAMESPACE.exists():
        return OWN_NAMESPACE.read_text(encoding="utf-8").strip()
    namespace: str = args.namespace or "default"
    return namespace


def _crd(_: argparse.Namespace) -> int:
    yaml.safe_dump(custom_resource_definition(), sys.stdout, sort_keys=False)
    return 0


def _check(args: argparse.Namespace) -> int:
    code = 0
    for file in args.files:
        faults = list(faults_in(file))
        for fault in faults:
            print(fault, file=sys.stderr)
        if faults:
            code = 1
        else:
            print(f"{file}: ok")
    return code


def faults_in(file: Path) -> Iterator[str]:
    """What is wrong with the file's VisionChats, one line each; other kinds of resource are left alone."""
    try:
        documents = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        yield f"{file}: {error}"
        return
    ours = [d for d in documents if isinstance(d, dict) and d.get("kind") == KIND]
    if not ours:
        yield f"{file}: holds no {KIND}"
    for document in ours:
        yield from (f"{file}: {fault}" for fault in _faults(document))


def _faults(document: dict[str, Any]) -> Iterator[str]:
    if document.get("apiVersion") != API_VERSION:
        yield f"apiVersion: must be {API_VERSION}"
    try:
        VisionChatSpec.model_validate(document.get("spec") or {})
    except ValidationError as error:
        for one in error.errors():
            place = ".".join(("spec", *(str(part) for part in one["loc"])))
            if one["type"] == "extra_forbidden":
                yield f"{place}: there is no such field{_nearest(one['loc'])}"
            else:
                yield f"{place}: {one['msg'].removeprefix('Value error, ')}"


def _nearest(place: Sequence[int | str]) -> str:
    """The field that may have been meant by the last word of `place`, as a question."""
    schema = spec_schema()
    for word in place[:-1]:
        schema = schema["items"] if isinstance(word, int) else schema["properties"][word]
    nearest = get_close_matches(str(place[-1]), schema["properties"], 1)
    return f"; did you mean {nearest[0]}?" if nearest else ""


if __name__ == "__main__":
    sys.exit(main())

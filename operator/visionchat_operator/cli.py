"""The command `visionchat-operator`: `crd` prints the CRD, `check` validates VisionChat resources in files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from visionchat_operator.api import GROUP, KIND, VERSION, VisionChatSpec
from visionchat_operator.crd import custom_resource_definition


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("visionchat-operator", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    commands.add_parser("crd", help="print the CustomResourceDefinition").set_defaults(run=_crd)
    check = commands.add_parser("check", help="validate VisionChat resources without a cluster")
    check.add_argument("files", nargs="+", type=Path)
    check.set_defaults(run=_check)
    args = parser.parse_args(argv)
    code: int = args.run(args)
    return code


def _crd(_: argparse.Namespace) -> int:
    yaml.safe_dump(custom_resource_definition(), sys.stdout, sort_keys=False)
    return 0


def _check(args: argparse.Namespace) -> int:
    faults = [fault for file in args.files for fault in faults_in(file)]
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


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
    if document.get("apiVersion") != f"{GROUP}/{VERSION}":
        yield f"apiVersion: must be {GROUP}/{VERSION}"
    try:
        VisionChatSpec.model_validate(document.get("spec") or {})
    except ValidationError as error:
        for one in error.errors():
            place = ".".join(("spec", *(str(part) for part in one["loc"])))
            yield f"{place}: {one['msg'].removeprefix('Value error, ')}"


if __name__ == "__main__":
    sys.exit(main())

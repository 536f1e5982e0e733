"""Write the files that are made from `api`, or with `--check` say which of them are out of date.

python -m visionchat_operator.generate [--check]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import yaml

from visionchat_operator.crd import custom_resource_definition

ROOT = Path(__file__).resolve().parents[2]
HEADER = "# Generated from operator/visionchat_operator/api.py by `make generate`. Do not edit.\n"


def generated_files() -> dict[Path, str]:
    """Path below the repository's root -> content."""
    crd = yaml.safe_dump(custom_resource_definition(), sort_keys=False, width=110)
    return {Path("manifests/crd.yaml"): HEADER + crd}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail when a file is out of date")
    check = parser.parse_args().check
    stale = [path for path, text in generated_files().items() if _differs(ROOT / path, text)]
    for path in stale:
        print(f"out of date: {path} (run `make generate`)" if check else f"wrote {path}")
        if not check:
            (ROOT / path).write_text(generated_files()[path], encoding="utf-8")
    return 1 if check and stale else 0


def _differs(path: Path, text: str) -> bool:
    return not path.exists() or path.read_text(encoding="utf-8") != text


if __name__ == "__main__":
    sys.exit(main())

"""Write what is made from something else, or with `--check` say what is out of date.

The CRD and the table of its fields come from `api`; the tables of settings, of the tiny model's skills and of the
simulated scaling from the data plane's `Settings`, from the evaluation of the tiny model and from `make sim`, so that
no number in them is typed by hand.

python -m visionchat_operator.generate [--check]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from visionchat_operator.crd import custom_resource_definition, spec_schema
from visionchat_serve.config import ENV_PREFIX, Settings
from visionchat_serve.tiny import CHECKPOINT

ROOT = Path(__file__).resolve().parents[2]
HEADER = "# Generated from operator/visionchat_operator/api.py by `make generate`. Do not edit.\n"


def generated_files() -> dict[Path, str]:
    """Path below the repository's root -> content."""
    simulation = (ROOT / "tests" / "sim" / "results.md").read_text(encoding="utf-8")
    evaluation = (CHECKPOINT.parent / "evaluation.md").read_text(encoding="utf-8")
    crd = yaml.safe_dump(custom_resource_definition(), sort_keys=False, width=110)
    return {
        Path("manifests/crd.yaml"): HEADER + crd,
        **_page("README.md", evaluation=evaluation),
        **_page("serve/README.md", settings=settings_table()),
        **_page("operator/README.md", resource=resource_table(), simulation=simulation),
    }


def _page(name: str, **sections: str) -> dict[Path, str]:
    """The page as it should be, with these sections."""
    text = (ROOT / name).read_text(encoding="utf-8")
    for section, content in sections.items():
        text = _with_section(text, section, content)
    return {Path(name): text}


def settings_table() -> str:
    """All settings of the data plane as a Markdown table."""
    lines = [f"| key (environment: `{ENV_PREFIX}<KEY>`) | default | meaning |", "|---|---|---|"]
    for key, field in Settings.model_fields.items():
        default = "" if field.default is None else f"`{field.default}`"
        lines.append(f"| `{key}` | {default} | {field.description} |")
    return "\n".join(lines)


def resource_table() -> str:
    """All fields of a VisionChat's spec as a Markdown table."""
    return "\n".join(["| field of `spec` | default | meaning |", "|---|---|---|", *_rows(spec_schema(), "")])


def _rows(schema: dict[str, Any], prefix: str) -> Iterator[str]:
    for name, field in schema["properties"].items():
        if field.get("properties"):
            yield from _rows(field, f"{prefix}{name}.")
            continue
        default = "" if field.get("default") in (None, {}, []) else f"`{json.dumps(field['default'])}`"
        choices = f" One of {', '.join(f'`{choice}`' for choice in field['enum'])}." if "enum" in field else ""
        yield f"| `{prefix}{name}` | {default} | {field['description']}{choices} |"


def _with_section(text: str, name: str, content: str) -> str:
    """`text` with what stands between `<!-- name -->` and `<!-- /name -->` replaced."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"the page has no section {begin.strip()} … {end}")
    return f"{before}{begin}{content.strip()}\n{end}{after}"


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

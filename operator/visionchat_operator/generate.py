"""Write what is made from something else, or with `--check` say what is out of date.

The CRD, the table of its fields and the chart's values schema come from `api`, the roles from `rbac`; the tables of
settings, of the tiny model's skills and of the simulated scaling from the data plane's `Settings`, from the evaluation
of the tiny model and from `make sim`, so that no number in them is typed by hand. `manifests/install.yaml` is made from
the chart by helm (`tests/chart/install_manifest.py`).

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

from visionchat_operator import chart, rbac
from visionchat_operator.crd import custom_resource_definition, spec_schema
from visionchat_serve.config import ENV_PREFIX, Settings
from visionchat_serve.tiny import CHECKPOINT

ROOT = Path(__file__).resolve().parents[2]
HEADER = "# Generated from operator/visionchat_operator/{}.py by `make generate`. Do not edit.\n"
CHART = Path("charts/visionchat")


def generated_files() -> dict[Path, str]:
    """Path below the repository's root -> content."""
    simulation = (ROOT / "tests" / "sim" / "results.md").read_text(encoding="utf-8")
    evaluation = (CHECKPOINT.parent / "evaluation.md").read_text(encoding="utf-8")
    crd = HEADER.format("api") + _yaml(custom_resource_definition())
    roles = HEADER.format("rbac") + "---\n".join(map(_yaml, rbac.documents()))
    return {
        Path("manifests/crd.yaml"): crd,
        Path("manifests/rbac.yaml"): roles,
        **_chart(crd),
        **_page("README.md", evaluation=evaluation),
        **_page("serve/README.md", settings=settings_table()),
        **_page("operator/README.md", resource=resource_table(), simulation=simulation),
    }


def _chart(crd: str) -> dict[Path, str]:
    source, values = (yaml.safe_load((ROOT / CHART / f"values{kind}.yaml").read_text()) for kind in (".schema", ""))
    return {
        CHART / "files" / "crd.yaml": crd,
        CHART / "files" / "roles.yaml": HEADER.format("rbac") + _yaml(chart.rules()),
        CHART / "values.schema.json": json.dumps(chart.values_schema(source), indent=1) + "\n",
        **_page(str(CHART / "README.md"), values=chart.values_table(source, values)),
    }


def _yaml(value: Any) -> str:
    return yaml.dump(value, Dumper=_Plain, sort_keys=False, width=110)


class _Plain(yaml.SafeDumper):
    """Without aliases: what is said twice is written twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


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

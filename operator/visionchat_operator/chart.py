"""What the Helm chart takes from the operator: values schema, table of values, roles, CRD. Pure; `generate` calls it.

The schema's source, `values.schema.yaml`, is JSON Schema in short form: objects are closed unless they say
`closed: false`, and `$ref: NAME` is a definition there, or `VisionChatSpec`, which comes from the API models.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from visionchat_operator import rbac
from visionchat_operator.crd import spec_schema

Schema = dict[str, Any]
# Values of other charts that somebody may try here; the chart's templates say what to write instead.
FROM_ELSEWHERE = ("image", "installCRDs", "replicaCount")


def values_schema(source: Schema) -> Schema:
    """JSON Schema (draft 7) of the chart's values."""
    definitions = {name: _node(node) for name, node in source["definitions"].items()}
    definitions["VisionChatSpec"] = _from_structural(spec_schema())
    body = _node({key: value for key, value in source.items() if key != "definitions"})
    body["properties"] |= dict.fromkeys(FROM_ELSEWHERE, True)
    body["properties"]["redis"]["properties"]["auth"] = True
    return {"$schema": "http://json-schema.org/draft-07/schema#", **body, "definitions": definitions}


def _node(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    if "$ref" in node:  # what stands beside a reference is ignored in draft 7
        reference = {"$ref": f"#/definitions/{node['$ref']}"}
        rest = {key: value for key, value in node.items() if key != "$ref"}
        return {**rest, "allOf": [reference]} if rest else reference
    made = {key: value for key, value in node.items() if key != "closed"}
    if "properties" in node:
        made["properties"] = {name: _node(value) for name, value in node["properties"].items()}
        made["additionalProperties"] = False
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            made[key] = _node(node[key])
    return made


def _from_structural(node: Any) -> Any:
    """Of a CRD's schema what JSON Schema knows; its objects are closed. Rules in CEL are the API server's to check."""
    if isinstance(node, list):
        return [_from_structural(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {key: value for key, value in node.items() if not key.startswith("x-kubernetes-") and key != "default"}
    made = {key: value if key == "properties" else _from_structural(value) for key, value in kept.items()}
    if "properties" in node:
        made["properties"] = {name: _from_structural(value) for name, value in node["properties"].items()}
        made["additionalProperties"] = False
    return made


def values_table(source: Schema, values: dict[str, Any]) -> str:
    """All values as a Markdown table, in the order of the schema's source."""
    lines = ["| value | default | meaning |", "|---|---|---|"]
    for path, node in _leaves(source, source["definitions"], ""):
        default = _at(values, path)
        shown = "" if default in (None, "", {}, []) else f"`{json.dumps(default)}`"
        choices = f" One of {', '.join(f'`{choice}`' for choice in node['enum'])}." if "enum" in node else ""
        lines.append(f"| `{path}` | {shown} | {node['description']}{choices} |")
    return "\n".join(lines)


def _leaves(node: Schema, definitions: Schema, prefix: str) -> Iterator[tuple[str, Schema]]:
    for name, field in node["properties"].items():
        whole = {**definitions.get(field.get("$ref"), {}), **field}
        if "properties" in whole:
            yield from _leaves(whole, definitions, f"{prefix}{name}.")
        else:
            yield prefix + name, whole


def _at(values: Any, path: str) -> Any:
    for word in path.split("."):
        values = values.get(word) if isinstance(values, dict) else None
    return values


def rules() -> dict[str, rbac.Rules]:
    """What the chart's roles hold."""
    return {"namespaced": rbac.namespaced(), "cluster": rbac.cluster(), "lease": rbac.lease()}

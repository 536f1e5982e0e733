"""The CustomResourceDefinition, made from the models in `api`. Pure: models in, plain dict out."""

from __future__ import annotations

from typing import Any

from visionchat_operator.api import GROUP, KIND, PLURAL, RULES, SHORT, SINGULAR, VERSION, VisionChatSpec

_STATUS = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_COLUMNS = (
    ("Model", "string", ".spec.model.name"),
    ("Min", "integer", ".spec.replicas.min"),
    ("Max", "integer", ".spec.replicas.max"),
    ("Pinning", "string", ".spec.pinning.mode"),
    ("Age", "date", ".metadata.creationTimestamp"),
)


def custom_resource_definition() -> dict[str, Any]:
    """`apiextensions.k8s.io/v1` CustomResourceDefinition of VisionChat."""
    names = {
        "kind": KIND,
        "listKind": f"{KIND}List",
        "plural": PLURAL,
        "singular": SINGULAR,
        "shortNames": [SHORT],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [_version()]},
    }


def _version() -> dict[str, Any]:
    schema = {
        "type": "object",
        "description": "A vision chat service on CPU nodes.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec_schema(),
            "status": _STATUS,
        },
    }
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [{"name": n, "type": t, "jsonPath": p} for n, t, p in _COLUMNS],
        "schema": {"openAPIV3Schema": schema},
    }


def spec_schema() -> dict[str, Any]:
    """The spec as a structural schema: no references, defaults filled in, CEL rules attached."""
    whole = VisionChatSpec.model_json_schema(by_alias=True)
    schema = _structural(whole, whole.get("$defs", {}))
    defaults = VisionChatSpec().model_dump(mode="json", by_alias=True, exclude_none=True)
    for name, value in defaults.items():
        if isinstance(value, dict):
            schema["properties"][name]["default"] = {}  # lets the fields' own defaults fill it
    for path, rule, message in RULES:
        schema["properties"][path].setdefault("x-kubernetes-validations", []).append({"rule": rule, "message": message})
    return schema


def _structural(node: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Resolve `$ref`, turn `X | None` into an optional X, drop what structural schemas do not know."""
    if "$ref" in node:
        target = definitions[node["$ref"].rsplit("/", 1)[1]]
        return _structural({**target, **{k: v for k, v in node.items() if k != "$ref"}}, definitions)
    if "anyOf" in node:
        (real,) = [option for option in node["anyOf"] if option.get("type") != "null"]
        rest = {k: v for k, v in node.items() if k not in ("anyOf", "default")}
        return _structural({**real, **rest}, definitions)
    dropped = ("title", "$defs", "additionalProperties")
    clean = {k: v for k, v in node.items() if k not in dropped}
    if "properties" in clean:
        clean["properties"] = {k: _structural(v, definitions) for k, v in clean["properties"].items()}
    return clean

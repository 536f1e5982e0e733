"""The CustomResourceDefinition, made from the models in `api` and `status_api`. Pure: models in, plain dict out."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from pydantic import BaseModel

from visionchat_operator.api import GROUP, KIND, PLURAL, SHORT, SINGULAR, VERSION, Model, Rule, VisionChatSpec
from visionchat_operator.status_api import VisionChatStatus

MAX_NAME = 40  # children are called NAME-something, and a Service's name has 63 characters at most

_COLUMNS = (
    ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status'),
    ("Replicas", "integer", ".status.replicas.ready"),
    ("Pinned", "integer", ".status.replicas.pinned"),
    ("Queue", "integer", ".status.queue.depth"),
    ("Mode", "string", ".status.mode"),
    ("URL", "string", ".status.url"),
    ("Age", "date", ".metadata.creationTimestamp"),
)
_SCALE = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas.current",
    "labelSelectorPath": ".status.selector",
}
_NAME_RULES = (
    {
        "rule": f"size(self.metadata.name) <= {MAX_NAME}",
        "message": f"the name of a VisionChat has {MAX_NAME} characters at most, as its Services are named after it",
    },
    {
        "rule": "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "message": "the name of a VisionChat begins with a letter and has no dots, as its Services are named after it",
    },
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
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": {**spec_schema(), "default": {}},
            "status": status_schema(),
        },
        "x-kubernetes-validations": list(_NAME_RULES),
    }
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}, "scale": _SCALE},
        "additionalPrinterColumns": [{"name": n, "type": t, "jsonPath": p} for n, t, p in _COLUMNS],
        "schema": {"openAPIV3Schema": schema},
    }


def spec_schema() -> dict[str, Any]:
    """The spec as a structural schema: no references, defaults filled in, CEL rules attached."""
    return _Schema(VisionChatSpec).whole()


def status_schema() -> dict[str, Any]:
    """The status likewise."""
    schema = _Schema(VisionChatStatus).whole()
    schema["properties"]["conditions"] |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    schema["properties"]["replicaList"] |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["pod"]}
    bare: dict[str, Any] = _without_defaults(schema)
    return bare  # the operator writes what it knows


class _Schema:
    """A pydantic model's JSON schema, turned into what Kubernetes calls structural."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._model = model
        self._json = model.model_json_schema(by_alias=True)
        self._rules = _rules_of(Model)

    def whole(self) -> dict[str, Any]:
        schema: dict[str, Any] = deepcopy(self._node(self._json, self._model.__name__))
        return schema  # no object is in it twice: YAML would write aliases

    def _node(self, node: dict[str, Any], name: str = "") -> dict[str, Any]:
        if "$ref" in node:
            name = node["$ref"].rsplit("/", 1)[1]
            rest = {k: v for k, v in node.items() if k != "$ref"}
            return self._node({**self._json["$defs"][name], **rest}, name)
        if "anyOf" in node:  # `X | None` is an optional X
            (real,) = [option for option in node["anyOf"] if option.get("type") != "null"]
            rest = {k: v for k, v in node.items() if k not in ("anyOf", "default")}
            return self._node({**real, **rest})
        return self._plain(node, name)

    def _plain(self, node: dict[str, Any], name: str) -> dict[str, Any]:
        clean = {k: v for k, v in node.items() if k not in ("title", "$defs", "additionalProperties")}
        if "const" in clean:
            clean["enum"] = [clean.pop("const")]
        if "properties" in node:
            clean["properties"] = {k: self._node(v) for k, v in node["properties"].items()}
            if "required" not in clean:
                fields = clean["properties"].items()  # in full: the API server checks rules on a default as it is
                clean.setdefault("default", {k: field["default"] for k, field in fields if "default" in field})
        elif clean.get("type") == "object":
            clean |= _map(node.get("additionalProperties", True))
        if "items" in clean:
            clean["items"] = self._node(clean["items"])
            clean["items"].pop("default", None)
        if rules := self._rules.get(name):
            clean["x-kubernetes-validations"] = [{"rule": rule.cel, "message": rule.message} for rule in rules]
        return clean


def _map(values: Any) -> dict[str, Any]:
    return {"additionalProperties": values} if isinstance(values, dict) else _FREE


_FREE = {"x-kubernetes-preserve-unknown-fields": True}


def _rules_of(base: type[Model]) -> dict[str, tuple[Rule, ...]]:
    found = {base.__name__: base.rules} if base.rules else {}
    for sub in base.__subclasses__():
        found |= _rules_of(sub)
    return found


def _without_defaults(node: Any) -> Any:
    if isinstance(node, dict):
        return {k: _without_defaults(v) for k, v in node.items() if k != "default"}
    return [_without_defaults(item) for item in node] if isinstance(node, list) else node

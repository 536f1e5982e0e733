"""The VisionChat resource's schema and the operator's command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from visionchat_operator.cli import main
from visionchat_operator.crd import custom_resource_definition, spec_schema
from visionchat_operator.generate import ROOT, generated_files

GOOD = """
apiVersion: visionchat.dev/v1alpha1
kind: VisionChat
metadata: {name: demo}
spec:
  cpusPerReplica: 4
  memoryPerReplica: 6Gi
  scaling: {minReplicas: 0, maxReplicas: 3}
  pinning: {mode: QueueDepth}
"""


def nodes(schema: Any) -> list[dict[str, Any]]:
    found = [schema] if isinstance(schema, dict) else []
    children = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else []
    return found + [node for child in children for node in nodes(child)]


def test_the_schema_is_structural() -> None:
    for node in nodes(spec_schema()):
        assert not {"$ref", "anyOf", "allOf", "$defs", "title"} & node.keys()


def test_every_field_of_the_spec_says_what_it_is() -> None:
    for node in nodes(spec_schema()):
        for field in node.get("properties", {}).values():
            assert field.get("description")


def test_names() -> None:
    crd = custom_resource_definition()
    assert crd["metadata"]["name"] == "visionchats.visionchat.dev"
    assert crd["spec"]["names"]["shortNames"] == ["vchat"]


def test_generated_files_are_up_to_date() -> None:
    for path, text in generated_files().items():
        assert (ROOT / path).read_text() == text, f"{path} is out of date: run `make generate`"


def test_check_accepts_a_good_resource(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.yaml").write_text(GOOD)
    assert main(["check", str(tmp_path / "a.yaml")]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/a.yaml: ok\n"


def test_run_without_a_cluster_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--kubeconfig", str(tmp_path / "nosuch")]) == 2
    assert f"no access to a cluster by {tmp_path}/nosuch" in capsys.readouterr().err
    assert main(["run"]) == 2
    assert "give --kubeconfig" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("axReplicas: 3", "axReplicas: 0"), "spec.scaling.maxReplicas"),
        (("inReplicas: 0", "inReplicas: 9"), "scaling.minReplicas must not be over scaling.maxReplicas"),
        (("cpusPerReplica: 4", "cpusPerReplica: 1.5"), "spec.cpusPerReplica"),
        (("6Gi", "lots"), "spec.memoryPerReplica"),
        (("QueueDepth", "Sometimes"), "spec.pinning.mode"),
        (("cpusPerReplica", "cpus"), "spec.cpus"),
        (
            ("cpusPerReplica", "cpusPerReplca"),
            "spec.cpusPerReplca: there is no such field; did you mean cpusPerReplica?",
        ),
        (("maxReplicas", "maxReplcas"), "spec.scaling.maxReplcas: there is no such field; did you mean maxReplicas?"),
        (("v1alpha1", "v9"), "apiVersion"),
        (("kind: VisionChat", "kind: Pod"), "holds no VisionChat"),
        (("spec:", "spec: ["), "a.yaml"),
    ],
)
def test_check_names_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], says: str
) -> None:
    (tmp_path / "a.yaml").write_text(GOOD.replace(*change))
    assert main(["check", str(tmp_path / "a.yaml")]) == 1
    assert says in capsys.readouterr().err

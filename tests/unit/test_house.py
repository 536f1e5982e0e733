"""The rules that keep the house standing."""

from __future__ import annotations

import operator
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_our_folder_operator_never_shadows_the_standard_library() -> None:
    """With an `__init__.py` in operator/, an interpreter started in the root would import ours and break."""
    assert not (ROOT / "operator" / "__init__.py").exists()
    assert Path(operator.__file__).parent == Path(subprocess.__file__).parent
    code = "import operator, collections, enum; print(operator.__file__)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not ran.stdout.startswith(str(ROOT / "operator"))


def test_operator_and_serve_hold_only_packages_and_a_dockerfile() -> None:
    for folder, package in (("operator", "visionchat_operator"), ("serve", "visionchat_serve")):
        names = {path.name for path in (ROOT / folder).iterdir()} - {"__pycache__", "Dockerfile"}
        assert names == {package}


def test_importing_the_gateway_imports_neither_torch_nor_ray() -> None:
    code = "import sys, visionchat_serve.gateway; print([m for m in ('torch', 'ray', 'transformers') if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_the_command_line_starts_light() -> None:
    code = "import sys, visionchat_serve.cli; print([m for m in ('torch', 'ray', 'numpy', 'fastapi') if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"

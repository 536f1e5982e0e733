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


def test_operator_and_serve_hold_only_packages_a_dockerfile_and_a_page() -> None:
    for folder, package in (("operator", "visionchat_operator"), ("serve", "visionchat_serve")):
        names = {path.name for path in (ROOT / folder).iterdir()} - {"__pycache__", "Dockerfile", "README.md"}
        assert names == {package}


def loaded_by(module: str, *watched: str) -> list[str]:
    """Which of `watched` a fresh interpreter has loaded after importing `module`."""
    code = f"import sys, {module}; print(*[m for m in {watched!r} if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return ran.stdout.split()


def test_importing_the_gateway_imports_neither_torch_nor_ray() -> None:
    assert loaded_by("visionchat_serve.routes", "torch", "ray", "transformers") == []


def test_the_command_line_starts_light() -> None:
    assert loaded_by("visionchat_serve.cli", "torch", "ray", "numpy", "fastapi") == []


def test_threads_are_limited_before_anything_heavy_is_imported() -> None:
    assert loaded_by("visionchat_serve.cpu", "numpy", "torch", "ray", "pydantic") == []

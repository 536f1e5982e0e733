"""Keys from a file: who is who, and how they change without a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from visionchat_serve.api_keys import ApiKeys, new_key, parse_keys
from visionchat_serve.errors import ConfigError


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_key_belongs_to_its_name_and_the_file_does_not_hold_it(tmp_path: Path) -> None:
    (ana, ana_line), (bo, bo_line) = new_key("ana"), new_key("bo")
    file = tmp_path / "keys"
    file.write_text(f"# the team\n{ana_line}  # since March\n\n{bo_line}\n")
    keys = ApiKeys(file)
    assert (keys.owner(ana), keys.owner(bo)) == ("ana", "bo")
    for wrong in ("", "vc-", ana + "x", ana[:-1], ana.upper(), "ключ", "\ud800"):
        assert keys.owner(wrong) is None
    assert ana not in file.read_text()


def test_keys_come_and_go_without_a_restart(tmp_path: Path) -> None:
    (ana, ana_line), (bo, bo_line) = new_key("ana"), new_key("bo")
    file, clock = tmp_path / "keys", Clock()
    file.write_text(ana_line)
    keys = ApiKeys(file, clock)
    file.write_text(bo_line + "\n")
    assert keys.owner(ana) == "ana"  # the file is looked at once a second, not for every request
    clock.now = 2
    assert (keys.owner(ana), keys.owner(bo)) == (None, "bo")


def test_a_swapped_link_is_noticed(tmp_path: Path) -> None:
    """A Secret that is mounted as a volume changes by swapping a symbolic link."""
    (ana, ana_line), (bo, bo_line) = new_key("ana"), new_key("bo")
    link, clock = tmp_path / "keys", Clock()
    for name, line in (("old", ana_line), ("new", bo_line)):
        (tmp_path / name).write_text(line)
    link.symlink_to("old")
    keys = ApiKeys(link, clock)
    assert keys.owner(ana) == "ana"
    link.unlink()
    link.symlink_to("new")
    clock.now = 2
    assert (keys.owner(ana), keys.owner(bo)) == (None, "bo")


def test_a_broken_file_locks_nobody_out(tmp_path: Path) -> None:
    ana, line = new_key("ana")
    file, clock = tmp_path / "keys", Clock()
    file.write_text(line)
    keys = ApiKeys(file, clock)
    for content in (b"garbage\n", b"\xff\xfe", None):
        file.unlink() if content is None else file.write_bytes(content)
        clock.now += 2
        assert keys.owner(ana) == "ana"


@pytest.mark.parametrize("line", ["ana", "ana " + "g" * 64, "a b " + "0" * 64, "ana " + "0" * 63])
def test_a_wrong_line_is_named(line: str) -> None:
    with pytest.raises(ConfigError, match="line 2"):
        parse_keys(f"# comment\n{line}\n")


def test_wrong_names_and_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name"):
        new_key("two words")
    with pytest.raises(ConfigError, match="cannot read"):
        ApiKeys(tmp_path / "none")

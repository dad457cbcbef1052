from __future__ import annotations

from pathlib import Path

from opendg.deploy.recognizer import find_images


def test_images_behind_linked_folders_are_found_once(tmp_path: Path) -> None:
    """As in training: a folder of links to the sites' folders is a way to lay them out."""
    site = tmp_path / "site"
    site.mkdir()
    for name in ("1.jpg", "2.GIF", "notes.txt", ".hidden.png"):
        (site / name).touch()
    (site / "back").symlink_to(tmp_path)
    asked = tmp_path / "asked"
    asked.mkdir()
    (asked / "north").symlink_to(site)
    found = [str(path.relative_to(asked)) for path in find_images([asked])]
    assert [name for name in found if "back" not in name] == ["north/1.jpg", "north/2.GIF"]
    assert all(name.count("back") < 2 for name in found)

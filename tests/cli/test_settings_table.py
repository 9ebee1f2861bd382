"""`python -m cli.settings_table`."""

import sys
from pathlib import Path

import pytest

from cli import settings_table
from common.settings import Settings

MARKED = "# Title\n<!-- settings -->\nold\n<!-- /settings -->\nmore\n"


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(MARKED)
    return path


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["settings_table", *arguments])
    return settings_table.main()


def test_every_setting_has_a_row_and_a_meaning() -> None:
    rows = settings_table.table().splitlines()[2:]
    assert len(rows) == len(Settings.model_fields)
    for row in rows:
        name, _, meaning = (cell.strip() for cell in row.replace("\\|", "").strip("|").split("|"))
        assert name.startswith("`TAILRACE_")
        assert meaning, name


def test_write_then_check(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(monkeypatch, "--check", str(page)) == 1
    assert call(monkeypatch, "--write", str(page)) == 0
    assert page.read_text() == MARKED.replace("old\n", settings_table.table())
    assert call(monkeypatch, "--check", str(page)) == 0


def test_a_page_without_markers() -> None:
    with pytest.raises(ValueError, match="found 0"):
        settings_table.replaced("nothing here\n")

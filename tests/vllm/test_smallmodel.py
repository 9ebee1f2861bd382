"""Preparing the small model: once, whole, and with a clear word when it cannot be done."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from workers.engines import smallmodel


def test_what_exists_is_left_alone(tmp_path: Path) -> None:
    lines: list[str] = []
    assert smallmodel.prepare(tmp_path, lines.append) == tmp_path
    assert list(tmp_path.iterdir()) == []
    assert len(lines) == 1


@pytest.mark.parametrize("missing", [smallmodel.PACKAGE, *smallmodel.CONVERTER_PACKAGES])
def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    monkeypatch.setattr(smallmodel, "find_spec", lambda name: None if name == missing else find_spec(name))
    monkeypatch.setattr("sys.argv", ["smallmodel", str(tmp_path / "model")])
    assert smallmodel.main() == 1
    assert missing.replace("_", "-") in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_failed_conversion_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(gguf: Path, folder: Path, report: object) -> None:
        (folder / "config.json").touch()
        raise OSError("disk full")

    monkeypatch.setattr(smallmodel, "_find_gguf", lambda: tmp_path / "some.gguf")
    monkeypatch.setattr(smallmodel, "_require_converter", lambda: None)
    monkeypatch.setattr(smallmodel, "_convert", half)
    with pytest.raises(OSError, match="disk full"):
        smallmodel.prepare(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_whoever_is_second_keeps_the_firsts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "model"

    def slow(gguf: Path, folder: Path, report: object) -> None:
        (folder / "ours").touch()
        target.mkdir()
        (target / "theirs").touch()

    monkeypatch.setattr(smallmodel, "_find_gguf", lambda: tmp_path / "some.gguf")
    monkeypatch.setattr(smallmodel, "_require_converter", lambda: None)
    monkeypatch.setattr(smallmodel, "_convert", slow)
    assert smallmodel.prepare(target) == target
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert [path.name for path in target.iterdir()] == ["theirs"]

"""What is said of a child that has died."""

from pathlib import Path

import pytest

from cli.logfiles import last_line, last_words, rotate

OURS = "2026-01-02 03:04:05,678 {} worker[7] workers.main: {}\n"


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("", "it left no word"),
        ("Traceback ...\n\nOSError: disk full\n\n", "OSError: disk full"),
        ("error: no keys\nbye\n", "no keys bye"),
        (OURS.format("E", "engine: bad") + OURS.format("I", "stopped"), "engine: bad"),
        (OURS.format("E", "1 problem") + "  too long\n" + OURS.format("I", "stopped"), "1 problem too long"),
        (OURS.format("E", "bad") + "(EngineCore pid=9) INFO 01-02 03:04:05 [core.py:1] bye\n", "bad"),
    ],
)
def test_last_words(tmp_path: Path, log: str, words: str) -> None:
    path = tmp_path / "x.log"
    path.write_text(log)
    assert last_words(path) == words


def test_last_line_without_time_and_place(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    assert last_line(path) == ""
    path.write_text(OURS.format("I", "loading"))
    assert last_line(path) == "loading"


def test_rotate_keeps_one_old_log(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "x.log"
    for text in ("first", "second"):
        rotate(path)
        path.write_text(text)
    rotate(path)
    assert not path.exists()
    assert (tmp_path / "logs" / "x.log.old").read_text() == "second"

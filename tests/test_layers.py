"""Who may import whom (design, section 8)."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ALLOWED = {
    "common": {"common"},
    "api": {"api", "common"},
    "workers": {"workers", "common"},
    "cli": {"cli", "api", "workers", "common"},
}
OURS = {*ALLOWED, "tests", "bench"}
SUPPORT = "tests.support"
"""Real processes, a client, waiting: no tests, and the bench starts its systems with the same."""
MOST_LINES = 400


IMPORT = re.compile(r"^\s*(?:from|import) (\w+)", re.MULTILINE)


def imported(path: Path) -> set[str]:
    return set(IMPORT.findall(path.read_text()))


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_only_what_the_layer_may(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        wrong = imported(path) & OURS - ALLOWED[package]
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


@pytest.mark.parametrize("user", ["bench", "tests/support"])
def test_support_stands_alone_and_is_all_that_the_bench_has_of_the_tests(user: str) -> None:
    for path in (ROOT / user).rglob("*.py"):
        for module in re.findall(r"^\s*(?:from|import) (tests\b[\w.]*)", path.read_text(), re.MULTILINE):
            assert module.startswith(f"{SUPPORT}."), f"{path.relative_to(ROOT)} imports {module}"


@pytest.mark.parametrize("package", ALLOWED)
def test_modules_stay_small(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        lines = len(path.read_text().splitlines())
        assert lines <= MOST_LINES, f"{path.relative_to(ROOT)} has {lines} lines: is it still one idea?"

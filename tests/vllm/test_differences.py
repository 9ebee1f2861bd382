"""Tailrace beside vLLM's own server: docs/openai.md has the table that this makes."""

import pytest

from tests.openai.differences import compare

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]


def test_every_difference_has_a_reason() -> None:
    _, unexplained = compare()
    assert unexplained == []

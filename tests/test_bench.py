"""The bench itself: a client that misses no wrong token, verdicts, and the page that it writes."""

import math
import time
from pathlib import Path
from typing import Any

import pytest

from bench import report, store, systems
from bench.client import Load, Stream
from bench.probe import Probe
from bench.scenario import Result, median
from bench.scenarios.load import offered
from bench.targets import verdicts
from bench.verdict import Target
from bench.wire import MESSAGES, chat_body, post, text_frame
from workers.engines.simulated import prompt_text, token_id

HEAD = b"HTTP/1.1 200 OK\r\nX-Job-Id: job-1\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def line(i: int, seed: int = 0) -> bytes:
    """One SSE event with token i."""
    digest = token_id(prompt_text("chat", {"messages": MESSAGES}), seed, i)
    return b'data: {"content":"%d:%04x@%.6f "}\n\n' % (i, digest, time.time() - 0.5)


def read(*parts: bytes, tokens: int = 3) -> Stream:
    stream = Stream(b"", 0, tokens)
    for part in parts:
        stream.data_received(part)
    return stream


async def test_a_whole_answer_has_no_wrong_token() -> None:
    stream = read(HEAD + line(0), line(1) + line(2), DONE)
    assert (stream.received, stream.wrong(), stream.ended, stream.job_id) == (3, 0, True, "job-1")
    assert all(0.4 < added < 5 for added in stream.added)


async def test_tokens_may_be_cut_anywhere() -> None:
    whole = HEAD + line(0) + line(1) + line(2) + DONE
    # The head comes in one piece, as it does from a server that writes it in one.
    for at in range(len(HEAD), len(whole)):
        assert read(whole[:at], whole[at:]).wrong() == 0


@pytest.mark.parametrize(
    ("order", "wrong"), [((0, 1), 1), ((0, 2), 2), ((0, 1, 1, 2), 3), ((0, 2, 1), 2), ((1, 0, 2), 2), ((), 3)]
)
async def test_lost_doubled_and_reordered_tokens_are_counted(order: tuple[int, ...], wrong: int) -> None:
    assert read(HEAD, *map(line, order), DONE).wrong() == wrong


async def test_a_false_token_is_counted() -> None:
    assert read(HEAD + line(0), line(1, seed=7), line(2), DONE).wrong() == 1


async def test_a_refusal_and_a_broken_connection_are_failures() -> None:
    assert read(b"HTTP/1.1 429 Too Many Requests\r\n\r\n").failure.startswith("HTTP/1.1 429")
    broken = read(HEAD, line(0))
    broken.connection_lost(None)
    assert Load([broken], 1.0).failures == ["cut after 1 of 3 tokens: None"]


async def test_who_leaves_in_the_middle_has_lost_nothing() -> None:
    stream = Stream(b"", 0, 3, leave_at=2)
    for part in (HEAD, line(0), line(1)):
        stream.data_received(part)
    assert stream.done.done()
    assert stream.wrong() == 0


def test_websocket_frames_are_masked_and_sized() -> None:
    assert text_frame({}) == b"\x81\x82\0\0\0\0{}"
    assert text_frame({"a": "b" * 200})[:4] == b"\x81\xfe\x00\xd1"


def test_probe_reads_what_the_worker_noted(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    log.write_text("ready\nprobe call 1 0 10.0\nprobe call 2 0 11.0\nprobe abort 1 5 12.5\n")
    probe = Probe.read(log)
    assert (probe.called, probe.aborted, probe.made, probe.settled) == ({1: 10.0, 2: 11.0}, {1: 12.5}, {1: 5}, False)
    log.write_text(log.read_text() + "probe done 2 8 13.0\n")
    assert Probe.read(log).settled


def target(limit: float, value: float, *, at_least: bool = False) -> Target:
    return Target("t", "s", "text", limit, "ms", lambda _: value, at_least=at_least)


@pytest.mark.parametrize(
    ("one", "met", "margin"),
    [
        (target(10, 8), True, "met by 20 %"),
        (target(10, 15), False, "missed by 50 %"),
        (target(10, 15, at_least=True), True, "met by 50 %"),
        (target(0, 0), True, "met"),
        (target(0, 2), False, "missed by 2"),
        (target(10, math.nan), False, "missed by nan %"),
    ],
)
def test_verdict(one: Target, met: bool, margin: str) -> None:
    verdict = one.verdict({})
    assert (verdict.met, verdict.margin) == (met, margin)


def test_targets_that_a_quick_run_cannot_judge_are_left_out() -> None:
    names = [verdict.target.name for verdict in verdicts("load_300", {"tailrace": {"cpu_api_us": 20.0}})]
    assert names == ["api_cpu"]


def test_median_of_runs_keeps_every_wrong_token() -> None:
    runs = [Result({"x_ms": x}, wrong=1, failures=["f"]) for x in (1.0, 9.0, 2.0)]
    whole = median(runs)
    assert (whole.figures, whole.wrong, len(whole.failures)) == ({"x_ms": 2.0}, 3, 3)


def test_the_page_keeps_what_people_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "performance.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    for module, name, value in (
        (report, "PAGE", page),
        (report, "FOLDER", tmp_path),
        (store, "FOLDER", tmp_path),
        (store, "RESULTS", tmp_path / "results.json"),
    ):
        monkeypatch.setattr(module, name, value)
    kept = store.Store({"CPU": "one"})
    kept.put("growth", {n: Result({"cpu_api_us": 20.0}) for n in ("100", "1000")}, 2)
    kept.save()
    report.write(store.Store({"CPU": "one"}))
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| ≤ 1.20 × | 1 × | met by 17 % |" in text
    assert store.Store({"CPU": "another"}).scenarios == {}


def test_a_small_load_through_real_processes() -> None:
    with systems.tailrace(sim_itl_ms=5, sim_slots=3) as system:
        result = offered(system, 3, 10)
    assert (result.wrong, result.failures) == (0, [])
    assert "cpu_api_us" in result.figures, "its value may be 0: the clock of CPU time ticks every 10 ms"


def test_a_request_says_how_long_it_is() -> None:
    body: dict[str, Any] = chat_body(1, 2)
    head, _, data = post("/v1/chat/completions", body).partition(b"\r\n\r\n")
    assert f"Content-Length: {len(data)}".encode() in head

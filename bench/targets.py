"""What is to be reached."""

from collections.abc import Callable

from bench.verdict import Measured, Target, Verdict


def _of(variant: str, figure: str) -> Callable[[Measured], float]:
    return lambda measured: measured[variant][figure]


def _ratio(figure: str, one: str, other: str) -> Callable[[Measured], float]:
    return lambda measured: measured[one][figure] / measured[other][figure]


def _difference(figure: str, one: str, other: str) -> Callable[[Measured], float]:
    return lambda measured: measured[one][figure] - measured[other][figure]


def _lower_by(figure: str, one: str, other: str) -> Callable[[Measured], float]:
    return lambda measured: 100 * (1 - measured[one][figure] / measured[other][figure])


OURS = "tailrace"

TARGETS: tuple[Target, ...] = (
    Target(
        "submit_p50",
        "first_token",
        "submit to engine call, idle worker, median",
        3,
        "ms",
        _of(OURS, "engine_call_p50_ms"),
    ),
    Target(
        "submit_p99",
        "first_token",
        "submit to engine call, idle worker, p99",
        10,
        "ms",
        _of(OURS, "engine_call_p99_ms"),
    ),
    Target("api_cpu", "load_300", "CPU per token, API process", 30, "µs", _of(OURS, "cpu_api_us")),
    Target(
        "api_cpu_vs_proxy",
        "load_300",
        "CPU per token, API process, of the proxy's",
        1 / 6,
        "×",
        _ratio("cpu_api_us", OURS, "proxy"),
    ),
    Target("redis_cpu", "load_300", "CPU per token, Redis", 12, "µs", _of(OURS, "cpu_redis_us")),
    Target("added_300_p50", "load_300", "added latency per token, p50", 12, "ms", _of(OURS, "added_p50_ms")),
    Target("added_300_p99", "load_300", "added latency per token, p99", 28, "ms", _of(OURS, "added_p99_ms")),
    Target(
        "rate_300",
        "load_300",
        "tokens/s, of what the engine delivers directly",
        0.94,
        "×",
        _ratio("tokens_per_s", OURS, "direct"),
        at_least=True,
    ),
    Target("added_30_p50", "load_30", "added latency per token, p50", 3, "ms", _of(OURS, "added_p50_ms")),
    Target("added_30_p99", "load_30", "added latency per token, p99", 8, "ms", _of(OURS, "added_p99_ms")),
    Target("cancel_p50", "cancel", "cancel request to engine abort, p50", 50, "ms", _of(OURS, "cancel_p50_ms")),
    Target("cancel_p99", "cancel", "cancel request to engine abort, p99", 100, "ms", _of(OURS, "cancel_p99_ms")),
    Target(
        "leave_queued",
        "leave_early",
        "client left while queued: started all the same",
        0,
        "",
        _of(OURS, "queued_started"),
    ),
    Target(
        "leave_prefill",
        "leave_early",
        "client left in prefill: engine abort, slowest",
        100,
        "ms",
        _of(OURS, "prefill_abort_max_ms"),
    ),
    Target(
        "useful",
        "abandoned",
        "useful tokens/s, of those without cancellation",
        1.3,
        "×",
        _ratio("useful_tokens_per_s", "cancel", "continue"),
        at_least=True,
    ),
    Target(
        "useful_ttft",
        "abandoned",
        "time to first token p50, lower than without by",
        22,
        "%",
        _lower_by("ttft_p50_ms", "cancel", "continue"),
        at_least=True,
    ),
    Target("wasted", "abandoned", "wasted tokens, of all made", 0.5, "%", _of("cancel", "wasted_pct")),
    Target(
        "wasted_busy", "abandoned", "wasted tokens with a busy pod, of all made", 0.5, "%", _of("busy", "wasted_pct")
    ),
    Target(
        "growth",
        "growth",
        "API CPU per token at 1,000 streams, of that at 100",
        1.2,
        "×",
        _ratio("cpu_api_us", "1000", "100"),
    ),
    Target("rss_5000", "attached_5000", "RSS per attached stream", 40, "KB", _of(OURS, "rss_per_stream_kb")),
    Target("starved_5000", "attached_5000", "starved readers", 0, "", _of(OURS, "starved")),
    Target(
        "frozen_rss", "frozen", "growth of the pod's RSS beside frozen readers", 5, "%", _of("frozen", "growth_pct")
    ),
    Target(
        "frozen_p99",
        "frozen",
        "added latency p99 of live readers, of that when all read",
        1.5,
        "×",
        _ratio("added_p99_ms", "frozen", "all_read"),
    ),
    Target(
        "vllm_ttft",
        "vllm",
        "time to first token added to vLLM's own server, median",
        5,
        "ms",
        _difference("ttft_p50_ms", OURS, "vllm"),
    ),
    Target(
        "vllm_rate",
        "vllm",
        "tokens/s at 16 at once, of vLLM's own server",
        0.97,
        "×",
        _ratio("tokens_per_s", OURS, "vllm"),
        at_least=True,
    ),
)


def verdicts(scenario: str, measured: Measured) -> list[Verdict]:
    """Of the targets of one scenario that this run can judge: a quick run leaves variants out."""
    found = []
    for target in TARGETS:
        if target.scenario == scenario:
            try:
                found.append(target.verdict(measured))
            except KeyError:
                continue
    return found

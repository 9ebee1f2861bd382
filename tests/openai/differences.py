"""Where Tailrace's answers differ from those of vLLM's own server, on the same model and the same requests.

    python -m tests.openai.differences [--write docs/openai.md]

Starts one after the other, asks both everything in asked.py, and prints a table of the fields that differ, with the
reason for each (reasons.py). A difference without a reason is an error: exit status 1. `--write` puts the table
between `<!-- differences -->` and `<!-- /differences -->`. About two minutes.

A field that is null or empty at one and absent at the other is no difference.
"""

import argparse
import contextlib
import json
import re
import secrets
import shlex
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx

from bench.systems import wait_until_live
from tests.openai.asked import ASKED, MODEL, Asked
from tests.openai.reasons import reason
from tests.support.processes import ROOT, Process, RedisServer, Stack, free_port
from workers.engines import smallmodel

ARGS = (
    "--dtype float32 --enforce-eager --max-model-len 2048 --max-num-seqs 16 --kv-cache-memory-bytes 1073741824 "
    "--enable-auto-tool-choice --tool-call-parser hermes --served-model-name " + MODEL
)
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}
START_SECONDS = 240.0
ABSENT = "absent"
FEW = 3
"""Fields or requests that one row of the table names."""

Fields = dict[str, str]
"""Path of a field to what was seen there; for a stream the fields of all chunks together."""
Difference = tuple[str, str, str]
"""Field, at vLLM, at Tailrace."""

_MARKED = re.compile(r"(?<=<!-- differences -->\n).*?(?=<!-- /differences -->)", re.DOTALL)
# What must differ between any two answers: only its form is compared.
_RANDOM = {
    re.compile(r"chatcmpl-\w+$"): "chatcmpl-…",
    re.compile(r"cmpl-[\w-]+$"): "cmpl-…",
    re.compile(r"(chatcmpl-tool-|call_)\w+$"): "a random id",
    re.compile(r"/\w+/"): "a path",
    re.compile(r"vllm-[\w.+-]+$"): "vllm-…",
    re.compile(r"modelperm-\w+$"): "modelperm-…",
}


@contextlib.contextmanager
def own_server(model: Path, folder: Path) -> Iterator[str]:
    """vLLM's own OpenAI server; the URL."""
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--port", str(port), "--model", str(model)]
    process = Process("vllm", [*command, *shlex.split(ARGS)], folder, ENVIRONMENT)
    try:
        wait_until_live(f"http://127.0.0.1:{port}/health", process, START_SECONDS)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()


@contextlib.contextmanager
def tailrace(model: Path, folder: Path) -> Iterator[str]:
    redis = RedisServer(folder / "redis")
    stack = Stack(redis.url, folder, f"t{secrets.token_hex(4)}", engine="vllm", model=model, vllm_args=ARGS)
    try:
        url = stack.api().url
        stack.worker()
        yield url
    finally:
        stack.stop()
        redis.stop()


def answers(url: str) -> list[Fields]:
    with httpx.Client(base_url=url, timeout=120) as client:
        return [answer(client, asked) for asked in ASKED]


def answer(client: httpx.Client, asked: Asked) -> Fields:
    response = client.get(asked.path) if asked.body is None else client.post(asked.path, json=asked.body)
    objects = [response.json()] if not _is_stream(response) else _chunks(response.text)
    seen: dict[str, list[Any]] = {"HTTP status": [response.status_code]}
    for one in objects:
        for path, value in _leaves(one):
            seen.setdefault(path, []).append(value)
    return {path: _shown(path, values, streamed=_is_stream(response)) for path, values in seen.items()}


def _is_stream(response: httpx.Response) -> bool:
    return response.headers["content-type"].startswith("text/event-stream")


def _chunks(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, item in value.items():
            yield from _leaves(item, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value:
        for item in value:
            # Choices and tool calls of a stream come in any order.
            index = item.get("index", "") if isinstance(item, dict) else ""
            yield from _leaves(item, f"{path}[{index}]")
    else:
        yield path, value


def _shown(path: str, values: list[Any], *, streamed: bool) -> str:
    """What is compared of the values at `path`: texts of a stream joined, each other value once, in order."""
    if path.endswith("created"):
        return "a time"
    values = [value for value in values if value not in (None, "", [], {})]
    if streamed and values and path.endswith(("content", "text", "arguments")):
        values = ["".join(values)]
    return ", ".join(dict.fromkeys(_plain(value) for value in values)) or ABSENT


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    for pattern, form in _RANDOM.items():
        if isinstance(value, str) and pattern.match(value):
            return form
    return json.dumps(value, ensure_ascii=False)


def differences(vllm: Fields, ours: Fields) -> list[Difference]:
    """Of the status alone when it differs: then the bodies have nothing in common."""
    paths = dict.fromkeys([*vllm, *ours] if vllm["HTTP status"] == ours["HTTP status"] else ["HTTP status"])
    pairs = [(path, vllm.get(path, ABSENT), ours.get(path, ABSENT)) for path in paths]
    return [(re.sub(r"\[\d+\]", "[]", path), left, right) for path, left, right in pairs if left != right]


def table(found: list[tuple[Asked, Difference]]) -> tuple[str, list[str]]:
    """The table, one row per reason; and the differences without one."""
    rows: dict[str, tuple[dict[str, None], Difference, dict[str, None]]] = {}
    unexplained = []
    for asked, difference in found:
        why = reason(asked, difference[0])
        if why is None:
            unexplained.append(f"{asked.name}: {difference[0]}: vLLM {difference[1]}, Tailrace {difference[2]}")
            continue
        fields, _, names = rows.setdefault(why, ({}, difference, {}))
        fields[difference[0]] = names[asked.name] = None
    lines = ["| field | vLLM | Tailrace | asked | why |", "|---|---|---|---|---|"]
    for why, (fields, (_, left, right), names) in rows.items():
        shown = list(fields) if len(fields) <= FEW else _roots(fields)
        code = ", ".join(f"`{field}`" for field in shown)
        asked_for = "; ".join(names) if len(names) <= FEW else f"{'; '.join([*names][:FEW])}; {len(names) - FEW} more"
        lines.append(f"| {code} | {_cell(left)} | {_cell(right)} | {asked_for} | {why} |")
    return "\n".join(lines) + "\n", unexplained


def _roots(fields: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(".".join(field.split(".")[:2]) for field in fields))


def _cell(value: str) -> str:
    short = value if len(value) <= 60 else value[:57] + "..."
    return short if value == ABSENT else f"`{short.replace('|', '/')}`"


def compare() -> tuple[str, list[str]]:
    """The table of the differences, and those for which there is no reason."""
    model = smallmodel.prepare(ROOT / ".tailrace" / "models" / smallmodel.FOLDER_NAME)
    with tempfile.TemporaryDirectory(prefix="tailrace-differences-") as folder:
        with own_server(model, Path(folder)) as url:
            vllm = answers(url)
        with tailrace(model, Path(folder)) as url:
            ours = answers(url)
    per_request = zip(ASKED, vllm, ours, strict=True)
    return table([(asked, one) for asked, left, right in per_request for one in differences(left, right)])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.openai.differences", description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="replace the table in FILE")
    file: Path | None = parser.parse_args().write
    text, unexplained = compare()
    if file:
        file.write_text(_MARKED.sub(lambda _: text, file.read_text()))
    else:
        print(text)
    for line in unexplained:
        print("unexplained:", line, file=sys.stderr)
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())

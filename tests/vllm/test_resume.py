"""An answer continued after a cut equals the undisturbed one: text, token ids, finish, usage."""

from typing import Any

import pytest

from tests.vllm.answers import Answer, Kind, Run, chat, completion, merged
from tests.vllm.test_engine import TOOLS
from workers.engines.base import EngineFailed, Resume
from workers.engines.vllm import VllmEngine

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

EMOJI = "Emoji row: 🙂🙃🐟🙂🙃🐟🙂🙃🐟🙂🙃🐟🙂🙃"


def cut_after(answer: Answer, deltas: int) -> Resume:
    """What a log holds when the worker dies after so many deltas."""
    delivered = merged(answer.deltas[:deltas])
    return Resume(list(delivered.get("token_ids", [])), delivered)


async def assert_continues(run: Run, kind: Kind, body: dict[str, Any], cuts: Any = None) -> Answer:
    undisturbed = await run(kind, body)
    for cut in cuts or range(1, len(undisturbed.deltas) + 1):
        rest = await run(kind, body, cut_after(undisturbed, cut))
        assert merged([*undisturbed.deltas[:cut], *rest.deltas]) == undisturbed.whole(), f"cut after {cut} deltas"
        assert rest.usage["completion_tokens"] == undisturbed.usage["completion_tokens"]
        assert rest.usage["prompt_tokens"] == undisturbed.usage["prompt_tokens"]
    return undisturbed


async def test_a_chat_cut_anywhere(run: Run) -> None:
    answer = await assert_continues(run, "chat", chat("What is the capital of France?", max_tokens=20))
    assert answer.whole()["finish_reason"] == "stop"


async def test_a_longer_completion_cut_at_some_places(run: Run) -> None:
    body = completion("Once upon a time", max_tokens=60, min_tokens=50)
    await assert_continues(run, "completion", body, cuts=(1, 7, 30, 44))


async def test_a_stop_string_across_the_cut(run: Run) -> None:
    body = completion("One, two, three, four, five, six,", max_tokens=16)
    stop = (await run("completion", body)).text[11:20]  # several tokens, and starts within one
    answer = await assert_continues(run, "completion", {**body, "stop": [stop]})
    assert answer.whole()["stop_reason"] == stop


async def test_characters_cut_between_their_bytes(run: Run) -> None:
    answer = await run("completion", completion(EMOJI, max_tokens=16))
    assert len(answer.text) < len(answer.whole()["token_ids"]), "several tokens make one character"
    ids = answer.whole()["token_ids"]
    for cut in range(1, len(ids)):
        rest = await run("completion", completion(EMOJI, max_tokens=16), Resume(ids[:cut], {}))
        assert rest.text == answer.text, f"cut after {cut} tokens"
        assert rest.whole().get("token_ids", []) == ids[cut:]


async def test_logprobs_are_delivered_once(run: Run) -> None:
    body = completion("The capital of France is", max_tokens=8, logprobs=1)
    undisturbed = await run("completion", body)
    for cut in (1, 2, len(undisturbed.deltas)):
        rest = await run("completion", body, cut_after(undisturbed, cut))
        logprobs = merged([*undisturbed.deltas[:cut], *rest.deltas])["logprobs"]
        expected = undisturbed.whole()["logprobs"]
        assert logprobs["tokens"] == expected["tokens"]
        assert logprobs["text_offset"] == expected["text_offset"]
        assert logprobs["token_logprobs"] == pytest.approx(expected["token_logprobs"], abs=1e-4)


async def test_an_answer_that_was_complete_is_finished_without_the_engine(
    run: Run, engine: VllmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = chat("Count to ten.", max_tokens=8)
    undisturbed = await run("chat", body)
    monkeypatch.setattr(engine._llm, "generate", None)
    whole = undisturbed.whole()
    delivered = {"index": 0, "role": "assistant", "content": undisturbed.text[:3]}
    rest = await run("chat", body, Resume(whole["token_ids"], delivered))
    assert rest.text == undisturbed.text[3:]
    assert rest.whole()["finish_reason"] == "length"
    assert "token_ids" not in rest.whole()
    assert rest.usage["completion_tokens"] == 8


async def test_a_tool_call_is_continued_within_its_arguments(
    run: Run, engine: VllmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read by the parser that was chosen by the chat template: nothing else names one."""
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    ids = engine._llm.renderer.tokenizer.encode(call, add_special_tokens=False)
    body = chat("Weather in Paris?", max_tokens=len(ids), tools=TOOLS)
    monkeypatch.setattr(engine._llm, "generate", None)  # the ids are all there
    once = await run("chat", body, Resume(ids, {}))
    assert arguments(once.deltas) == '{"city": "Paris"}'
    for cut in range(1, len(once.deltas) + 1):
        rest = await run("chat", body, Resume(ids, merged(once.deltas[:cut])))
        assert arguments([*once.deltas[:cut], *rest.deltas]) == '{"city": "Paris"}', f"cut after {cut} deltas"


def arguments(deltas: Any) -> str:
    pieces = [piece for delta in deltas for piece in delta.get("tool_calls", [])]
    assert sum("id" in piece for piece in pieces) == 1, "a call is announced once"
    return "".join(piece["function"].get("arguments") or "" for piece in pieces)


async def test_reasoning_is_continued(run: Run, engine: VllmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.parser import ParserManager

    # One that needs no special tokens. For all tests it would be too much: guided decoding waits for thoughts to end.
    granite = ParserManager.get_parser(reasoning_parser_name="granite", tokenizer=engine._llm.renderer.tokenizer)
    monkeypatch.setattr(engine._serving._chat, "parser_cls", granite)
    thoughts = "Here is my thought process: I think so. Here is my response: Yes, it is."
    ids = engine._llm.renderer.tokenizer.encode(thoughts, add_special_tokens=False)
    body = chat("Is it?", max_tokens=len(ids))
    monkeypatch.setattr(engine._llm, "generate", None)  # the ids are all there
    once = await run("chat", body, Resume(ids, {}))
    assert (once.whole()["reasoning"], once.whole()["content"]) == (" I think so. ", " Yes, it is.")
    for cut in range(1, len(once.deltas) + 1):
        rest = await run("chat", body, Resume(ids, merged(once.deltas[:cut])))
        assert merged([*once.deltas[:cut], *rest.deltas]) == once.whole(), f"cut after {cut} deltas"


async def test_a_different_beginning_is_not_continued(run: Run) -> None:
    body = chat("What is the capital of France?", max_tokens=20)
    answer = await run("chat", body)
    wrong = {**merged(answer.deltas[:4]), "content": "Something else"}
    with pytest.raises(EngineFailed, match="differs"):
        await run("chat", body, Resume(wrong["token_ids"], wrong))

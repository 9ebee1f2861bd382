"""A model's chat template tells which parsers read what it says; no engine is started here."""

import logging
import shlex
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.settings import Settings
from tests.vllm.conftest import HERMES

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

QWEN3 = r"{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
R1 = r"{% if add_generation_prompt %}{{ '<｜Assistant｜><think>\n' }}{% endif %}"
JSON_CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
XML_CALL = r"<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"

CALLS = {
    f"{{{{ tools }}}} {JSON_CALL}": "hermes",
    f"{{{{ tools }}}} <|start_of_role|> {JSON_CALL}": "granite4",
    f"{{{{ tools }}}} {XML_CALL}": "qwen3_xml",
    f"{{{{ tools }}}} {XML_CALL} {JSON_CALL}": "qwen3_xml",
    "{{ tools }} [gMASK]<sop> <tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>": "glm45",
    "{{ tools }} <tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>": None,
    '{{ tools }} <tool_calls>[{"name": "f", "arguments": {}}]</tool_calls> <tool_call>': None,
    "{{ tools }} <|python_tag|> <function=f>{}</function>": None,
    '{{ tools }} {"name": function name, "parameters": dictionary of argument name and its value}': "llama3_json",
    '{{ tools }} <|tool_call|>[{"name": "f", "arguments": {}}]': "granite",
    "{{ tools }} [TOOL_CALLS]f[ARGS]{}": "mistral",
    "{{ tools }} <｜tool▁calls▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```": "deepseek_v3",
    "{{ tools }} <｜tool▁calls▁begin｜>f<｜tool▁sep｜>{}": "deepseek_v31",
    "{{ tools }} <|channel|>commentary to=functions.f": "openai",
    "{{ tools }} <|tool_call>call:f{}": "gemma4",
    "{{ tools }} <minimax:tool_call><invoke name=": "minimax_m2",
    "{{ tools }} none of it": None,
    JSON_CALL: None,  # what it would call never reaches the model
    "": None,
}
THOUGHTS = {
    QWEN3: "qwen3",
    "{% set enable_thinking = enable_thinking | default(false) %}" + QWEN3: None,
    "{% if enable_thinking is true %}{{ '<think>' }}{% endif %}": None,
    R1: "deepseek_r1",
    "{% if not thinking is defined %}{% set thinking = false %}{% endif %}" + R1: "deepseek_v3",
    r"{{ '<|im_start|>assistant\n<think>\n' }}": "deepseek_r1",
    r"{{ '<|im_start|>' + role + '\n<think>\n' + reasoning }}": None,
    "[gMASK]<sop> <think> enable_thinking": "glm45",
    "<think> truncate_history_thinking enable_thinking": "nemotron_v3",
    "[THINK]": "mistral",
    "": None,
}


@pytest.fixture(scope="module")
def parsers() -> Any:
    """The module; imported here, because vLLM takes seconds to import, and other tests are collected with these."""
    from workers.engines.vllm import parsers

    return parsers


@pytest.mark.parametrize(("template", "parser"), CALLS.items())
def test_the_form_of_a_call_tells_the_parser(parsers: Any, template: str, parser: str | None) -> None:
    assert parsers.of_tools(template)[0] == parser


@pytest.mark.parametrize(("template", "parser"), THOUGHTS.items())
def test_the_form_of_thoughts_tells_the_parser(parsers: Any, template: str, parser: str | None) -> None:
    assert parsers.of_thoughts(template)[0] == parser


def test_the_templates_that_vllm_carries(parsers: Any) -> None:
    """MiniCPM-V thinks only when told to."""
    import vllm

    folder = Path(vllm.__file__).parent / "transformers_utils/chat_templates"
    found = {
        path.stem: (parsers.of_tools(text)[0], parsers.of_thoughts(text)[0])
        for path in folder.glob("*.jinja")
        for text in [path.read_text()]
    }
    assert found.pop("template_minicpmv45") == ("hermes", None)
    assert set(found.values()) == {(None, None)}


def test_every_parser_is_one_of_vllms(parsers: Any) -> None:
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    tools = {row[0] for row in parsers.TOOLS} | {tools for tools, _ in parsers.MODES.values()}
    thoughts = {row[0] for row in parsers.THOUGHTS} | {thoughts for _, thoughts in parsers.MODES.values()}
    assert tools - {None} <= set(ToolParserManager.list_registered())
    assert thoughts - {None} <= set(ReasoningParserManager.list_registered())


@pytest.fixture
def parsed(engine_settings: Callable[..., Settings], tmp_path: Path) -> Callable[..., Namespace]:
    """The arguments that vLLM gets, with a chat template that is a file or a text."""
    from workers.engines.vllm.setup import parse_args

    def parse(template: Path | str, *more: str) -> Namespace:
        if isinstance(template, str):
            (tmp_path / "template.jinja").write_text(template)
            template = tmp_path / "template.jinja"
        return parse_args(engine_settings(vllm_args=shlex.join(["--chat-template", str(template), *more])))

    return parse


def chosen(args: Any) -> tuple[Any, ...]:
    return args.tool_call_parser, args.enable_auto_tool_choice, args.reasoning_parser


def test_a_parser_is_chosen_and_the_choice_is_logged(
    parsers: Any, parsed: Callable[..., Namespace], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, parsers.log.name)
    assert chosen(parsed("{{ tools }}" + JSON_CALL + QWEN3)) == ("hermes", True, "qwen3")
    assert "tool parser: hermes (the chat template has <tool_call> and arguments)" in caplog.text
    assert "reasoning parser: qwen3 (the chat template has <think>" in caplog.text


def test_the_models_own_template_knows_no_tools(engine_settings: Callable[..., Settings]) -> None:
    from workers.engines.vllm.setup import parse_args

    assert chosen(parse_args(engine_settings(vllm_args=""))) == (None, False, "")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--tool-call-parser", "mistral"], ("mistral", True, "qwen3")),
        (["--reasoning-parser", "granite"], ("hermes", True, "granite")),
        (["--structured-outputs-config.reasoning_parser", "granite"], ("hermes", True, "granite")),
        (["--enable-auto-tool-choice"], ("hermes", True, "qwen3")),
        (["--no-enable-auto-tool-choice"], (None, False, "qwen3")),
        (["--reasoning-parser", ""], ("hermes", True, "")),
    ],
)
def test_the_operator_wins(parsed: Callable[..., Namespace], given: list[str], expected: tuple[Any, ...]) -> None:
    assert chosen(parsed("{{ tools }}" + JSON_CALL + QWEN3, *given)) == expected


def test_a_parser_that_the_tokenizer_is_not_made_for_is_left_out(
    parsers: Any, parsed: Callable[..., Namespace], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, parsers.log.name)
    assert chosen(parsed(R1)) == (None, False, "")
    assert "reasoning parser: none" in caplog.text
    assert "could not locate think start/end tokens" in caplog.text


def test_without_a_template_the_tokenizer_mode_tells(
    parsers: Any, parsed: Callable[..., Namespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parsers, "tokenizer_args_from_config", lambda config: ("deepseek_v32",))
    assert chosen(parsed(HERMES, "--reasoning-parser", "")) == ("deepseek_v32", True, "")
    monkeypatch.setattr(parsers, "tokenizer_args_from_config", lambda config: ("unheard_of",))
    assert chosen(parsed(HERMES)) == (None, False, "")

"""Which of vLLM's parsers reads a model's tool calls and thoughts, by the marks in its chat template.

vLLM 0.32 chooses none itself, but for the thoughts of gpt-oss. The marks are those that its parsers look for
(vllm/tool_parsers, vllm/reasoning, vllm/parser), the models those of its documentation (features/tool_calling.md,
features/reasoning_outputs.md). None is better than a wrong one, which loses calls or takes answers for thoughts.
"""

import logging
import re
from argparse import Namespace
from typing import Any

from vllm.parser import ParserManager
from vllm.renderers.chat_utils import load_chat_template
from vllm.renderers.hf import resolve_chat_template
from vllm.tokenizers.registry import cached_tokenizer_from_config, tokenizer_args_from_config

log = logging.getLogger(__name__)

UNDECIDED: dict[str, Any] = {"enable_auto_tool_choice": None, "reasoning_parser": None}
"""Defaults for vLLM's arguments, by which "not given" differs from "none"."""

# Parser and marks: the first row counts whose marks are all there. None: a form of several models, or of no parser.
Rows = tuple[tuple[str | None, *tuple[str, ...]], ...]
Choice = tuple[str | None, str]  # parser, and the sign that it was chosen by
TOOLS: Rows = (
    ("openai", "<|channel|>"),
    ("gemma4", "<|tool_call>"),
    ("kimi_k2", "<|tool_calls_section_begin|>"),
    ("minimax_m3", "]<]minimax[>["),
    ("minimax_m2", "<minimax:tool_call>"),
    ("seed_oss", "<seed:tool_call>"),
    ("muse_glimmer", "<atem:function_calls>"),
    ("lfm2", "<|tool_call_start|>"),
    ("mistral", "[TOOL_CALLS]"),
    ("granite", "<|tool_call|>"),
    ("deepseek_v3", "<｜tool▁calls▁begin｜>", "```json"),
    ("deepseek_v31", "<｜tool▁calls▁begin｜>"),
    ("glm45", "<tool_call>", "<arg_key>", "[gMASK]<sop>"),
    (None, "<arg_key"),
    ("minicpm5", "<function name=", "<param name="),
    ("qwen3_xml", "<tool_call>", "<function=", "<parameter="),
    (None, "<function="),
    (None, "<tool_calls"),
    ("granite4", "<tool_call>", "<|start_of_role|>"),
    ("hermes", "<tool_call>", "arguments"),
    ("llama3_json", '"parameters": dictionary of argument name and its value'),
)
THOUGHTS: Rows = (
    ("gemma4", "<|channel>"),
    ("mistral", "[THINK]"),
    ("seed_oss", "<seed:think>"),
    ("minimax_m2", "<think>", "<minimax:tool_call>"),
    ("kimi_k2", "<think>", "<|tool_calls_section_begin|>"),
    ("nemotron_v3", "<think>", "truncate_history_thinking"),
    ("glm45", "<think>", "[gMASK]<sop>"),
    ("deepseek_v3", "<｜Assistant｜>", "not thinking is defined"),
    ("deepseek_r1", "<｜Assistant｜><think>"),
    (None, "enable_thinking | default(false)"),  # qwen3 takes what comes first for a thought, unless told otherwise
    ("qwen3", r"<think>\n\n</think>", "enable_thinking is defined and enable_thinking is false"),
    (None, "enable_thinking"),
    ("deepseek_r1", r"<|im_start|>assistant\n<think>"),
)
# Tokenizer modes in which vLLM writes the prompt itself: there is no template, but the model is known.
MODES: dict[str, tuple[str, str | None]] = {
    "deepseek_v32": ("deepseek_v32", "deepseek_v3"),
    "deepseek_v4": ("deepseek_v4", "deepseek_v4"),
    "deepseek_v41": ("deepseek_v41", "deepseek_v41"),
    "mistral": ("mistral", None),  # not all of them think, and guided decoding would wait for the thoughts
}


def of_tools(template: str) -> Choice:
    if not re.search(r"\btools\b", template):
        return None, "the chat template takes no tools"
    return _first(TOOLS, template)


def of_thoughts(template: str) -> Choice:
    return _first(THOUGHTS, template)


def _first(rows: Rows, template: str) -> Choice:
    for parser, *marks in rows:
        if all(mark in template for mark in marks):
            return parser, f"the chat template has {' and '.join(marks)}"
    return None, "the chat template has no known mark"


def choose(args: Namespace, model_config: Any) -> None:
    """Fills in the parsers that the operator left open. With one for tool calls, automatic tool choice is on."""
    tools, thoughts = _by_model(args.chat_template, model_config)
    if args.tool_call_parser is None and args.enable_auto_tool_choice is not False:
        args.tool_call_parser = _usable("tool", tools, model_config)
    if args.enable_auto_tool_choice is None:
        args.enable_auto_tool_choice = bool(args.tool_call_parser)
    if args.reasoning_parser is None:
        given = args.structured_outputs_config.reasoning_parser
        args.reasoning_parser = given or _usable("reasoning", thoughts, model_config) or ""


def _by_model(chat_template: str | None, model_config: Any) -> tuple[Choice, Choice]:
    mode, *_ = tokenizer_args_from_config(model_config)
    if mode != "hf":
        tools, thoughts = MODES.get(mode, (None, None))
        return (tools, f"tokenizer mode {mode}"), (thoughts, f"tokenizer mode {mode}")
    tokenizer, given = cached_tokenizer_from_config(model_config), load_chat_template(chat_template)
    # A model may have one template for requests with tools and another for those without.
    with_tools = resolve_chat_template(tokenizer, given, [], model_config=model_config)
    without = resolve_chat_template(tokenizer, given, None, model_config=model_config)
    return of_tools(with_tools or ""), of_thoughts(without or "")


def _usable(kind: str, choice: Choice, model_config: Any) -> str | None:
    """The chosen parser, unless it needs tokens that the model's tokenizer does not have."""
    parser, sign = choice
    if parser:
        try:
            names = {f"{kind}_parser_name": parser, "model_name": model_config.model}
            tokenizer = cached_tokenizer_from_config(model_config)
            ParserManager.get_parser(**names, enable_auto_tools=True, tokenizer=tokenizer)
        except Exception as error:  # whatever its constructor raises: a choice of ours must not stop the worker
            parser, sign = None, f"{sign}, but {error}"
    log.info("%s parser: %s (%s)", kind, parser or "none", sign)
    return parser

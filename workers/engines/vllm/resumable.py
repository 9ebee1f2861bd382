"""Which answers can be continued from their token ids."""

from typing import Any

# Guided decoding: the grammar would start again in the middle of the answer.
_GUIDED = ("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar")
# No single list of generated ids, or a prompt that ids cannot be appended to.
_NOT_ONE_ANSWER = ("use_beam_search", "echo", "prompt_logprobs", "prompt_embeds")


def resumable(body: dict[str, Any]) -> bool:
    """Whether vLLM can go on with the answer to `body` where another engine stopped.

    Sampling goes on with a fresh random state, and presence and frequency penalties count from the cut.
    """
    if any(body.get(name) for name in (*_GUIDED, *_NOT_ONE_ANSWER)):
        return False
    if (body.get("n") or 1) != 1 or (body.get("best_of") or 1) != 1:
        return False
    return not (_guided_format(body) or _guided_tools(body) or _many_prompts(body.get("prompt")))


def _guided_format(body: dict[str, Any]) -> bool:
    response_format = body.get("response_format")
    return isinstance(response_format, dict) and response_format.get("type") != "text"


def _guided_tools(body: dict[str, Any]) -> bool:
    tools = body.get("tools")
    if not tools or body.get("tool_choice") == "none":
        return False
    if body.get("tool_choice") not in (None, "auto") or body.get("parallel_tool_calls") is False:
        return True
    return any(isinstance(tool, dict) and (tool.get("function") or {}).get("strict") for tool in tools)


def _many_prompts(prompt: Any) -> bool:
    return isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int)

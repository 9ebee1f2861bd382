"""Parameters that would be ignored without a word, though the client relies on them."""

from typing import Any

from workers.engines.base import EngineRefused

_REMOVED = "vLLM has removed it; use 'structured_outputs' or 'response_format'"
_NOT_IN_DELTAS = "its answer has no place in a job's events"

_IGNORED = {
    "guided_json": _REMOVED,
    "guided_regex": _REMOVED,
    "guided_choice": _REMOVED,
    "guided_grammar": _REMOVED,
    "best_of": "vLLM has removed it; use 'n'",
    "verbosity": "vLLM has no such parameter",
    "prompt_logprobs": _NOT_IN_DELTAS,
    "return_token_ids": _NOT_IN_DELTAS,
    "return_prompt_text": _NOT_IN_DELTAS,
    "kv_transfer_params": _NOT_IN_DELTAS,
    "ec_transfer_params": _NOT_IN_DELTAS,
}


def refuse_what_would_be_ignored(body: dict[str, Any]) -> None:
    """Raises EngineRefused naming the first such parameter."""
    for name, why in _IGNORED.items():
        asked = body.get(name)
        # A number asks for something even when it is 0: prompt_logprobs then are those of the prompt's own tokens.
        wanted = bool(asked) or type(asked) is int
        # Several clients always send best_of; as many as n is what vLLM does anyway.
        if wanted and not (name == "best_of" and asked == (body.get("n") or 1)):
            raise EngineRefused(f"{name!r} is not supported: {why}.", param=name, code="unsupported_parameter")

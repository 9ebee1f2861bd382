"""Why an answer of Tailrace's differs from vLLM's own: every difference that is known, in words for docs/openai.md."""

import re
from typing import NamedTuple

from tests.openai.asked import Asked


class Reason(NamedTuple):
    field: str
    """Pattern of the whole path."""
    asked: str
    """Pattern of the request's name, from its start."""
    why: str


REASONS = [
    Reason("HTTP status", "one model", "vLLM's server has no such endpoint; the SDK's `models.retrieve` needs it."),
    Reason(
        "HTTP status",
        "deprecated functions|removed guided_json",
        "vLLM ignores the parameter without a word. Here it is a 400 with its name and the code "
        "`unsupported_parameter`.",
    ),
    Reason(
        "HTTP status",
        "prompt_logprobs",
        "vLLM has them in whole answers only, not in streams, and a job is always a stream. A 400 with its name.",
    ),
    Reason("error.message", ".*", "The pod's own words for what it checks itself, before a job is made."),
    Reason("error.type", ".*", "OpenAI's names of error types."),
    Reason("error.code", ".*", "A word, as at OpenAI, and the HTTP status in the status line only."),
    Reason("error.param", ".*", "The parameter as the client wrote it, also where vLLM gives none or an inner name."),
    Reason("detail", "no such path", "OpenAI's error object for every error."),
    Reason("system_fingerprint", ".*", "The workers of one model need not be alike, and a job may change its worker."),
    Reason("service_tier|metadata.a", ".*store and tier", "vLLM ignores these parameters."),
    Reason(
        r"choices\[\].prompt_logprobs\[\].*",
        "completion, logprobs, echo",
        "With `echo` vLLM repeats the prompt's log probabilities here; both have them in `logprobs`.",
    ),
    Reason(
        r"choices\[\].message.(content|tool_calls.*)",
        "chat, tool, cut",
        "`max_tokens` cut the call. A whole answer is the stream put together, and that never says what may become a "
        "call; vLLM parses whole answers in another way, and gives the raw text.",
    ),
    Reason(r"data\[\].owned_by", "models", "Who serves it."),
    Reason(r"data\[\].engine", "models", "Which engine the worker runs."),
    Reason(r"data\[\].(root|permission.*)", "models", "A path on the server, and a constant that OpenAI has dropped."),
]


def reason(asked: Asked, field: str) -> str | None:
    """The first reason for a difference in `field` of the answer to `asked`; None when there is none."""
    for one in REASONS:
        if re.fullmatch(one.field, field) and re.match(one.asked, asked.name):
            return one.why
    return None

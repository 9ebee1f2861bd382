"""An OpenAI server with a script: it says what the last message names, so that answers of any shape can be asked for.

It stands where vLLM would (the `openai` engine talks to it), in a thread, so that blocking clients can be tested.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "scripted"


def _choice(index: int = 0, finish: str | None = None, logprobs: Any = None, **delta: Any) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


def _call(index: int, **parts: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, **parts}]}


def _token(text: str) -> dict[str, Any]:
    entry = {"token": text, "logprob": -0.5, "bytes": list(text.encode())}
    return {"content": [{**entry, "top_logprobs": [entry, {"token": "x", "logprob": -2.0, "bytes": [120]}]}]}


SCRIPTS: dict[str, list[dict[str, Any]]] = {
    "hello": [_choice(role="assistant"), _choice(content="Hello "), _choice(content="there"), _choice(finish="stop")],
    "two tools": [
        _choice(role="assistant", content="Let me see. "),
        _choice(**_call(0, id="call-a", type="function", function={"name": "weather", "arguments": ""})),
        _choice(**_call(0, function={"arguments": '{"city": '})),
        _choice(**_call(0, function={"arguments": '"Paris"}'})),
        _choice(**_call(1, id="call-b", type="function", function={"name": "weather", "arguments": '{"city":'})),
        _choice(**_call(1, function={"arguments": '"Rome"}'})),
        _choice(finish="tool_calls"),
    ],
    "reasoning": [
        _choice(role="assistant"),
        _choice(reasoning="One plus one "),
        _choice(reasoning_content="is two."),
        _choice(content="2"),
        _choice(finish="stop"),
    ],
    "logprobs": [
        _choice(role="assistant"),
        _choice(content="a", logprobs=_token("a")),
        _choice(content="b", logprobs=_token("b")),
        _choice(finish="length"),
    ],
    "two choices": [
        _choice(0, role="assistant"),
        _choice(1, role="assistant"),
        _choice(0, content="left"),
        _choice(1, content="right"),
        _choice(1, finish="stop"),
        _choice(0, finish="content_filter"),
    ],
    "filter": [_choice(role="assistant"), _choice(content="How to "), _choice(finish="content_filter")],
    "refusal": [_choice(role="assistant"), _choice(refusal="I will "), _choice(refusal="not."), _choice(finish="stop")],
    "json": [_choice(role="assistant"), _choice(content='{"city": "Rome", '), _choice(content='"large": true}'),
             _choice(finish="stop")],
}  # fmt: skip

REFUSALS: dict[str, tuple[int, dict[str, Any]]] = {
    "bad parameter": (400, {"message": "top_k is odd", "type": "BadRequestError", "param": "top_k", "code": 400}),
    "not allowed": (422, {"message": "no such image", "type": "UnprocessableEntityError", "param": None, "code": 422}),
    "broken": (500, {"message": "it broke", "type": "InternalServerError", "param": None, "code": 500}),
}

USAGE = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}


class ScriptedUpstream:
    """Serves at `url`; `asked` is the body of each request for text, in order."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, name="scripted-upstream", daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        asked = self.asked

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._json(200, {"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 100}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                asked.append(body)
                script = body["messages"][-1]["content"]
                if script in REFUSALS:
                    status, error = REFUSALS[script]
                    self._json(status, {"error": error})
                else:
                    self._stream(SCRIPTS[script])

            def _stream(self, choices: list[dict[str, Any]]) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                common = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
                chunks: list[dict[str, Any]] = [{"choices": [choice]} for choice in choices]
                for chunk in [*chunks, {"choices": [], "usage": USAGE}]:
                    self.wfile.write(b"data: %s\n\n" % json.dumps({**common, **chunk}).encode())
                self.wfile.write(b"data: [DONE]\n\n")

            def _json(self, status: int, answer: dict[str, Any]) -> None:
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                """Not to stderr."""

        return Handler

"""The HTTP client behind `chat`, `submit`, `attach`, `cancel` and `status`."""

import ipaddress
import sys
import time
from collections.abc import Iterator
from typing import Annotated, Any
from urllib.parse import quote

import httpx
import typer

from cli import sse
from cli.failure import Failure
from cli.sse import SseEvent

Url = Annotated[str, typer.Option("--url", envvar="TAILRACE_URL", help="An API process, or the proxy before them.")]
ApiKey = Annotated[str, typer.Option("--api-key", envvar="TAILRACE_API_KEY", help="See `tailrace keys new`.")]
DEFAULT_URL = "http://127.0.0.1:8000"

CONNECT_SECONDS = 5.0
READ_SECONDS = 60.0
"""Longer than the silence between two keepalive comments."""
RETRY_SECONDS = 0.5
LONGEST_RETRY_SECONDS = 5.0
GIVE_UP_SECONDS = 120.0
"""How long a stream may stay broken."""
_TRY_AGAIN = frozenset({502, 503, 504})


class _Broken(Exception):
    """The stream broke, but the job goes on; the message says how."""


class Client:
    """Speaks to one URL. Every method raises Failure with one clear line; the API's own words where it answered."""

    def __init__(self, url: str, api_key: str = "") -> None:
        self.url = url.rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            raise Failure(f"not an HTTP URL: {url}")
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else None,
            timeout=httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS),
            # A proxy for the world outside does not lead to this machine.
            trust_env=not _is_loopback(self.url),
        )

    def get(self, path: str) -> Any:
        return self._json(self._call("GET", path))

    def get_text(self, path: str) -> str:
        return self._call("GET", path).text

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return self._json(self._call("POST", path, body))

    def model(self, wanted: str) -> str:
        """`wanted`, or if empty the only model that is served."""
        if wanted:
            return wanted
        served = [model["id"] for model in self.get("/v1/models")["data"]]
        if not served:
            raise Failure(f"no worker at {self.url} serves a model at the moment")
        if len(served) > 1:
            raise Failure(f"choose one of the models with --model: {', '.join(served)}")
        return str(served[0])

    def job(self, job_id: str) -> dict[str, Any]:
        job: dict[str, Any] = self.get(_job(job_id))
        return job

    def submit(self, body: dict[str, Any]) -> str:
        return str(self.post("/v1/jobs", body)["id"])

    def cancel(self, job_id: str) -> None:
        self.post(f"{_job(job_id)}/cancel")

    def follow(self, job_id: str, after: str | None = None) -> Iterator[SseEvent]:
        """The job's native events after `after`, up to and with its `end`, over as many connections as it takes."""
        cursor, pause, broken_at = after, RETRY_SECONDS, None
        while True:
            problem = "the server ended it"
            try:
                for event in self._connection(job_id, cursor):
                    broken_at = None
                    cursor = event.id or cursor
                    pause = event.retry / 1000 if event.retry is not None else RETRY_SECONDS
                    if event.data:
                        yield event
                    if event.name == "end":
                        return
            except (httpx.TransportError, _Broken) as error:
                problem = str(error) or type(error).__name__
            if broken_at is None:
                broken_at = time.monotonic()
                print(f"\n[the stream broke: {problem}; trying again]", file=sys.stderr)
            if time.monotonic() - broken_at > GIVE_UP_SECONDS:
                raise Failure(f"lost the stream of {job_id}: {problem}")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_RETRY_SECONDS)

    def _connection(self, job_id: str, cursor: str | None) -> Iterator[SseEvent]:
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": cursor} if cursor else {})}
        with self._http.stream("GET", f"{_job(job_id)}/events", headers=headers) as response:
            if response.status_code in _TRY_AGAIN:
                raise _Broken(f"HTTP {response.status_code}")
            if response.is_error:
                response.read()
            _check(response)
            for event in sse.events(response.iter_bytes()):
                if event.name == "error":
                    raise Failure(event.json["error"]["message"])
                yield event

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        try:
            response = self._http.request(method, path, json=body)
        except httpx.TransportError as error:
            raise Failure(f"cannot reach {self.url}: {error or type(error).__name__}") from error
        _check(response)
        return response

    def _json(self, response: httpx.Response) -> Any:
        try:
            return response.json()
        except ValueError as error:
            raise Failure(f"what answers at {self.url} is not Tailrace") from error


def _job(job_id: str) -> str:
    return f"/v1/jobs/{quote(job_id, safe='')}"


def _check(response: httpx.Response) -> None:
    if not response.is_error:
        return
    try:
        message = str(response.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):  # not ours: a proxy, or not Tailrace at all
        message = f"HTTP {response.status_code} from {response.url}"
    raise Failure(message)


def _is_loopback(url: str) -> bool:
    host = httpx.URL(url).host
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

"""Every error a client can see, as one tree.

    TailraceError                 status  code (the first is the default; the rest are listed in docs/http.md)
    ├── BadRequest                400     invalid_request, unsupported_parameter, invalid_json, invalid_cursor, ...
    ├── Unauthorized              401     invalid_api_key
    ├── NotFound                  404     not_found, model_not_found, job_not_found, completion_not_found
    ├── Conflict                  409     conflict, job_cancelled, stream_trimmed, stream_expired, ...
    ├── TooLarge                  413     body_too_large
    ├── TooManyRequests           429     queue_full, too_many_generations
    ├── ServerFault               500     internal_error, engine_error, log_lost
    ├── Unavailable               503     redis_unavailable, no_worker, shutting_down, worker_lost
    └── TimedOut                  504     deadline_exceeded, queue_timeout, first_token_timeout, stall_timeout

The wire form is OpenAI's error object. Errors that end a job travel inside its `end` event as the same
object plus `status`, so that whoever reads the log can answer with the right HTTP status.
"""

from typing import Any, ClassVar


class TailraceError(Exception):
    """Base of all errors with a wire form. `retry_after` is in seconds."""

    status: int = 500
    type: ClassVar[str] = "server_error"
    default_code: ClassVar[str] = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.param = param
        self.retry_after = retry_after

    @property
    def final(self) -> bool:
        """Whether the same request again would only meet, or make, the same trouble: a cancelled job is not wanted."""
        return self.status == 409 or self.code in ("engine_error", "deadline_exceeded")

    def to_dict(self) -> dict[str, Any]:
        """OpenAI's error object, without the `error` wrapper."""
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}

    def to_event(self) -> dict[str, Any]:
        """The same object for an `end` event: with the HTTP status a reader should answer."""
        return {**self.to_dict(), "status": self.status}


class BadRequest(TailraceError):
    status = 400
    type = "invalid_request_error"
    default_code = "invalid_request"


class Unauthorized(TailraceError):
    status = 401
    type = "authentication_error"
    default_code = "invalid_api_key"


class NotFound(TailraceError):
    status = 404
    type = "invalid_request_error"
    default_code = "not_found"


class Conflict(TailraceError):
    status = 409
    type = "invalid_request_error"
    default_code = "conflict"


class TooLarge(TailraceError):
    status = 413
    type = "invalid_request_error"
    default_code = "body_too_large"


class TooManyRequests(TailraceError):
    status = 429
    type = "rate_limit_error"
    default_code = "queue_full"


class ServerFault(TailraceError):
    pass


class Unavailable(TailraceError):
    status = 503
    type = "service_unavailable"
    default_code = "redis_unavailable"


class TimedOut(TailraceError):
    status = 504
    type = "timeout_error"
    default_code = "deadline_exceeded"


BY_STATUS: dict[int, type[TailraceError]] = {
    cls.status: cls
    for cls in (
        BadRequest,
        Unauthorized,
        NotFound,
        Conflict,
        TooLarge,
        TooManyRequests,
        ServerFault,
        Unavailable,
        TimedOut,
    )
}


def from_event(error: dict[str, Any]) -> TailraceError:
    """The inverse of `to_event`, for readers whose answer has not begun."""
    status = int(error.get("status") or 500)
    cls = BY_STATUS.get(status) or (BadRequest if status < 500 else ServerFault)
    fault = cls(str(error.get("message")), code=error.get("code"), param=error.get("param"))
    fault.status = status  # an engine's own: 422, 424...
    return fault


def job_not_found(job_id: str) -> NotFound:
    return NotFound(f"No job with id {job_id!r}.", code="job_not_found", param="id")

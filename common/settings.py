"""All settings, with units and defaults. Each is the environment variable `TAILRACE_<NAME>`.

The table in README.md is generated from this file (`python -m cli.settings_table`); a test keeps them equal.
"""

from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

EngineName = Literal["auto", "vllm", "simulated", "openai"]


class Settings(BaseSettings):
    """Read once at start. Durations are in the unit that the name ends with; 0 turns a timeout off."""

    model_config = SettingsConfigDict(env_prefix="TAILRACE_", extra="ignore", frozen=True)

    # Redis
    redis_url: str = Field(
        "redis://127.0.0.1:6379/0",
        description="Control plane: queue, job records, leases, cancel keys. `redis://`, `rediss://`, `unix://`, or `redis+sentinel://host:port,host:port/master/db`.",
    )
    stream_redis_url: str = Field(
        "", description="Stream plane: the event logs. Empty: the same server as `REDIS_URL`."
    )
    namespace: str = Field(
        "tr",
        pattern=r"^[A-Za-z0-9_.-]+$",
        description="Prefix of every key, so that several deployments can share one Redis.",
    )

    # Queue and leases
    max_queue_depth: int = Field(
        10_000, ge=1, description="Waiting jobs per model beyond which a submit gets 429 `queue_full`."
    )
    lease_seconds: float = Field(
        5.0,
        gt=0,
        description="How long a worker's claim holds without being renewed; a crashed worker's jobs go on elsewhere after about this.",
    )
    max_attempts: int = Field(
        3,
        ge=1,
        description="Attempts that may end in a lost worker before the job ends `failed` with `worker_lost`. Hand-overs at a shutdown do not count.",
    )
    retry_backoff_seconds: float = Field(
        1.0,
        ge=0,
        description="Wait before the third attempt; doubles with each further one. The second starts at once.",
    )
    priority_step_seconds: float = Field(
        10.0, gt=0, description="One step of `priority` (-100 to 100) is worth this much waiting time in the queue."
    )

    # Event log and results
    stream_maxlen: int = Field(
        4096,
        ge=64,
        description="Most entries one job's stream may hold. Long answers get more tokens per entry, never a gap.",
    )
    stream_ttl_seconds: float = Field(
        600.0, gt=0, description="How long after its end a job's stream can be resumed event by event."
    )
    result_ttl_seconds: float = Field(
        3600.0, gt=0, description="How long after its end a job's record and result are kept."
    )
    pending_bytes_per_job: int = Field(
        262_144,
        ge=4096,
        description="Bytes of one job a worker holds back while Redis is slow or away before it stops reading the engine.",
    )

    # Timeouts of a job (each can be lowered or raised per request)
    queue_timeout_seconds: float = Field(600.0, ge=0, description="Longest wait in the queue (`queue_timeout`).")
    ttft_timeout_seconds: float = Field(
        300.0, ge=0, description="Longest time from claim to first token (`first_token_timeout`)."
    )
    stall_timeout_seconds: float = Field(
        120.0, ge=0, description="Longest silence between two tokens (`stall_timeout`)."
    )
    total_timeout_seconds: float = Field(
        3600.0,
        ge=0,
        description="Longest time from submit to end (`deadline_exceeded`); per request `deadline_seconds`.",
    )

    # API pod
    host: str = Field(
        "127.0.0.1", description="Address to bind. Anything but loopback needs API keys or `ALLOW_ANONYMOUS`."
    )
    port: int = Field(8000, ge=0, le=65535, description="Port to bind.")
    api_keys: str = Field("", description="`name:sha256hex`, comma separated. See `tailrace keys new`.")
    api_keys_file: Path | None = Field(
        None, description="File with one `name:sha256hex` per line, added to `API_KEYS`."
    )
    allow_anonymous: bool = Field(False, description="Serve without API keys on a non-loopback address.")
    max_body_bytes: int = Field(8_388_608, ge=1024, description="Largest request body and WebSocket message.")
    first_event_wait_seconds: float = Field(
        5.0,
        ge=0,
        description="How long a stream's HTTP status is held back for the first event, so that early failures are real errors.",
    )
    keepalive_seconds: float = Field(
        15.0, gt=0, description="Silence after which an SSE comment or a WebSocket ping is sent."
    )
    send_timeout_seconds: float = Field(
        60.0,
        gt=0,
        description="How long one send to a reader that does not read may block before the connection is closed.",
    )
    presence_ttl_seconds: float = Field(
        5.0,
        gt=0,
        description="How long a dead pod's readers count as attached; after it, workers abort its `cancel` jobs.",
    )
    drain_seconds: float = Field(
        20.0, ge=0, description="Time that open streams (pod) and running jobs (worker) get after SIGTERM."
    )

    # Batches
    batch_max_lines: int = Field(
        5000, ge=1, description="Most lines of a batch; never more than half of `MAX_QUEUE_DEPTH`."
    )
    batch_max_bytes: int = Field(16_777_216, ge=1024, description="Largest body of a batch.")

    # Webhooks
    webhook_secrets: SecretStr = Field(
        SecretStr(""),
        description="`whsec_<base64>`, comma separated; each webhook is signed with all of them. Empty: no webhooks.",
    )
    webhook_url: str = Field(
        "", description="Told of the end of every `continue` job that names no `webhook_url` itself. Empty: nobody."
    )
    webhook_allowed_networks: str = Field(
        "",
        description="CIDRs, comma separated, that webhooks may go to though they are not public, e.g. `10.0.0.0/8`.",
    )
    webhook_timeout_seconds: float = Field(15.0, gt=0, description="Longest wait for a receiver's answer.")
    webhook_max_tries: int = Field(12, ge=1, description="Tries after which a delivery is given up.")
    webhook_retry_seconds: float = Field(
        5.0, gt=0, description="Wait before the second try; triples with each further one, up to an hour."
    )

    # Worker
    engine: EngineName = Field(
        "auto", description="`vllm`, `simulated`, `openai`, or `auto`: `openai` with an upstream URL, else `vllm`."
    )
    model: str = Field(
        "", description="vLLM: path or hub id. openai: model name at the upstream. Empty: `up` prepares a small one."
    )
    served_model_name: str = Field("", description="Id clients use; empty: the model's own name.")
    vllm_args: str = Field(
        "", description="Any arguments of `vllm serve`, e.g. `--max-model-len 8192 --gpu-memory-utilization 0.9`."
    )
    upstream_url: str = Field("", description="openai engine: base URL ending in `/v1`.")
    upstream_api_key: SecretStr = Field(SecretStr(""), description="openai engine: bearer key for the upstream.")
    upstream_slots: int = Field(64, ge=1, description="openai engine: requests at once.")
    engine_stall_seconds: float = Field(
        60.0,
        ge=0,
        description="In-process engines: silence of all running requests together after which the engine counts as hung; its jobs go elsewhere and the worker exits. 0: never.",
    )
    cancel_poll_ms: float = Field(
        25.0, gt=0, description="How often the cancel keys of all running jobs are read, in one MGET."
    )
    worker_metrics_host: str = Field("127.0.0.1", description="Address of a worker's Prometheus metrics.")
    worker_metrics_port: int = Field(0, ge=0, le=65535, description="Port of a worker's Prometheus metrics; 0: none.")

    # Simulated engine
    sim_ttft_ms: float = Field(50.0, ge=0, description="Simulated engine: time to first token.")
    sim_itl_ms: float = Field(20.0, ge=0, description="Simulated engine: time between tokens.")
    sim_jitter: float = Field(0.0, ge=0, le=1, description="Simulated engine: share by which each wait varies.")
    sim_slots: int = Field(64, ge=1, description="Simulated engine: requests at once.")
    sim_prefill_ms_per_token: float = Field(
        0.0, ge=0, description="Simulated engine: added to the first token per prompt word."
    )
    sim_stamp: bool = Field(
        False, description="Simulated engine: append `@<unix seconds>` to each token, to measure added latency."
    )

    # Process
    data_dir: Path = Field(
        Path(".tailrace"), description="Where `tailrace up` keeps Redis data, logs and the prepared model."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Log level.")

    @field_validator("redis_url", "stream_redis_url")
    @classmethod
    def _redis_scheme(cls, value: str) -> str:
        if value and not value.startswith(("redis://", "rediss://", "unix://", "redis+sentinel://")):
            raise ValueError("must start with redis://, rediss://, unix:// or redis+sentinel://")
        if "protocol=" in value:
            raise ValueError("must not choose a protocol: replies are read as RESP2 has them")
        return value

    @cached_property
    def stream_url(self) -> str:
        return self.stream_redis_url or self.redis_url

    @property
    def stream_ttl_ms(self) -> int:
        return int(self.stream_ttl_seconds * 1000)

    @property
    def result_ttl_ms(self) -> int:
        return int(self.result_ttl_seconds * 1000)

    @property
    def lease_ms(self) -> int:
        return int(self.lease_seconds * 1000)


def describe(error: ValidationError) -> str:
    """One line per bad setting, naming the variable and the value."""
    lines = []
    for problem in error.errors():
        name = "TAILRACE_" + "_".join(str(part) for part in problem["loc"]).upper()
        lines.append(f"{name}={problem['input']!r}: {problem['msg']}")
    return "\n".join(lines)

"""`tailrace up`: a whole system on one machine."""

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from cli import checks
from cli.datadir import DataDir
from cli.system import System
from common.settings import EngineName, Settings

Engine = Annotated[
    EngineName, typer.Option(envvar="TAILRACE_ENGINE", help="auto: openai if there is an upstream URL, else vllm.")
]
Model = Annotated[
    str, typer.Option(envvar="TAILRACE_MODEL", help="Path or hub id; for openai the upstream's name. Else a small one.")
]
UpstreamUrl = Annotated[
    str, typer.Option(envvar="TAILRACE_UPSTREAM_URL", help="An OpenAI-compatible server: base URL ending in /v1.")
]
Host = Annotated[str, typer.Option(envvar="TAILRACE_HOST", help="Address to bind.")]
Port = Annotated[int, typer.Option(envvar="TAILRACE_PORT", min=1, max=65535, help="Port of the first API process.")]
Apis = Annotated[int, typer.Option(min=1, help="API processes, on this and the following ports.")]
Workers = Annotated[int, typer.Option(min=1, help="Worker processes. All see the same GPUs.")]
RedisUrl = Annotated[str, typer.Option(envvar="TAILRACE_REDIS_URL", help="Use this Redis; without it, one is started.")]
Folder = Annotated[
    Path, typer.Option(envvar="TAILRACE_DATA_DIR", help="For Redis's data, logs and the prepared small model.")
]


def up(
    engine: Engine = "auto",
    model: Model = "",
    upstream_url: UpstreamUrl = "",
    host: Host = "127.0.0.1",
    port: Port = 8000,
    apis: Apis = 1,
    workers: Workers = 1,
    redis_url: RedisUrl = "",
    data_dir: Folder = Path(".tailrace"),
) -> None:
    """Start everything on this machine: Redis, API processes and workers. Ctrl-C stops it all.

    What has no option here comes from TAILRACE_* variables as always. A process that dies is started again.
    """
    if engine == "auto":
        engine = "openai" if upstream_url else "vllm"
    given: dict[str, Any] = {"redis_url": redis_url} if redis_url else {}
    settings = Settings(
        engine=engine, model=model, upstream_url=upstream_url, host=host, port=port, data_dir=data_dir, **given
    )
    _check(settings, apis, own_redis=not redis_url)
    system = System(settings, DataDir.open(data_dir), apis, workers, own_redis=not redis_url)
    asyncio.run(system.run())


def _check(settings: Settings, apis: int, *, own_redis: bool) -> None:
    """Raises Failure for what is known to go wrong later."""
    for port in range(settings.port, settings.port + apis):
        checks.check_port(settings.host, port)
    if not own_redis:
        checks.check_redis(settings.redis_url)
    if settings.stream_redis_url:
        checks.check_redis(settings.stream_redis_url)
    if settings.engine == "vllm":
        checks.check_vllm()
        if settings.model:
            checks.check_model(settings.model)

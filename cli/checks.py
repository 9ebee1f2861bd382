"""What `tailrace up` can know to be wrong before it starts anything. Each check raises Failure with one line."""

import errno
import os
import socket
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from redis import Redis
from redis.exceptions import RedisError

from cli.failure import Failure
from common.connections import CONNECT_TIMEOUT_SECONDS

HUB_TIMEOUT_SECONDS = 10.0


def check_port(host: str, port: int) -> None:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            # As uvicorn does: connections of an earlier run that linger in TIME_WAIT do not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        advice = "; choose another --port" if error.errno == errno.EADDRINUSE else ""
        raise Failure(f"cannot serve {host} on port {port}: {error.strerror}{advice}") from error


def check_redis(url: str) -> None:
    """One PING to a Redis that somebody else runs."""
    try:
        with Redis.from_url(url, socket_connect_timeout=CONNECT_TIMEOUT_SECONDS, socket_timeout=5.0) as client:
            client.ping()
    except (RedisError, OSError) as error:
        raise Failure(f"Redis at {_without_password(url)} cannot be used: {error}") from error
    except ValueError as error:
        raise Failure(f"not a Redis URL: {_without_password(url)}: {error}") from error


def check_vllm() -> None:
    if find_spec("vllm") is None:
        raise Failure("vLLM is not installed; install it, or use --engine simulated or --upstream-url")


def check_model(model: str) -> None:
    """A folder or file, or a model that the hub has, here or there. vLLM itself would say so only after a minute."""
    if Path(model).expanduser().exists() or "://" in model or os.environ.get("VLLM_USE_MODELSCOPE"):
        return
    if model.startswith(("/", ".", "~")) or model.count("/") > 1:
        raise Failure(f"there is no model at {model}")
    from huggingface_hub import model_info, try_to_load_from_cache
    from huggingface_hub.errors import RepositoryNotFoundError

    if isinstance(try_to_load_from_cache(model, "config.json"), str):
        return
    try:
        model_info(model, timeout=HUB_TIMEOUT_SECONDS)
    except RepositoryNotFoundError as error:
        raise Failure(f"the hub has no model {model}, or shows it only to some (then set HF_TOKEN)") from error
    except Exception as error:  # which one depends on the HTTP library that this version of the hub's client uses
        reason = str(error).partition("\n")[0]
        raise Failure(f"model {model} is not on this machine and the hub cannot be reached: {reason}") from error


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return parts._replace(netloc=f"{parts.username or ''}:***@{parts.netloc.rpartition('@')[2]}").geturl()

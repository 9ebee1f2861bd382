"""compose.yaml, nginx.conf and the Dockerfiles against the code, for machines without a container engine."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from api.server import CLOSE_SECONDS
from common.settings import Settings
from workers.runner import HANDOVER_SECONDS

ROOT = Path(__file__).parents[2]
PREFIX = "TAILRACE_"
IN_IMAGES = ("api", "worker", "worker-cpu")
"""Services that run our code."""


def _services() -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    return services


def _env(service: str) -> dict[str, str]:
    return {name: str(value) for name, value in _services()[service]["environment"].items()}


def _seconds(duration: str) -> int:
    assert duration.endswith("s")
    return int(duration[:-1])


def _directives() -> str:
    """nginx.conf without comments."""
    return re.sub(r"#.*", "", (ROOT / "deploy/nginx.conf").read_text())


def test_compose_has_the_services() -> None:
    assert set(_services()) == {"redis", "api", "worker", "worker-cpu", "nginx"}


@pytest.mark.parametrize("service", IN_IMAGES)
def test_every_variable_it_sets_is_a_setting(service: str) -> None:
    ours = {name.removeprefix(PREFIX).lower() for name in _env(service) if name.startswith(PREFIX)}
    assert ours <= set(Settings.model_fields)


@pytest.mark.parametrize("service", IN_IMAGES)
def test_its_values_are_valid_settings(service: str) -> None:
    # What is left to the operator (${...}) has no value here.
    given = {name.removeprefix(PREFIX).lower(): value for name, value in _env(service).items() if "${" not in value}
    Settings.model_validate({name: value for name, value in given.items() if name in Settings.model_fields})


@pytest.mark.parametrize("dockerfile", sorted((ROOT / "deploy").glob("*.Dockerfile")), ids=lambda path: path.name)
def test_every_variable_a_dockerfile_sets_is_a_setting(dockerfile: Path) -> None:
    names = {name.lower() for name in re.findall(rf"{PREFIX}([A-Z_]+)=", dockerfile.read_text())}
    assert names <= set(Settings.model_fields)


@pytest.mark.parametrize("service", IN_IMAGES)
def test_what_it_builds_exists(service: str) -> None:
    build = _services()[service]["build"]
    dockerfile = ROOT / build["context"] / build["dockerfile"]
    copied = re.findall(r"^COPY (.+) \S+$", dockerfile.read_text(), re.MULTILINE)
    assert copied, f"{dockerfile} copies nothing"
    assert [source for line in copied for source in line.split() if not (ROOT / source).exists()] == []


@pytest.mark.parametrize("service", IN_IMAGES)
def test_its_command_gets_the_signal(service: str) -> None:
    """A shell between Docker and the process would not pass SIGTERM on, and nothing would drain."""
    text = (ROOT / _services()[service]["build"]["dockerfile"]).read_text()
    assert re.findall(r"^CMD (.+)$", text, re.MULTILINE) == [f'["tailrace", "{service.removesuffix("-cpu")}"]']


@pytest.mark.parametrize("service", IN_IMAGES)
def test_it_does_not_run_as_root(service: str) -> None:
    text = (ROOT / _services()[service]["build"]["dockerfile"]).read_text()
    assert re.findall(r"^USER (.+)$", text, re.MULTILINE)[-1:] == ["tailrace"]


def test_what_it_mounts_exists() -> None:
    mounts = [mount for service in _services().values() for mount in service.get("volumes", ())]
    files = [mount.split(":")[0] for mount in mounts if mount.startswith(".")]
    assert files == ["./deploy/nginx.conf"]
    assert (ROOT / files[0]).is_file()


@pytest.mark.parametrize("service", IN_IMAGES)
def test_it_is_not_killed_while_it_drains(service: str) -> None:
    drain = float(_env(service).get("TAILRACE_DRAIN_SECONDS", Settings.model_fields["drain_seconds"].default))
    after = CLOSE_SECONDS if service == "api" else HANDOVER_SECONDS
    assert _seconds(_services()[service]["stop_grace_period"]) > drain + after


def test_api_scales_and_needs_keys() -> None:
    api = _services()["api"]
    assert "ports" not in api
    assert "container_name" not in api
    assert _env("api")["TAILRACE_API_KEYS"].startswith("${TAILRACE_API_KEYS:?")
    assert "/health/ready" in " ".join(api["healthcheck"]["test"])


def test_gpu_is_reserved() -> None:
    (device,) = _services()["worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]


def test_redis_keeps_what_it_is_given() -> None:
    command = " ".join(_services()["redis"]["command"])
    assert "--appendonly yes" in command
    assert "--maxmemory-policy noeviction" in command
    assert "--client-output-buffer-limit normal" in command


@pytest.mark.parametrize(
    "directive",
    [
        "proxy_buffering off;",
        "proxy_http_version 1.1;",
        "proxy_set_header Upgrade $http_upgrade;",
        "proxy_set_header Connection $connection_upgrade;",
        "resolver 127.0.0.11",
    ],
)
def test_nginx_streams_and_upgrades(directive: str) -> None:
    assert directive in _directives()


def test_nginx_never_repeats_a_post() -> None:
    assert "proxy_next_upstream " in _directives()
    assert "non_idempotent" not in _directives()


def test_nginx_looks_pods_up_again() -> None:
    """Only a name in a variable is resolved while nginx runs, so that `--scale api=N` is seen."""
    (variable,) = re.findall(r"proxy_pass http://\$(\w+):8000;", _directives())
    assert f"set ${variable} api;" in _directives()


@pytest.mark.parametrize(
    ("directive", "setting"),
    [("proxy_read_timeout", "total_timeout_seconds"), ("proxy_send_timeout", "send_timeout_seconds")],
)
def test_nginx_is_more_patient_than_the_pod(directive: str, setting: str) -> None:
    (seconds,) = re.findall(rf"\s{directive} (\d+)s;", _directives())
    assert int(seconds) > Settings.model_fields[setting].default


def test_nginx_takes_every_body_that_a_pod_takes() -> None:
    (megabytes,) = re.findall(r"client_max_body_size (\d+)m;", _directives())
    assert int(megabytes) << 20 >= Settings.model_fields["max_body_bytes"].default


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_nginx_accepts_its_configuration() -> None:
    run = subprocess.run(["nginx", "-t", "-c", ROOT / "deploy/nginx.conf"], capture_output=True, text=True)
    assert "syntax is ok" in run.stderr, run.stderr


def test_readme_has_every_setting() -> None:
    command = [sys.executable, "-m", "cli.settings_table", "--check", "README.md"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr

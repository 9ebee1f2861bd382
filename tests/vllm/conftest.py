"""One real engine on the small real model, shared by all tests of this folder."""

import shlex
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from common.settings import Settings
from tests.vllm.answers import Run
from workers.engines import smallmodel
from workers.engines.vllm import VllmEngine

MODELS = Path(__file__).parents[2] / ".tailrace" / "models"

HERMES = Path(__file__).with_name("hermes.jinja")

# float32, so that a continued answer equals an undisturbed one to the last bit of every argmax. The parser of tool
# calls is chosen by the template.
ARGS = f"--dtype float32 --chat-template {shlex.quote(str(HERMES))} --enable-prompt-tokens-details"


@pytest.fixture(scope="session")
def small_model() -> Path:
    return smallmodel.prepare(MODELS / smallmodel.FOLDER_NAME)


@pytest.fixture(scope="session")
def engine_settings(small_model: Path) -> Callable[..., Settings]:
    def build(**changes: Any) -> Settings:
        return Settings(**{"model": str(small_model), "vllm_args": ARGS, **changes})

    return build


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine(engine_settings: Callable[..., Settings]) -> AsyncIterator[VllmEngine]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HF_HUB_OFFLINE", "1")
        environment.setenv("VLLM_NO_USAGE_STATS", "1")
        engine = VllmEngine(engine_settings())
        await engine.start()
        yield engine
        await engine.stop()


@pytest.fixture
def run(engine: VllmEngine) -> Run:
    return Run(engine)

"""Sources of tokens. `base` is the contract; one module or package per engine; this file chooses."""

from common.settings import Settings
from workers.engines.base import Engine


def make_engine(settings: Settings) -> Engine:
    """The engine that the settings name. Imports only that one: vLLM takes seconds to import."""
    name = settings.engine
    if name == "auto":
        name = "openai" if settings.upstream_url else "vllm"
    if name == "simulated":
        from workers.engines.simulated import SimulatedEngine

        return SimulatedEngine(settings)
    if name == "openai":
        from workers.engines.openai import OpenAIEngine

        return OpenAIEngine(settings)
    from workers.engines.vllm import VllmEngine

    return VllmEngine(settings)

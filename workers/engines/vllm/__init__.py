"""The vLLM engine: in-process `AsyncLLM` with vLLM's own OpenAI serving layer on top.

    engine.py        VllmEngine, the Engine that a worker drives
    setup.py         arguments of `vllm serve` -> AsyncLLM and the serving objects
    parsers.py       which of vLLM's parsers reads the model's tool calls and thoughts
    client.py        what the serving layer sees instead of AsyncLLM, one per request; records token ids
    continuation.py  replays the token ids of an earlier attempt, then goes on after them
    chunks.py        the serving layer's SSE chunks -> canonical events
    delivered.py     drops from those events what readers already have
    errors.py        vLLM's errors -> EngineRefused, EngineFailed, EngineDied
    ignored.py       refuses what vLLM would ignore without a word

Importing this package is cheap; vLLM itself is imported by `VllmEngine.start`.
"""

from workers.engines.vllm.engine import VllmEngine

__all__ = ["VllmEngine"]

"""All scenarios, in the order in which they run and are reported."""

from bench.scenario import Scenario
from bench.scenarios.abandoned import ABANDONED
from bench.scenarios.cancel import CANCEL, LEAVE_EARLY
from bench.scenarios.first_token import FIRST_TOKEN
from bench.scenarios.load import GROWTH, LOAD_30, LOAD_300, SCALING
from bench.scenarios.memory import MEMORY
from bench.scenarios.readers import ATTACHED_5000, FROZEN_READERS
from bench.scenarios.surfaces import SURFACES
from bench.scenarios.vllm import VLLM

SCENARIOS: tuple[Scenario, ...] = (
    FIRST_TOKEN,
    LOAD_300,
    LOAD_30,
    CANCEL,
    LEAVE_EARLY,
    ABANDONED,
    GROWTH,
    ATTACHED_5000,
    FROZEN_READERS,
    MEMORY,
    SURFACES,
    SCALING,
    VLLM,
)

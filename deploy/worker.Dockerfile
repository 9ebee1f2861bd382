# One GPU worker: vLLM in process.
# Not run where it was written (no container engine, no GPU); checked by tests/deploy.
#
#   docker build -f deploy/worker.Dockerfile -t tailrace-worker .
#
# Why vLLM's own image and not python:3.11-slim with `pip install vllm==0.32.0`: the wheel brings CUDA's runtime
# libraries, but Triton and FlashInfer compile kernels while the engine runs and need a C compiler and nvcc, which
# the image has in the versions that vLLM was built and tested with.

FROM vllm/vllm-openai:v0.32.0

# Before the COPYs, because the image's workdir holds files of its own.
WORKDIR /app
# The image's vLLM, torch and everything below them stay as they are; --no-deps touches only what is listed.
# api.txt has the versions that Tailrace was tested with beside vLLM 0.32.0 (they are a part of requirements/cpu.txt).
COPY requirements/api.txt requirements/api.txt
RUN uv pip install --system --no-cache --no-deps -r requirements/api.txt

COPY pyproject.toml README.md ./
COPY api api
COPY cli cli
COPY common common
COPY workers workers
# Installed, not only on the path: vLLM finds the plugin that ends its processes with the worker by its entry point.
RUN uv pip install --system --no-cache --no-deps .

# Weights and compile caches are in one folder, to be mounted as a volume.
RUN useradd --create-home --uid 10001 tailrace && mkdir -p /models && chown tailrace /models
ENV HF_HOME=/models/hub VLLM_CACHE_ROOT=/models/vllm PYTHONUNBUFFERED=1
USER tailrace
WORKDIR /home/tailrace

STOPSIGNAL SIGTERM
# The image's entry point is vLLM's own server.
ENTRYPOINT []
CMD ["tailrace", "worker"]

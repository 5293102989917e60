# `make` lists the targets. Everything runs in .venv, which `make venv` makes and keeps up to date.

PYTHON ?= python3
WORKERS ?= 2

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# The pins hold for the packages and for the tools that build them: pip up to 25 reads the first
# name for both, later ones the second for the builds.
PINNED := PIP_CONSTRAINT=$(CURDIR)/constraints.txt PIP_BUILD_CONSTRAINT=$(CURDIR)/constraints.txt

# The tests' tensors are tiny: one thread a worker is faster than workers that fight for cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest

.DEFAULT_GOAL := help
.PHONY: help venv run test test-long test-gpu check format readme bench dist clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(STAMP)  ## make .venv and install the package with its development tools

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "ocar needs Python 3.11 or newer and '$(PYTHON)' is not; try: make venv PYTHON=python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PINNED) $(BIN)/python -m pip install --quiet -e '.[dev]'
	@touch $@

run: venv  ## ER and OCAR on digits: a table and a picture, in under two minutes
	$(BIN)/ocar demo

test: venv  ## run the fast tests (OCAR_DATA names the folder of real data sets, if there is one)
	$(PYTEST) -n $(WORKERS)

test-long: venv  ## run the tests that take minutes
	$(PYTEST) -n $(WORKERS) -m long --timeout=3600

test-gpu: venv  ## run the tests that need a CUDA device
	$(PYTEST) -m gpu

check: venv  ## lint, formatting, types, import layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: venv  ## format the code and mend what ruff can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

readme: venv  ## make the README's tables from results/
	$(BIN)/ocar show results --markdown --into README.md

bench: venv  ## measure the speed, as ratios: some minutes on a CPU
	$(BIN)/ocar bench

dist: venv  ## build sdist and wheel, and try the wheel in an empty environment
	rm -rf dist
	$(PINNED) $(BIN)/python -m build --outdir dist
	@tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && set -ex && \
		$(PYTHON) -m venv "$$tmp/venv" && \
		$(PINNED) "$$tmp/venv/bin/python" -m pip install --quiet dist/*.whl && \
		cp .ci/smoke.py "$$tmp" && cd "$$tmp" && venv/bin/python smoke.py

clean:  ## remove what was built, .venv included
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -prune -exec rm -rf {} +

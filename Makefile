# `make` lists the targets. Everything runs in .venv: `make venv` installs what the commands of the README
# need, `make dev` what tests, checks and documentation need too. Both come by themselves where they are needed.

PYTHON ?= python3
WORKERS ?= 2
UV ?= uv

# Of `make fuzz` and `make fuzz-guided`: inputs for each reader, what decides them, which readers (all of them), and the file
# to add the counts to (none).
COUNT ?= 100000
SEED ?= 0
TARGETS ?=
SAVE ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev

# The pins hold for the packages and for the tools that build them: pip up to 25 reads the first
# name for both, later ones the second for the builds.
PINNED := PIP_CONSTRAINT=$(CURDIR)/constraints.txt PIP_BUILD_CONSTRAINT=$(CURDIR)/constraints.txt

# Where torch comes from, if not from where pip looks: PyTorch's page on installing it names the index of
# its CPU builds, which are without the gigabytes of CUDA.
TORCH_INDEX ?=

# Avalanche and what it imports, in a folder of its own: one of these is under the LGPL, and with all
# that it asks for there would be a dozen solvers and a second array library.
AVALANCHE := avalanche-lib dill gdown GPUtil lightning-utilities psutil pytorchcv qpsolvers \
	torchmetrics wandb xxhash pydantic pydantic_core typing-inspection annotated-types

LOCK_TITLE := \# Hashes of the files that CI installs, all but torch; see CONTRIBUTING.md. Written by `make lock`.

# The tests' tensors are tiny: one thread a worker is faster than workers that fight for cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest

.DEFAULT_GOAL := help
.PHONY: help venv dev run locked lock test coverage test-long test-sweep test-kernels test-all test-avalanche test-gpu check fuzz fuzz-guided format readme docs browser bench dist clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(STAMP)  ## make .venv and install the package with what its commands need

dev: $(DEV_STAMP)  ## the same, with the tools for tests, checks and documentation

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "ocar needs Python 3.11 or newer and '$(PYTHON)' is not; try: make venv PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(if $(TORCH_INDEX),$(PINNED) $@ -m pip install --quiet --index-url $(TORCH_INDEX) torch)

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(PINNED) $(BIN)/python -m pip install --quiet -e '.[demo]'
	@touch $@

$(DEV_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(PINNED) $(BIN)/python -m pip install --quiet -e '.[dev]'
	@touch $(STAMP) $@

locked: | $(BIN)/python  ## as dev, by the hashes of requirements.lock, but for torch
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps -r requirements.lock
	$(PINNED) $(BIN)/python -m pip install --quiet torch
	$(PINNED) $(BIN)/python -m pip install --quiet --no-deps -e .
	$(BIN)/python -m pip check
	@touch $(STAMP) $(DEV_STAMP)

lock:  ## write requirements.lock anew from pyproject.toml and constraints.txt; needs uv
	$(UV) pip compile --quiet pyproject.toml --extra dev --constraint constraints.txt \
		--python $(BIN)/python --generate-hashes --no-emit-package torch \
		--no-header --no-annotate --upgrade --output-file requirements.lock
	{ echo '$(LOCK_TITLE)'; cat requirements.lock; } > requirements.lock.new
	mv requirements.lock.new requirements.lock

run: venv  ## ER and OCAR on digits: a table and a report, in half a minute
	$(BIN)/ocar demo

test: dev  ## run the fast tests (OCAR_DATA names the folder of real data sets, if there is one)
	$(PYTEST) -n $(WORKERS)

coverage: dev  ## the same, and how much of the code they run: build/coverage/index.html
	$(PYTEST) -n $(WORKERS) --cov --cov-report=term:skip-covered --cov-report=html:build/coverage

test-long: dev  ## run the tests that take long
	$(PYTEST) -n $(WORKERS) --dist=loadfile -m long --timeout=3600

test-sweep: dev  ## try every fault, bad batch and model, and many kills; hours, so that CI has samples only
	$(PYTEST) -n $(WORKERS) -m sweep --timeout=7200

test-kernels: dev  ## run the kernels of a GPU on the CPU, by Triton's interpreter
	TRITON_INTERPRET=1 $(PYTEST) -n $(WORKERS) tests/accel

build/avalanche: constraints.txt | dev
	rm -rf $@
	$(PINNED) $(BIN)/python -m pip install --quiet --no-deps --target $@ $(AVALANCHE)

test-avalanche: dev build/avalanche  ## install Avalanche into build/ and run the tests that need it
	PYTHONPATH=build/avalanche $(PYTEST) tests/integrations tests/docs/test_docs_code.py \
		-k "avalanche or drop-in"

test-all: test-long test-kernels test-avalanche  ## run what `make test` leaves out, but for a GPU

test-gpu: dev  ## run the tests that need a CUDA device
	$(PYTEST) -m gpu

check: dev  ## lint, formatting, types, import layers, architecture, licences, known vulnerabilities
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tools/architecture.py
	$(BIN)/python tools/licences.py
	$(BIN)/python tools/audit.py

fuzz: dev  ## feed spoiled files to every reader: COUNT=100000 SEED=0 TARGETS="zip idx" SAVE=FILE
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m fuzz $(TARGETS) --count $(COUNT) --seed $(SEED) \
		$(if $(SAVE),--save $(SAVE))

build/atheris: | dev
	$(BIN)/python -m pip install --quiet --no-deps --target $@ atheris==3.0.0

fuzz-guided: dev build/atheris  ## the same under atheris, built with Clang, whose inputs follow the code
	OMP_NUM_THREADS=1 PYTHONPATH=tests:build/atheris $(BIN)/python -m fuzz.guided $(TARGETS) \
		--count $(COUNT) --seed $(SEED) $(if $(SAVE),--save $(SAVE))

format: dev  ## format the code and mend what ruff can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

README_METHODS := er er-ace er-iid lpr ocar ocar-ace ocar-slow

readme: venv  ## make the README's tables from results/
	$(BIN)/ocar show results/split-cifar100 --usual --methods $(README_METHODS) --markdown --into README.md

docs: dev  ## build the documentation into build/site, and look for dead links in it
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -d build/doctrees docs build/site
	$(BIN)/python docs/_tools/check_site.py build/site

browser: dev  ## a Chromium for the tests of the HTML report, if the system has none
	@for name in chromium chromium-browser google-chrome; do command -v $$name && exit; done; \
		$(BIN)/playwright install chromium || \
		echo "No Chromium could be installed: the tests that need one skip."

bench: dev  ## measure the speed, as ratios: some minutes on a CPU
	$(BIN)/python -m benchmarks

dist: dev  ## build sdist and wheel, and try the wheel in an empty environment
	rm -rf dist
	$(PINNED) $(BIN)/python -m build --outdir dist
	@tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && set -ex && \
		$(PYTHON) -m venv "$$tmp/venv" && \
		$(PINNED) "$$tmp/venv/bin/python" -m pip install --quiet dist/*.whl && \
		cp .ci/smoke.py "$$tmp" && cd "$$tmp" && venv/bin/python smoke.py

clean:  ## remove what was built, .venv included
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache docs/_generated docs/methods
	find src tests -name __pycache__ -prune -exec rm -rf {} +

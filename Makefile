# memcore: the commands of a checkout. `make help` lists them.
#
# Each target does its own set-up: needed are Python >= 3.11, make and a package index. All paths are relative, so that
# a checkout may lie under a path with spaces.

PYTHON ?= python3
# Test processes. More than the cores only compiles the same kernels more often.
WORKERS ?= 2
# More arguments for the program that the target runs: make test ARGS="-k gate", make replay ARGS="--limit 50"
ARGS ?=

BIN := .venv/bin
# One file stays in one process, since its tests share fixtures.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

# Numba's cache looks at the file a kernel is in, not at the helpers it calls from other files, so an edited helper
# would go unseen. Here each state of the sources has a cache of its own.
export NUMBA_CACHE_DIR := $(CURDIR)/.venv/numba/$(shell cat kernels/memcore_kernels/*.py | cksum | cut -d ' ' -f 1)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup replay test lint types bench peers graphs wheel-check lock clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F '|' '{ printf "%-20s %s\n", $$1, $$2 }'

setup: .venv/installed ## Make .venv: the pins of requirements.lock, and memcore from this checkout

.venv/pins: requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "memcore needs Python >= 3.11, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1 | tail -n 1); name another: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@touch $@

# Installed again when what its metadata is made of changes. The build backend is one of the pins.
.venv/installed: .venv/pins pyproject.toml memcore/__init__.py
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "hnswlib>=0.8" >/dev/null 2>&1 || echo "hnswlib, an extra that needs a C++ compiler, could not be installed: its tests are skipped"
	@touch $@

replay: setup ## Play the shipped trace through memcore and report how well and how fast it remembered
	$(BIN)/memcore replay datasets/ops_agent.jsonl $(ARGS)

# What test_cache.py tests is files, in processes of its own: for 90 s, with bounds checks and without.
test: setup ## Run the whole suite, then the kernels' tests as plain Python and with bounds checks
	$(PYTEST) $(ARGS)
	NUMBA_DISABLE_JIT=1 $(PYTEST) tests/kernels
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR="$(NUMBA_CACHE_DIR)-boundscheck" $(PYTEST) tests/kernels \
		--ignore=tests/kernels/test_cache.py

lint: setup ## Check style and format (ruff)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup ## Check types (mypy, strict)
	$(BIN)/mypy

# Some machines set OPENBLAS_CORETYPE and OPENBLAS_L2_SIZE for old OpenBLAS builds; they halve NumPy's speed, which
# memcore is compared with. So both are unset here, and nowhere else.
UNSET := env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE
bench: setup peers graphs ## Run all benchmarks, memcore beside others too; every round is kept in bench/results
	$(UNSET) $(BIN)/python -m pytest bench \
		--benchmark-storage=file://bench/results --benchmark-autosave --benchmark-save-data $(ARGS)

.venv/peers/installed: .venv/installed bench/peers.txt
	$(PYTHON) -m venv --clear .venv/peers
	.venv/peers/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.lock -r bench/peers.txt
	.venv/peers/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

peers: .venv/peers/installed ## Measure memcore beside NumPy, FAISS, hnswlib, usearch, chromadb and lancedb: one table
	$(UNSET) .venv/peers/bin/python -m bench.peers

graphs: .venv/peers/installed ## Measure what graphs find, and what recall costs as a scope grows to 1.6 million rows
	$(UNSET) .venv/peers/bin/python -m bench.graphs

wheel-check: setup ## Build the wheel, install it in a clean environment and replay the shipped trace from elsewhere
	$(BIN)/python tests/packaging/wheel_check.py

# One set of versions for all Pythons and systems, resolved for the oldest Python from the public index alone: uv reads
# no pip configuration. It runs in an environment of its own, since it is no dependency.
lock: ## Write requirements.lock anew from pyproject.toml, with the newest versions that fit together
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))'
	@set -e; tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; \
	$(PYTHON) -m venv "$$tmp/venv"; \
	"$$tmp/venv/bin/python" -m pip install --quiet --disable-pip-version-check uv; \
	{ echo "# The exact versions that memcore is developed and tested with: what pyproject.toml asks for at run time"; \
	  echo "# and in its extra 'dev', and all that these pull in. Made by 'make lock'; do not edit by hand."; \
	  echo "# Install: pip install -r requirements.lock"; } > "$$tmp/lock"; \
	"$$tmp/venv/bin/uv" pip compile pyproject.toml --extra dev --no-config --universal --python-version 3.11 \
		--fork-strategy fewest --no-header --no-emit-index-url --no-emit-find-links --annotation-style line --quiet \
		>> "$$tmp/lock"; \
	cp "$$tmp/lock" requirements.lock

clean: ## Remove .venv and all that tools leave behind; bench/results stays
	rm -rf .venv dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find memcore kernels tests bench datasets -name __pycache__ -prune -exec rm -rf {} +

# pointsman: every target sets up what it needs first (see tools/setup.sh) and says what it does.
# `make demo` shows the product, `make test` runs all tests.

VENV := .venv
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.set-up
BUILD_INPUTS := pyproject.toml setup.py constraints.txt tools/setup.sh $(wildcard sidecar/scan*.c sidecar/scan*.h)
STUBS := .types/stubs/.made
PACKAGES := router xds otel sidecar
FUZZ_SECONDS ?= 60
SEED ?= 1,2,3
MINUTES ?= 10

.PHONY: setup demo test test-unit test-envoy test-differential check chaos bench bench-scale fuzz fuzz-scan wheel clean

setup: $(STAMP) xds/envoy_api.binpb

$(STAMP): $(BUILD_INPUTS)
	@sh tools/setup.sh
	@touch $@

# git clean removes it while the virtual environment stays: build it again
xds/envoy_api.binpb: | $(STAMP)
	@sh tools/setup.sh

$(STUBS): xds/envoy_api.binpb setup.py tools/make_stubs.py
	@$(PYTHON) tools/make_stubs.py
	@touch $@

demo: setup
	@$(VENV)/bin/pointsman demo

test: setup
	@$(PYTHON) -m pytest

test-unit: setup
	@$(PYTHON) -m pytest -m "not envoy and not fuzz"

test-envoy: setup
	@$(PYTHON) -m pytest -m envoy

test-differential: setup
	@$(PYTHON) -m pytest tests/differential

check: setup $(STUBS)
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m mypy
	@$(VENV)/bin/lint-imports
	@$(PYTHON) -m pytest -q tests/contracts

chaos: setup
	@$(PYTHON) tests/chaos/run.py --seeds $(SEED) --minutes $(MINUTES)

bench-scale: setup
	@$(PYTHON) benchmarks/scale.py --write

bench: setup
	@$(PYTHON) benchmarks/run.py

fuzz-scan: setup
	@FUZZ_SECONDS=$(FUZZ_SECONDS) $(PYTHON) -m pytest -q -m fuzz tests/scan

# the five fuzz targets, an hour in all by default
fuzz: setup
	@FUZZ_SECONDS=$${FUZZ_SECONDS:-720} $(PYTHON) -m pytest -q -m fuzz

wheel: setup
	@$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir dist .

clean:
	rm -rf $(VENV) .types/stubs build dist xds/envoy_api.binpb sidecar/libpmscan.so tests/scan/bin

# Two commands do everything: `make run` (the main job) and `make test`. Both set up what they need in .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Where there is a C++ compiler, kernels that do not compile are a failure; elsewhere the package works without them.
export SHORTCAPS_REQUIRE_NATIVE := $(if $(shell command -v $${CXX:-c++}),1,0)

.PHONY: run test test-slow lint check sanitize fuzz audit format clean

$(READY): pyproject.toml setup.py constraints.txt $(wildcard src/shortcaps/kernels/*.cpp src/shortcaps/kernels/*.h)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,all]'
	touch $(READY)

# Fetches MNIST, trains the baseline network with shortcuts and fuzzy routing, tests it once, writes a report.
run: $(READY)
	$(BIN)/shortcaps train --out runs/mnist-$$(date +%Y%m%d-%H%M%S)

test: lint check

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy

check: $(READY)
	$(BIN)/pytest -n 2 -m 'not slow' --durations 10

# What takes ten seconds or more each: compilers, sanitizers, several processes, peak memory.
test-slow: $(READY)
	$(BIN)/pytest -n 2 -m slow --durations 10

# The kernels' own test program as it is shipped, for every instruction set, under sanitizers: some minutes.
sanitize: $(READY)
	SHORTCAPS_SANITIZE_ALL=1 $(BIN)/pytest tests/kernels --timeout 900

# Every parser on damaged input, for ten minutes in all; `make test` has a few seconds of the same.
fuzz: $(READY)
	SHORTCAPS_FUZZ_SECONDS=$${SHORTCAPS_FUZZ_SECONDS:-600} $(BIN)/pytest -n 0 --timeout 0 tests/fuzz

# The pinned versions against published advisories; needs the internet. Strict: a package that cannot be looked up is a failure.
audit: $(READY)
	$(BIN)/pip install --quiet pip-audit
	$(BIN)/pip-audit --strict --requirement constraints.txt --no-deps --disable-pip

format: $(READY)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

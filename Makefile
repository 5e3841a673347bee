# Two commands do everything: `make run` (the main job) and `make test`. Both set up what they need in .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TRAINS := $(VENV)/.trains
# With byte code: where PYTHONDONTWRITEBYTECODE is set, every process would otherwise compile all of PyTorch anew, some seconds each.
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
SOURCES := pyproject.toml setup.py constraints.txt $(wildcard src/shortcaps/kernels/*.cpp src/shortcaps/kernels/*.h)
# Where there is a C++ compiler, kernels that do not compile are a failure; elsewhere the package works without them.
export SHORTCAPS_REQUIRE_NATIVE := $(if $(shell command -v $${CXX:-c++}),1,0)

.PHONY: run test test-slow lint check docs sanitize fuzz audit format clean

# What training needs, and no more: `make run` is somebody's first contact with the package.
$(TRAINS): $(SOURCES)
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[train]'
	touch $(TRAINS)

$(READY): $(SOURCES)
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[dev,all]'
	touch $(READY) $(TRAINS)

# Fetches MNIST, trains the baseline network with shortcuts and fuzzy routing, tests it once, writes a report.
run: $(TRAINS)
	$(BIN)/shortcaps train --out runs/mnist-$$(date +%Y%m%d-%H%M%S)

test: lint check

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy

check: $(READY)
	$(BIN)/pytest -n 2 -m 'not slow' --durations 10

# The documentation as a site in build/docs; a link that leads nowhere, or a page that nobody links to, is a failure. The notebooks are run for it.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(BIN)/mkdocs build --strict --quiet

# By name, and not as an extra of the package, which would be built again for it.
$(VENV)/.docs: $(READY)
	$(BIN)/pip install --quiet --constraint constraints.txt $$($(BIN)/python -c "import tomllib; \
	print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['docs'])")
	touch $@

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

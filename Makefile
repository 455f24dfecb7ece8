# Every target makes and keeps the virtual environment it needs. Nothing has to be there before but
# Python >= 3.11 with pip and a C++20 compiler; cmake and ninja come from the package index.
#
#   make demo PYTHON=python3.12        another interpreter (for a new .venv)
#   make demo ARGS="--steps 100"       arguments for `farstep train`
#   make test ARGS="-k wire -x"        arguments for pytest
#   make bench BENCH=allreduce         the benchmarks whose name contains it
#   make fuzz ARGS="--seconds 3600"    an hour for each target

PYTHON ?= python3
# make presets CXX to g++, which need not be there; c++ is whichever compiler the system prefers.
ifeq ($(origin CXX),default)
CXX := c++
endif
ARGS   ?=
BENCH  ?=

VENV := .venv
BIN  := $(VENV)/bin
PIP  := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet
SAY  := @printf '\033[1m%s\033[0m\n'

NATIVE  := $(shell find native CMakeLists.txt -type f -not -path '*/.*')
STAMP   := $(VENV)/.stamp
READY   := $(STAMP)/dev

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-slow fuzz lint bench docs wheel clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(STAMP)/native ## train a small model over two sites, with one path cut on the way
	$(BIN)/farstep train $(ARGS)

test: $(READY) ## run the tests (under ten minutes on two cores)
	$(BIN)/python -m pytest $(ARGS)

test-slow: $(READY) ## run the longer suites: many seeds, the whole demo, network namespaces, the wheel
	$(BIN)/python -m pytest -m 'slow or netns' --timeout 900 $(ARGS)

test-soak: $(READY) ## hurt whole jobs hundreds of times; most of an hour
	$(BIN)/python -m pytest -m soak --timeout 3600 $(ARGS)

fuzz: $(READY) ## look for packets that break something, ten minutes a target; ARGS="--seconds 3600" for longer
	$(BIN)/python tools/fuzz.py $(ARGS)

lint: $(READY) ## check style, types, what imports what, and tidiness
	@failed=; for check in "ruff check ." "ruff format --check ." "lint-imports --no-cache" mypy "python tools/tidy.py"; do \
	  echo "$$check"; $(BIN)/$$check || failed="$$failed, $$check"; \
	done; test -z "$$failed" || { echo "error: not clean:$${failed#,}" >&2; exit 1; }

bench: $(READY) ## measure, against other transports in the same run; BENCH=allreduce for one
	@failed=; for script in $(sort $(wildcard benchmarks/bench_*$(BENCH)*.py)); do \
	  printf '\n==== %s\n' "$$script"; $(BIN)/python "$$script" $(ARGS) || failed="$$failed $$script"; \
	done; $(BIN)/python -m pytest -p no:randomly benchmarks/micro.py --benchmark-only -k "$(BENCH)" || test $$? -eq 5 || failed="$$failed micro"; \
	test -z "$$failed" || { echo "error: failed:$$failed" >&2; exit 1; }

docs: $(READY) ## build the documentation into docs/_build/html
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

wheel: $(STAMP)/venv ## build a wheel into dist/, in an environment of its own
	rm -rf dist/*.whl
	$(PIP) wheel --no-deps --config-settings build-dir=build/isolated --wheel-dir dist .
	@ls dist/*.whl

clean: ## remove everything that was built, the environment too
	rm -rf $(VENV) build dist docs/_build src/farstep/_native.pyi
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ---- the environment: one stamp per layer, each made again when what it is made from has changed ----

$(STAMP)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: farstep needs Python 3.11 or newer; $(PYTHON) is `$(PYTHON) -V 2>&1`. Try: make PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || { printf '\033[1m%s\033[0m\n' 'Creating $(VENV)'; $(PYTHON) -m venv $(VENV); }
	@mkdir -p $(STAMP) && touch $@

# torch first, by the version in constraints.txt: asked for as somebody's dependency it could come newer.
$(STAMP)/torch: $(STAMP)/venv constraints.txt
	$(SAY) 'Installing torch (the longest part)'
	@$(PIP) install -c constraints.txt torch
	@touch $@

$(STAMP)/train: $(STAMP)/torch pyproject.toml constraints.txt
	$(SAY) 'Installing what farstep runs and is built with'
	@$(BIN)/python tools/requirements.py build run train sim control > $(STAMP)/train.txt
	@$(PIP) install -c constraints.txt -r $(STAMP)/train.txt
	@touch $@

$(STAMP)/native: $(STAMP)/train pyproject.toml $(NATIVE)
	@command -v $(firstword $(CXX)) > /dev/null || \
	  { echo "error: no C++ compiler: $(CXX) is not on PATH. Install g++ or clang++, or name one with CXX=..." >&2; exit 1; }
	$(SAY) 'Compiling and installing farstep'
	@$(PIP) install --no-build-isolation --no-deps --editable .
	@$(BIN)/python tools/copy_stub.py
	@touch $@

$(READY): $(STAMP)/native pyproject.toml constraints.txt
	$(SAY) 'Installing the tools of development'
	@$(BIN)/python tools/requirements.py dev > $(STAMP)/dev.txt
	@$(PIP) install -c constraints.txt -r $(STAMP)/dev.txt
	@touch $@

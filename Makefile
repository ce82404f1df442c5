# make install   everything, in .venv
# make demo      plan a real model with no download
# make test      what must hold at every change; what CI runs
# make test-all  that, kills, fuzz, every model and what searches find; before a release
# make fuzz      20,000 hostile inputs; make kills: 200 kills; make bounds: promises with array bounds checked
# make offloads  500 plans with tensors and state on a host, judged by a second simulator
# make enumerate 10,000 tiny problems, plan by plan, against every bound and every "optimal"
# make contract  some 340 training scripts: an applied step trains them as eager torch does, or refuses them by name
# make check     format, lint, types, import layers, sentences of the documents
# make docs      the site, in site/, from an environment of its own

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -c constraints.txt
DOCS_VENV := .venv-docs
DOCS_PIP := $(DOCS_VENV)/bin/python -m pip --disable-pip-version-check install -c constraints.txt
WORKERS ?= 2
SOURCES := src tests benchmarks

.PHONY: install demo test test-all check format bench-simulator docs fuzz kills contract enumerate offloads bounds clean

install: $(VENV)/.dev

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "loadmaster needs Python 3.11 or newer; try make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

# Stamps: an install is repeated only when what it depends on has changed.
$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing the core into $(VENV): numpy, scipy, numba, typer, rich (about 130 MB)"
	$(PIP) -e .
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing everything into $(VENV): torch, transformers, solvers, tools for tests (several GB)"
	$(PIP) -e '.[dev]'
	touch $@ $(VENV)/.core

demo: $(VENV)/.core
	@echo "planning GNMT-4 on four P100 with seven methods: under a minute, and 20 s more on a first run, which compiles"
	$(BIN)/loadmaster compare zoo:gnmt-4 --on 4xp100-pcie --method one-device,expert,heft,etf,greedy-fusion,placement,auto --seconds 6 --save plan.json

check: $(VENV)/.dev
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.prose

test: check
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

test-all: check
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m ""
	$(MAKE) fuzz kills

fuzz: $(VENV)/.dev
	$(BIN)/python -m tests.fuzz --cases 20000

contract: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m tests.contract

enumerate: $(VENV)/.dev
	$(BIN)/python -m tests.enumeration --cases 10000

kills: $(VENV)/.dev
	$(BIN)/python -m tests.kills --count 200

offloads: $(VENV)/.dev
	$(BIN)/python -m tests.offloads --plans 500

# Every array access of the compiled loops is checked; they are compiled anew for it.
bounds: $(VENV)/.dev
	NUMBA_BOUNDSCHECK=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests/promises

format: $(VENV)/.dev
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

bench-simulator: $(VENV)/.core
	$(BIN)/python benchmarks/simulator.py

# The site in site/, with the page of the plan on its home; in an environment of its own.
docs: $(DOCS_VENV)/.docs
	$(DOCS_VENV)/bin/loadmaster plan zoo:inception-v3-b32 --on 2xp100-pcie --simulations 500 --report docs/gallery/inception-v3.html
	$(DOCS_VENV)/bin/mkdocs build --strict

$(DOCS_VENV)/.docs: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DOCS_VENV)
	@echo "installing the core and mkdocs into $(DOCS_VENV)"
	$(DOCS_PIP) -e '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) $(DOCS_VENV) build dist site docs/gallery/*.html plan.json .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

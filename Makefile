# make demo   sets up and trains MEDIC and ERM on the built-in dataset
# make test   sets up for development, then runs lint, types and all tests
VENV ?= .venv
PYTHON ?= python3
WORKERS ?= 2

BIN := $(VENV)/bin
# One stamp an installation: a second make does not install again, unless what is asked for has changed.
USER_STAMP := $(VENV)/.opendg
DEV_STAMP := $(VENV)/.opendg-dev

.PHONY: help demo test lint types imports unit format clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    train MEDIC and ERM on the built-in dataset (sets up $(VENV) first)"
	@echo "make test    lint, types, imports and all tests (sets up $(VENV) first)"
	@echo "make lint | types | imports | unit    one of these alone"
	@echo "make format  put the code into its form"
	@echo "make clean   remove $(VENV), caches and built files"

demo: $(USER_STAMP)
	$(BIN)/opendg demo

test: lint types imports unit

lint: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV_STAMP)
	$(BIN)/mypy

imports: $(DEV_STAMP)
	$(BIN)/lint-imports

# A thread a worker: several workers with a pool of threads each only wait for one another.
unit: $(DEV_STAMP)
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)

format: $(DEV_STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "OpenDG needs Python 3.11 or newer, and '$(PYTHON)' is not: try make PYTHON=python3.12"; exit 2; }
	@# Some systems split off the part of venv that brings pip: then the pip outside installs into it.
	$(PYTHON) -m venv $(VENV) || $(PYTHON) -m venv --clear --without-pip $(VENV)

$(USER_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(call install,.)
	@touch $@

$(DEV_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(call install,.[dev])
	@touch $@ $(USER_STAMP)

define install
@if $(BIN)/python -c 'import pip' 2>/dev/null; then pip="$(BIN)/python -m pip"; \
else pip="$(PYTHON) -m pip --python $(BIN)/python"; fi; \
echo "Installing OpenDG into $(VENV) (the first time this takes some minutes: PyTorch is large)"; \
$$pip install --constraint constraints.txt --editable '$(1)'
endef

# The environment goes only when make has made it.
clean:
	@if [ -e $(USER_STAMP) ]; then rm -rf $(VENV); fi
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

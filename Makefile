# `make run` and `make test` do all the set-up, on a machine with Python and make; see CONTRIBUTING.md.

PYTHON ?= python3
# `make run`: an interpreter that has torch already; by default the program looks for one itself.
PYTHON_WITH_TORCH ?=
RUN_OPTIONS ?=
PYTEST_OPTIONS ?=

# Exact, since an open range may take gigabytes more than what the tests need.
TORCH ?= torch==2.13.0
JAX ?= jax==0.10.2

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
AIBENCH := $(BIN)/aibench-tui

.DEFAULT_GOAL := help
.PHONY: help run test lint wheelhouse clean

help:
	@echo 'make run          install into $(VENV), then benchmark this machine with the quick preset'
	@echo '                    PYTHON_WITH_TORCH=PATH   use this interpreter and its torch'
	@echo '                    RUN_OPTIONS=...          further options of aibench-tui run'
	@echo 'make test         install everything, then linters, types, contracts and all tests'
	@echo '                    PYTEST_OPTIONS=...       such as tests/engine, or -k journal'
	@echo 'make lint         linters, types and contracts alone'
	@echo 'make wheelhouse   a folder to install from on a node without a network'
	@echo 'make clean        remove what these commands made here'

# With a torch of the user's own nothing is installed; ours goes into $(VENV) only, where there is none.
run: $(VENV)/.run
ifeq ($(PYTHON_WITH_TORCH),)
	@$(AIBENCH) doctor --need torch >&2; case $$? in \
	0) ;; \
	4) echo 'Installing $(TORCH) into $(VENV), which takes some minutes.' >&2; $(PIP) install $(TORCH) ;; \
	*) exit 1 ;; \
	esac
	$(AIBENCH) run --preset quick $(RUN_OPTIONS)
else
	$(AIBENCH) run --preset quick --python '$(PYTHON_WITH_TORCH)' $(RUN_OPTIONS)
endif

test: lint
	sh tools/system-packages.sh
	$(BIN)/python -m pytest $(PYTEST_OPTIONS)

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

wheelhouse: $(VENV)/.run
	$(BIN)/python tools/wheelhouse.py wheelhouse

clean:
	rm -rf $(VENV) dist wheelhouse .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps name this folder: an environment that was moved or copied starts programs of its old place.
$(VENV)/.run: pyproject.toml tools/venv.sh
	sh tools/venv.sh '$(PYTHON)' '$(VENV)'
	$(PIP) install --editable .
	@touch $@

$(VENV)/.test: pyproject.toml Makefile $(VENV)/.run
	$(PIP) install --editable '.[dev]' $(TORCH) "$(JAX); python_version >= '3.11'"
	@touch $@

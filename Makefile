# `make` alone lists the targets. Each one first makes sure that .venv is ready; that takes
# seconds the first time and nothing afterwards.
.DEFAULT_GOAL := help
.PHONY: help setup up down test check format chaos mutants bench lock shapes clean
export PYTHON

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Make .venv ready (Python 3.11 or newer is all it needs)
	@scripts/setup

up: setup ## Start a server in the background and hold a short conversation with it
	@.venv/bin/python scripts/server.py up

down: setup ## Stop the server that `make up` started
	@.venv/bin/python scripts/server.py down

test: setup ## Everything: lint, types, rooms, tests; ARGS='-k word' picks tests
	@scripts/test $(ARGS)

check: setup ## Lint, types and rooms only
	@scripts/check

format: setup ## Put the code into the form `make check` asks for
	@.venv/bin/ruff check -q --fix --exit-zero .
	@.venv/bin/ruff format -q .

chaos: setup ## The long kill, fuzz and soak tests, in full
	@.venv/bin/pytest -m chaos -rP $(ARGS)

mutants: setup ## Faults on purpose: does a test notice? ARGS='--count 60 --seed 1'
	@.venv/bin/python scripts/mutants.py $(ARGS)

bench: setup ## Every benchmark in bench/, one after another
	@for file in bench/[!_]*.py; do echo "== $$file"; .venv/bin/python "$$file" || exit 1; done

lock: setup ## Resolve the dependencies again; ARGS=--upgrade takes the newest
	@scripts/lock $(ARGS)
	@$(MAKE) --no-print-directory shapes

shapes: setup ## Write down the installed official package's types, which the server is built on
	@.venv/bin/python scripts/official.py

clean: ## Remove what setup and tests made; the server's data stays
	@rm -rf .venv .tools .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage*

# `make help` tells what there is.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
PORT ?=
CONFIG ?= serve_config.yaml
ARGS ?=
BIN := .venv/bin
TIERS := $(BIN)/python -m tests.tiers

.DEFAULT_GOAL := help

help: ## Show this help
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 22

.venv/installed: pyproject.toml constraints.txt
	@"$(PYTHON)" -c 'import sys; v = sys.version_info; sys.exit(0 if (3, 11) <= v < (3, 13) else f"Enginehouse needs Python 3.11 or 3.12; {sys.executable} is {v.major}.{v.minor}. Name another: make PYTHON=python3.11 ...")'
	@echo "Installing into .venv (some minutes, 2 GB; once)"
	"$(PYTHON)" -m venv .venv
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e '.[transformers,dev]'
	@touch $@

install: .venv/installed ## Make .venv and install Enginehouse and the Transformers engine into it

serve: .venv/installed ## Serve CONFIG (serve_config.yaml) on PORT (the config's, 8000); installs and fetches what is missing
	@exec $(BIN)/enginehouse serve $(CONFIG) $(if $(PORT),--port $(PORT)) $(ARGS)

lint: .venv/installed ## Run ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test-fast: .venv/installed ## Run ruff, mypy, and all tests that start no server (2 min): ARGS="-k cancel"
	@$(TIERS) fast $(ARGS)

test: .venv/installed ## That, and one live server: each behaviour once (10 min)
	@$(TIERS) fast live $(ARGS)

test-engines: .venv/installed ## Run the conformance suite, and what only real engines show, over all of them (15 min)
	@$(TIERS) engines $(ARGS)

test-commands: .venv/installed ## Run servers and benchmarks as operators do, from start to stop (5 min)
	@$(TIERS) commands $(ARGS)

test-cluster: .venv/installed ## Run the tests on a cluster of declared GPUs: placement, node loss (6 min)
	@$(TIERS) cluster $(ARGS)

test-faults: .venv/installed ## Run bad input and faults on purpose, in short forms (8 min)
	@$(TIERS) faults $(ARGS)

test-all: .venv/installed ## Run all of these: a table of what each part takes, ARGS=--json (45 min)
	@$(TIERS) $(ARGS)

conformance: .venv/installed ## Run one suite over every engine on this machine: a table, or ARGS=--json
	@$(BIN)/python -m tests.conformance $(ARGS)

fuzz: .venv/installed ## Ask for what nobody should, 100,000 times: a table, or ARGS="--inputs 1000 --seed 1 --json"
	@$(BIN)/python -m tests.fuzz $(ARGS)

faults: .venv/installed ## Kill, hang and change the parts of a server under load: a table, or ARGS="--short --fault hangs --json"
	@$(BIN)/python -m tests.faults $(ARGS)

soak: .venv/installed ## Mixed traffic with faults at random for 25 min, and what it leaves: a table, or ARGS=--json
	@$(BIN)/python -m tests.faults --soak $(ARGS)

bench-gateway: .venv/installed ## What gateways cost on the same work: a table, or ARGS="--json --runs 3 --plot costs.png"
	@$(BIN)/python -m benchmarks.gateway $(ARGS)

bench-throughput: .venv/installed ## vLLM's tokens a second through the ingress, beside itself called in process
	@$(BIN)/python -m benchmarks.throughput $(ARGS)

bench-overload: .venv/installed ## Ten times more requests than a pool can answer: a table, or ARGS="--json --plot overload.png"
	@$(BIN)/python -m benchmarks.overload $(ARGS)

bench-replica-choice: .venv/installed ## What the choice of replicas does to prefix caches and load, simulated: a table, or ARGS=--json
	@$(BIN)/python -m benchmarks.replica_choice $(ARGS)

docs: .venv/installed ## Write docs/configuration.md and docs/conformance.md from the code
	$(BIN)/python -m app.config_docs docs/configuration.md
	$(BIN)/python -m tests.conformance.docs docs/conformance.md

.PHONY: help install serve lint test-fast test test-engines test-commands test-cluster test-faults test-all conformance fuzz faults soak \
	bench-gateway bench-throughput bench-overload bench-replica-choice docs

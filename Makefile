# A machine with Python, pip and make is enough: every target sets up what it needs in .venv.
#   make sweep ENGINE=cpu             another engine than the one that fits the machine
#   make sweep SWEEP_ARGS="--slo ttft=1s --budget 5m"   other options for tuner sweep
#   make test PYTEST_ARGS="-k trace"  some of the tests
#   make PYTHON=python3.12 …          another Python for a new .venv

CANDIDATES := python3 python3.13 python3.12 python3.11
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(or $(shell for p in $(CANDIDATES); do \
	$$p -c '$(NEW_ENOUGH)' 2>/dev/null && echo $$p && break; done),python3)
ENGINE ?= auto
SETUP = @$(PYTHON) scripts/setup.py --engine $(ENGINE)
BIN := .venv/bin

TRACE ?= traces/chat.jsonl
PROFILE ?= profile.yaml
# A GPU starts in minutes, and the model that a CPU serves says nothing about one.
ON_A_GPU = $(shell grep -s '"engine": "cuda"' .venv/tuner-setup.json)
# What people who wait in the chat need: the first words in 4 s, then 31 tokens a second.
ON_CPU := --slo ttft=4s,tpot=32ms --budget 3m
SWEEP_ARGS ?= $(if $(ON_A_GPU),--model tuner:1b --budget 15m,$(ON_CPU))
# Eight requests in flight on average instead of the four that were recorded.
COMPARE_ARGS ?= --loads medium --budget $(if $(ON_A_GPU),1h,12m) \
	--approaches worker,two-workers,static,untuned,tuned
RELEASES ?= 0.30.0 0.31.0

# $(call PYTEST,marks,options). Of a part that PYTEST_ARGS asks for, a share may have no test.
PYTEST = $(BIN)/python -m pytest $(2) -m "$(1)" $(PYTEST_ARGS)$(if $(PYTEST_ARGS), || [ $$? -eq 5 ])
PARALLEL := -n logical --dist loadfile --no-loadscope-reorder

# Every start of an engine imports vLLM anew: three times faster with its bytecode kept.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help sweep compare test check fix docs bench versions package lock clean setup setup-dev static plain few engines

help:  ## Say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-8s %s\n", $$1, $$2}' Makefile

sweep: setup  ## Tune the sample trace on a real engine, from trace to profile
	$(BIN)/tuner sweep --trace $(TRACE) -o $(PROFILE) $(SWEEP_ARGS)

compare: setup $(PROFILE)  ## Serve the sample trace by one worker, in batches, untuned and tuned
	$(BIN)/tuner compare --trace $(TRACE) --profile $(PROFILE) $(COMPARE_ARGS)

$(PROFILE):
	@$(MAKE) --no-print-directory sweep

test: static plain engines  ## Everything that a change must pass, real engines included

check: static few  ## The same without vLLM and Ray

fix: setup-dev  ## Fix what a machine can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: setup-dev  ## Write the generated parts of the docs
	$(BIN)/python scripts/reference.py

bench: setup-dev  ## Measure the speed of tuner itself, by ratios
	$(BIN)/python scripts/bench.py

versions: setup-dev  ## Test with other releases of vLLM's CPU build: RELEASES="0.30.0 0.31.0"
	scripts/versions.sh $(RELEASES)

package: setup-dev  ## Build wheel and sdist, and try both without vLLM
	$(BIN)/python scripts/package.py

lock: setup-dev  ## Choose every package anew, with its hashes, in requirements/
	$(SETUP) --extra dev --lock

clean:  ## Remove all that was made here, .venv too
	rm -rf .venv .versions runs dist profile.yaml profile.evidence .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

setup:
	$(SETUP)

setup-dev:
	$(SETUP) --extra dev
	@scripts/tools.sh

static: setup-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python scripts/reference.py --check

plain: setup-dev
	$(call PYTEST,not vllm and not long,$(PARALLEL))

few: setup-dev
	$(call PYTEST,not (vllm or services or long),$(PARALLEL))

# What measures an engine has the machine for itself.
engines: setup-dev
	$(call PYTEST,vllm and not (alone or long),$(PARALLEL))
	$(call PYTEST,alone and not long)

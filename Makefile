# A machine with Python, pip and make is enough: every target sets up what it needs in .venv.
#   make sweep ENGINE=cpu             another engine than the one that fits the machine
#   make sweep SWEEP_ARGS=--fresh     more options for tuner sweep
#   make PYTHON=python3.12 …          another Python for a new .venv

CANDIDATES := python3 python3.13 python3.12 python3.11
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(or $(shell for p in $(CANDIDATES); do \
	$$p -c '$(NEW_ENOUGH)' 2>/dev/null && echo $$p && break; done),python3)
ENGINE ?= auto
SETUP = @$(PYTHON) scripts/setup.py --engine $(ENGINE)
BIN := .venv/bin

TRACE ?= traces/translation.jsonl
PROFILE ?= profile.yaml
# A GPU starts in minutes, and the model that a CPU serves says nothing about one.
ON_A_GPU = $(shell grep -s '"engine": "cuda"' .venv/tuner-setup.json)
SWEEP_ARGS ?= $(if $(ON_A_GPU),--model tuner:1b --budget 15m,--budget 3m)
COMPARE_ARGS ?= --budget 14m --repeats 2
PYTEST_ARGS ?=

# The shares of the tests, and the seconds that each may take on two cores: docs/testing.md.
TEST := set-up=30 static=90 plain=300 engines=240 serve=120 faults=60
CHECK := static=30 few=210
SHARES = @$(PYTHON) scripts/shares.py --make "$(MAKE)"

# On every core, a file on one: its tests share what they set up. In the order of tests/conftest.py.
BY_FILE := --dist loadfile --no-loadscope-reorder
TOGETHER := -n logical $(BY_FILE)
# One process more than cores where no engine runs: some tests wait, for clusters and servers.
ONE_MORE := -n $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1) $(BY_FILE)

# The tests with these marks. Of a part that was asked for, a share may have none.
PYTEST = $(BIN)/python -m pytest $(2) -m "$(1)" $(PYTEST_ARGS)$(if $(PYTEST_ARGS), || [ $$? -eq 5 ])

# Every start of an engine imports vLLM anew: three times faster with its bytecode kept.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help sweep compare test check static set-up plain few engines serve faults long versions quiet gpu attack lock coverage
.PHONY: fix docs readme golden shots studies study-real bench clean setup setup-dev

help:  ## Say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-8s %s\n", $$1, $$2}' Makefile

sweep: setup  ## Tune the shipped sample trace on a real engine, from trace to profile
	$(BIN)/tuner sweep --trace $(TRACE) -o $(PROFILE) $(SWEEP_ARGS)

compare: setup-dev  ## Serve the sample trace in every way of the article; tables into docs/journey.md
	$(BIN)/python scripts/journey.py real $(COMPARE_ARGS)
	$(BIN)/cog -r -I . docs/journey.md

test:  ## Everything a change must pass, real engines included: 14 minutes; .ci/run calls this
	$(SHARES) $(TEST)

check:  ## The same without vLLM, Ray and PostgreSQL: 4 minutes
	$(SHARES) $(CHECK)

static: setup-dev  ## Of these: format, linter, types, generated docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/cog --check -I . README.md docs/*.md

plain: setup-dev  ## Of these: the tests without vLLM
	$(call PYTEST,not vllm and not long,$(ONE_MORE))

few: setup-dev
	$(call PYTEST,not (vllm or services or long),$(ONE_MORE))

engines: setup-dev  ## Of these: real engines and servers, side by side; alone what measures them
	$(call PYTEST,vllm and not (alone or serve or faults or long or quiet),$(TOGETHER))
	$(call PYTEST,alone and not long)

serve: setup-dev  ## Of these: one `vllm serve` that many share
	$(call PYTEST,serve and not long)

faults: setup-dev  ## Of these: engines that are killed, and those who use them
	$(call PYTEST,faults and not long,$(TOGETHER))

long: setup-dev  ## The tests that take long; keeps what came of them in docs/evidence/long.json
	$(BIN)/python scripts/long.py $(PYTEST_ARGS)

versions: setup-dev  ## Try several versions of vLLM; keeps what came of it in docs/evidence/versions.json
	$(BIN)/python scripts/versions.py --keep versions $(VERSIONS)

attack: setup-dev  ## The tests that attack, with their counts
	$(BIN)/python -m pytest -m "attack and not vllm and not services" $(PYTEST_ARGS)

gpu: setup-dev  ## The tests that hold on a CUDA device too, on one
	$(BIN)/python -m pytest --gpu -m gpu $(PYTEST_ARGS)

quiet: setup-dev  ## What takes a machine on which nothing else runs
	$(BIN)/python -m pytest -m quiet $(PYTEST_ARGS)

lock: setup-dev  ## Choose every package anew, with its hashes, in requirements/
	$(SETUP) --extra dev --lock

coverage: setup-dev  ## Show which lines the tests without vLLM do not reach
	$(BIN)/coverage run -m pytest -m "not vllm" $(PYTEST_ARGS)
	$(BIN)/coverage report

fix: setup-dev  ## Repair what a machine can repair
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: setup-dev  ## Rewrite the generated parts of the docs
	$(BIN)/cog -r -I . README.md docs/*.md

readme: setup  ## Tune the sample trace and put what tuner printed into README.md
	$(BIN)/python scripts/readme.py $(SWEEP_ARGS)

golden: setup-dev  ## Rewrite tests/golden; read the diff before you commit it
	$(BIN)/python -m pytest --update-golden -m "not vllm" $(PYTEST_ARGS)

shots: setup-dev  ## Look at a report in Chromium, and take the pictures of the docs
	$(BIN)/python scripts/shots.py

studies: setup-dev  ## Run every study at its smallest, only to see that none is broken
	@for study in scripts/study_*.py scripts/bench_beside.py; do \
		echo "$$study --smoke" && timeout 30 $(BIN)/python $$study --smoke > /dev/null \
			|| { echo "failed, or took more than 30 s"; exit 1; }; \
	done

study-real: setup-dev  ## Ask real servers what sweeps promise: 4 hours, or STUDY_ARGS="--short --minutes 38"
	$(BIN)/python scripts/study_real.py --folder runs/study-real --keep study-real $(STUDY_ARGS)

bench: setup-dev  ## Measure the speed of tuner itself, by ratios
	$(BIN)/python scripts/bench.py

clean:  ## Remove all that was made here, .venv too
	rm -rf .venv .versions runs dist profile.yaml .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

setup:
	$(SETUP)

setup-dev:
	$(SETUP) --extra dev

set-up: setup-dev
	@scripts/get_prometheus.sh
	@$(BIN)/python scripts/tools.py

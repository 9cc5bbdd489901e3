# Each target does its own set-up: the virtual environment is made on first use and renewed when the lock changes.

SHELL := /bin/sh
VENV := .venv
READY := $(VENV)/.ready
BIN := $(VENV)/bin
PORT ?= 3000

# The first Python that the lock covers; PYTHON=... chooses another.
PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11; do \
  $$name -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$name && break; \
  done || echo python3)

.PHONY: demo test lab trial check defs bench size lock clean

demo: $(READY)            ## the simulated cluster breaks and heals itself; ONCE=1 runs the fixed drill
	@$(BIN)/python -m ops_pipelines_lab.drills.demo --port $(PORT) $(if $(ONCE),--once)

lab: $(READY)             ## a real Slurm, Prometheus, Alertmanager and PostgreSQL on loopback; ONCE=1 runs the fixed drill, ACTS="..." some of it, SLURM=/opt/slurm on another Slurm
	@$(BIN)/python -m ops_pipelines_lab.drills.lab --port $(PORT) $(if $(ONCE),--once) $(if $(ACTS),--acts $(ACTS)) $(if $(SLURM),--slurm $(SLURM))

trial: $(READY)           ## a stranger's bad day on a real Slurm; hours. SILENT=4 LIMITS="60" CELLS="busy" ATTACKS="door" play some of it
	@$(BIN)/python -m ops_pipelines_lab.drills.trial --port $(PORT) $(if $(SILENT),--silent $(SILENT)) $(if $(LIMITS),--limits $(LIMITS)) \
	  $(if $(CELLS),--disturbances $(CELLS)) $(if $(ATTACKS),--attacks $(ATTACKS))

# Many tests wait for a disk's syncs: where memory has room for their files, and lets programs run, they are in memory.
IN_MEMORY = $(shell awk '/MemAvailable/ && $$2 > 12000000 {ok = 1} END {exit !ok}' /proc/meminfo 2>/dev/null \
  && ! grep -q ' /dev/shm [^ ]* [^ ]*noexec' /proc/mounts \
  && df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 6000000 {print "TMPDIR=/dev/shm"}')

test: check               ## lint, types, import contracts, tests
	@$(IN_MEMORY) $(BIN)/pytest --numprocesses=$(or $(WORKERS),4) --dist=loadfile --no-loadscope-reorder

BENCHES := growth decode signals proof cycle closing classify diagnosis real_cases timing whatif titan wear rollout quota forecast intake throughput latency idle

bench: $(READY)           ## each bench in turn (but mutants), then 10,000 hostile stories; 2 hours on two quiet cores. AREA="rollout ..." runs some alone
	@for area in $(or $(AREA),$(BENCHES)); do \
	  test -f bench/$$area.py || { echo "no bench is called $$area; there are: $(BENCHES) mutants"; exit 2; }; \
	  $(BIN)/python -m bench.$$area || exit 1; \
	done
	@$(if $(AREA),,$(BIN)/python -m tests.safety.many_seeds --seeds 10000)

size: $(READY)            ## how many modules and lines of code there are, by room
	@$(BIN)/python -m bench.size

defs: $(READY)            ## what Dagster loads, checked and listed: assets, jobs, sensors, schedules
	@home=$$(mktemp -d) && cp deploy/dagster.yaml "$$home" && export DAGSTER_HOME="$$home" && \
	  { $(BIN)/dg check defs && $(BIN)/dg list defs; }; status=$$?; rm -rf "$$home"; exit $$status

check: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet . || { echo "run: $(BIN)/ruff format ."; exit 1; }
	@$(BIN)/mypy
	@$(BIN)/lint-imports >$(VENV)/contracts.log 2>&1 || { cat $(VENV)/contracts.log; exit 1; }; tail -n 1 $(VENV)/contracts.log

$(READY): requirements.lock pyproject.toml ops_pipelines_lab/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || { \
	  echo "ops_pipelines needs Python 3.11, 3.12 or 3.13; found: $$($(PYTHON) --version 2>&1 || echo none)."; \
	  echo "Install one (Debian, Ubuntu: apt-get install python3 python3-venv), or name it: make PYTHON=/path/to/python3.12"; \
	  exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "this Python has no venv module. Debian, Ubuntu: apt-get install python3-venv"; exit 1; }
	@echo "setting up $(VENV) ..."
	@rm -rf $(VENV) && $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv \
	  && $(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes --compile-bytecode -r requirements.lock \
	  || { echo "could not install what requirements.lock names: that needs a Python package index, or a mirror"; \
	       echo "of one (PIP_INDEX_URL and UV_DEFAULT_INDEX name it). What failed stands above."; exit 1; }
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable . --editable ops_pipelines_lab
	@$(BIN)/python -m compileall -q ops_pipelines ops_pipelines_lab
	@touch $@

lock:                     ## renew requirements.lock from pyproject.toml
	@$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	  --custom-compile-command "make lock" --group dev pyproject.toml --output-file requirements.lock

clean:
	rm -rf $(VENV) .demo .lab .ops_pipelines

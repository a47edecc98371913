# make reproduce   the whole workflow on this machine's CPU, from nothing to tables, figures and a page
#                  (V=1: with Snakemake's own output)
# make test        the test suite          make lint   formatters, linters, type checker
# make test-triton optimizer step and compiled passes as on a GPU, without one (downloads Triton, 200 MB)
# make docs        the documentation site, in build/docs
# make image-cpu   an Apptainer image for CPUs                make image-h100   one for H100s (docs/cluster.md)
# make env         only the environment    make clean  delete the environment and caches (results stay)
# Every target does its own set-up and repeats nothing that is already done.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PYTHONNOUSERSITE := 1
export PIP_NO_INPUT := 1
# Of the shell's: packages found elsewhere would count as installed, and pip would install elsewhere or
# nothing.
unexport PYTHONPATH PYTHONHOME PIP_TARGET PIP_PREFIX PIP_ROOT PIP_USER PIP_PYTHON PIP_DRY_RUN

# An environment names its folder and its Python in scripts and in the editable install. If it was made in another folder
# (cp, mv), if its Python is gone or has changed, or if PYTHON=... asks for another version, it is made again.
VERSION := import sys; print(*sys.version_info[:2])
ASKED := $(if $(filter file,$(origin PYTHON)),$(BIN)/python,$(PYTHON))
USABLE := $(shell made=$$(sed -n 's/^command = .* -m venv //p' $(VENV)/pyvenv.cfg 2>/dev/null); \
  [ "$${made%/*}" -ef . ] && $(BIN)/python -I -c 'import pip' 2>/dev/null && \
  [ "$$($(BIN)/python -I -c '$(VERSION)')" = "$$($(ASKED) -I -c '$(VERSION)')" ] && echo yes)

.PHONY: env dev docs reproduce test test-triton lint format clean image-cpu image-h100 another
env: $(VENV)/.runtime
dev: $(VENV)/.dev

$(VENV)/.runtime: envs/cpu.txt pyproject.toml $(if $(USABLE),,another)
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("mpadam needs Python 3.11 or newer, not " + sys.version.split()[0] + ": make PYTHON=/path/to/python3.11 ...")'
ifneq ($(USABLE),yes)
	@test ! -e $(VENV) || echo "$(VENV) was made in another folder or by another Python, or is not complete: making it again"
	python=$$($(PYTHON) -I -c 'import sys; print(sys._base_executable)'); rm -rf $(VENV); "$$python" -m venv $(VENV)
endif
	$(BIN)/python -m pip install --quiet -r envs/cpu.txt
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	@touch $@

$(VENV)/.triton: $(VENV)/.dev envs/gpu.txt
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(VENV)/triton "$$(grep '^triton==' envs/gpu.txt)"
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime envs/dev.txt envs/oracles.txt
	$(BIN)/python -m pip install --quiet -r envs/dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(VENV)/oracles -r envs/oracles.txt
	@touch $@

$(VENV)/.docs: $(VENV)/.runtime envs/docs.txt
	$(BIN)/python -m pip install --quiet -r envs/docs.txt
	@touch $@

reproduce: env
	$(BIN)/snakemake --profile profiles/smoke $(if $(V),--printshellcmds)
	@cat results/smoke/tables/table2.txt
	@echo "Open $(CURDIR)/results/smoke/index.html"

test: dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not triton" $(PYTEST_ARGS)

test-triton: $(VENV)/.triton
	$(BIN)/python -m pytest -m triton $(PYTEST_ARGS) tests/lowering

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/mypy

format: dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/snakefmt Snakefile workflow

docs: $(VENV)/.docs
	rm -rf build/docs
	$(BIN)/sphinx-build -q -E -W --keep-going -c docs . build/docs
	@echo "Open $(CURDIR)/build/docs/index.html"

image-cpu image-h100: image-%:
	$(PYTHON) containers/build.py $*

clean:
	rm -rf $(VENV) .snakemake .pytest_cache .mypy_cache .ruff_cache .hypothesis build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# `make demo` and `make test` need Python 3.11 or newer and make, and set up the rest in .venv by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# pytest on two cores, tests of a group on the same one; slow and bench stay out (pyproject.toml)
PYTEST := $(BIN)/python -m pytest -q
TWO := -n 2 --dist loadgroup

.PHONY: help setup demo test test-all bench results docs pictures lint build clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:[^#]*## /\t/' | expand -t 12

setup: $(READY)  ## make .venv with everything the project needs

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "ordered-sgd: PYTHON must be 3.11 or newer; got $$($(PYTHON) --version). Run: make PYTHON=python3.11" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $(READY)

demo: $(READY)  ## a row of the paper's Table 1: LeNet on Semeion by SGD, ordered SGD and the random-q control
	$(BIN)/osgd compare

lint: $(READY)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint  ## lint, types, tests and doctests; minutes
	$(PYTEST) $(TWO)

test-all: lint  ## the slow tests as well, with coverage, which nearly doubles the time
	$(PYTEST) $(TWO) -m "not bench" --cov --cov-report=term

bench: $(READY)  ## measure the speed bars, one at a time; keep the machine quiet
	$(PYTEST) -m bench -rA tests/speed

RECORDS := docs/records/results.csv.gz
results: export ORDERED_SGD_HOME := .results
results: $(READY)  ## RESULTS.md and its records: takes up those that are here and trains what is missing; hours
	test ! -e $(RECORDS) || $(BIN)/osgd records import $(RECORDS)
	$(BIN)/osgd reproduce results
	$(BIN)/osgd records export --digits 6 | gzip -9n > .results/new.csv.gz && mv .results/new.csv.gz $(RECORDS)
	$(BIN)/osgd report --from $(RECORDS) --out .results/report.html --markdown RESULTS.md --page docs/units.md --page docs/memory.md

docs: $(READY)  ## the documentation as a site in site/; read it by: python3 -m http.server --directory site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

pictures: $(READY)  ## the pictures of README and documentation, drawn by the package itself
	$(BIN)/python docs/_make/pictures.py

build: $(READY)  ## sdist and wheel in dist/
	$(BIN)/python -m build --quiet

clean:  ## remove what the other targets made
	rm -rf $(VENV) dist site .coverage .pytest_cache .ruff_cache

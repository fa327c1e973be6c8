# Each target sets up everything it needs by itself; Python >= 3.11 and make are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FUZZ_SECONDS ?= 600
PYTEST_ARGS ?=
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal $(PYTEST_ARGS)
# Every pip that a target starts installs these versions, also the tools that build the package.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_BUILD_CONSTRAINT := $(CURDIR)/constraints.txt
NEWEST := env -u PIP_CONSTRAINT -u PIP_BUILD_CONSTRAINT
.PHONY: help demo test check audit docs coverage fuzz versions interfaces formats constraints format clean

help:  ## this list
	@grep -E '^[a-z]+:.*##' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 13

NATIVE := hatch_build.py $(addprefix src/transformatcher/models/fused/,native.h native.c native_conv.c)
$(VENV)/.demo: pyproject.toml constraints.txt $(NATIVE)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; choose one with: make PYTHON=python3.12 ...")'
	@echo "Setting up $(VENV): a few minutes, and about 6 GB with the CUDA libraries of torch"
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(PIP) --upgrade pip
	$(PIP) --group dev -e '.[all]'
	touch $@

demo: $(VENV)/.demo  ## match the example photos and draw the result
	$(BIN)/transformatcher demo --out out/demo

test: $(VENV)/.dev  ## the default tests, without GPU and network; PYTEST_ARGS=--run-slow for all
	$(PYTEST)

check: $(VENV)/.dev docs  ## lint, formatting, types, import layers, links of the site, secrets
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	git ls-files -z --cached --others --exclude-standard | xargs -0 $(BIN)/detect-secrets-hook --no-verify

audit: $(VENV)/.dev  ## known vulnerabilities of the dependencies (needs the network)
	$(BIN)/python scripts/audit.py

coverage: $(VENV)/.dev  ## the tests, and how much of src/ they reach; fails below 95 %
	$(PYTEST) --cov --cov-report=term-missing:skip-covered

fuzz: $(VENV)/.dev  ## damaged files and hostile command lines, for FUZZ_SECONDS (600)
	$(BIN)/python tests/fuzz/run.py --seconds $(FUZZ_SECONDS)

versions: $(VENV)/.dev  ## every supported Python that is here, lowest and newest dependencies (needs the network)
	$(NEWEST) $(BIN)/python scripts/check_versions.py

interfaces: $(VENV)/.dev  ## our interfaces against kornia, romatch and vismatch, in out/interfaces (needs the network)
	$(PYTHON) -m venv out/interfaces
	out/interfaces/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	out/interfaces/bin/python -m pip install --quiet --disable-pip-version-check --group test --group interfaces -e '.[all]'
	out/interfaces/bin/python -m pytest tests/inference/interfaces

formats: $(VENV)/.dev  ## our files read by cvat-sdk, label-studio-sdk, sleap-io, ultralytics, in out/formats (needs the network)
	$(PYTHON) -m venv out/formats
	out/formats/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	out/formats/bin/python -m pip install --quiet --disable-pip-version-check --group test --group annotation -e '.[all,sleap]'
	out/formats/bin/python -m pytest tests/annotation/formats tests/inference/interfaces/test_cvat.py tests/web/test_label_studio.py

docs: $(VENV)/.dev  ## the site, in out/site; a broken link is an error
	$(BIN)/mkdocs build --strict

constraints: $(VENV)/.dev  ## pin the newest versions that go together in constraints.txt (needs the network)
	$(NEWEST) $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --all-extras --group dev --group interfaces --group annotation \
	  --no-annotate --custom-compile-command 'make constraints' --output-file constraints.txt pyproject.toml

format: $(VENV)/.dev  ## let ruff fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the environment and everything that was built
	rm -rf $(VENV) out dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage

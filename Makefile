# Each target sets up everything it needs by itself; Python >= 3.11 and make are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FUZZ_SECONDS ?= 600
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal
.PHONY: demo test check docs coverage fuzz versions interfaces format clean

$(VENV)/.demo: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; choose one with: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip -e '.[dev,docs]'
	touch $@

demo: $(VENV)/.demo  ## match the example photos and draw the result
	$(BIN)/transformatcher demo --out out/demo

test: $(VENV)/.dev  ## the default test suite (no GPU, no network)
	$(PYTEST)

check: $(VENV)/.dev docs  ## lint, formatting, types, import layers, the site's links, secrets, known vulnerabilities
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	git ls-files -z --cached --others --exclude-standard | xargs -0 $(BIN)/detect-secrets-hook --no-verify
	$(BIN)/python scripts/audit.py

coverage: $(VENV)/.dev  ## the tests, and how much of src/ they reach; fails below 90 %
	$(PYTEST) --cov --cov-report=term-missing:skip-covered

fuzz: $(VENV)/.dev  ## damaged images and annotations, for FUZZ_SECONDS (ten minutes)
	$(BIN)/python tests/fuzz/run.py --seconds $(FUZZ_SECONDS)

versions: $(VENV)/.dev  ## every supported Python that is here, with the lowest and the newest dependencies (needs the network)
	$(BIN)/python scripts/check_versions.py

interfaces: $(VENV)/.dev  ## our interfaces against the libraries whose shape they have, in out/interfaces (needs the network)
	$(PYTHON) -m venv out/interfaces
	out/interfaces/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' kornia romatch vismatch
	out/interfaces/bin/python -m pytest tests/interfaces

docs: $(VENV)/.dev  ## the site, in out/site; a broken link is an error
	$(BIN)/mkdocs build --strict

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) out dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage

# Everything runs in .venv, which each target makes for itself. Extra arguments: make test ARGS="-k panes"
PYTHON ?= python3
ARGS ?=

BIN := .venv/bin
INSTALLED := .venv/.installed
PREPARED := .venv/.prepared
WITH_JAVA = home=$$(sh scripts/java.sh) && JAVA_HOME="$$home"

.PHONY: help setup java extras demo test test-long check bench docs clean

help:
	@echo "make demo       set up, then run the demonstration"
	@echo "make test       set up, then run the tests"
	@echo "make test-long  the long campaigns (chaos, fuzzing)"
	@echo "make check      lint, format, types, import rules"
	@echo "make bench      the benchmarks, each with its peer"
	@echo "make docs       the documentation as a site, in site/"
	@echo "make setup      .venv and Java only"
	@echo "make clean      remove caches and build output; keeps .venv and .millstream"

setup: java $(INSTALLED) $(PREPARED)

java:
	@sh scripts/java.sh >/dev/null

# Programs that only some tests need; those are skipped without them.
extras:
	@sh scripts/tool.sh chromium "the live page" chromium chromium-browser google-chrome
	@sh scripts/tool.sh redis-server "the Redis sink" redis-server
	@sh scripts/tool.sh postgresql "the Postgres sink" postgres

# Only a changed pyproject.toml installs again; the package itself is editable.
$(INSTALLED): pyproject.toml
	@sh scripts/venv.sh "$(PYTHON)"
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]'
	@touch $@

# Spark starts faster with an archive of its classes; all works without it too.
$(PREPARED): $(INSTALLED)
	@$(WITH_JAVA) $(BIN)/millstream prepare || echo "going on without it"
	@touch $@

demo: setup
	@$(WITH_JAVA) $(BIN)/millstream demo $(ARGS)

# A file is one unit of work, so that its fixtures are made once; tests/conftest.py has exceptions.
# The hundreds of processes that tests start must not compile the package each.
test: export PYTHONDONTWRITEBYTECODE =
test: setup extras
	@$(WITH_JAVA) $(BIN)/python -m pytest -q -ra -n logical --dist loadgroup --no-loadscope-reorder $(ARGS)

test-long: setup extras
	@$(WITH_JAVA) $(BIN)/python -m pytest -q -ra -m long --timeout=0 $(ARGS)

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	@$(WITH_JAVA) $(BIN)/python -m benchmarks $(ARGS)

docs: $(INSTALLED)
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[docs]'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo "site/index.html"

clean:
	rm -rf build dist site demo-out .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

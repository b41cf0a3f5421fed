# Two commands: `make serve` chats, `make test` proves. Each is idempotent: seconds when warm.
# Environments and the extension are rebuilt when the content of what they are made from changes.

SHELL  := /bin/sh
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
CXX    ?= g++
MODEL  ?= smollm2
HOST   ?= 127.0.0.1
PORT   ?= 8000
# More arguments for pytest: make test ARGS="tests/engine -k radix"
ARGS   ?=
# Where no ARGS choose among the tests, so many files of them run side by side; each worker takes up to 7 GB.
WORKERS ?= 2
# How many inputs make fuzz tries.
N      ?= 1000000
# Which sanitizers: address, thread, or both.
KINDS  ?=
# Which emulated CPUs: x86, arm64, or both.
CPUS   ?=
# Where pip finds the CPU build of torch, for machines whose default index has only the CUDA one:
# make test TORCH_INDEX=URL
TORCH_INDEX ?=

ifeq ($(strip $(PYTHON)),)
$(error Octavo needs Python 3.11 or newer; none is on the PATH (set PYTHON=/path/to/python))
endif

# By itself: it names a newer node than it needs, and npm leaves out such a one where it is optional.
CLAUDE   := @anthropic-ai/claude-code@2.1.331

ONCE     := $(PYTHON) scripts/when_changed.py
RUNTIME  := .venv/bin/python
TEST     := .venv-test/bin/python
ORACLE   := .venv-oracle/bin/python
CLIENTS  := .venv-clients/bin/python
RELEASE  := .venv-release/bin/python
BUILD    := .venv-build/bin/python
WHEEL    := .make/wheel-env/bin/python
PIP      := -m pip --disable-pip-version-check install --quiet
# The extension is built once, in place (make ext), so the environments install Python alone.
EDITABLE := --config-settings=editable.mode=inplace --config-settings=wheel.cmake=false
FRAME    := pyproject.toml Makefile constraints

.PHONY: help env serve test test-env test-slow test-oracle test-clients oracle-env clients-env guidellm-env sanitize emulated \
	golden ext lint format docs gallery bench test-schemas test-tool-calls first-hour kills fuzz probes overload vanish soak paired figures gpu-check native-mutants env-size wheel lock \
	release-check clean _env _test-env _oracle-env _clients-env _guidellm-env _release-env _build-env _ext

help:
	@echo "make serve        the default model behind the OpenAI API at http://$(HOST):$(PORT)"
	@echo "make test         lint, types and every test that takes seconds (what CI runs; WORKERS=1 with less than 16 GB)"
	@echo "make env          the runtime environment alone, in .venv (.venv/bin/octavo)"
	@echo "make test-slow    the tests that take minutes"
	@echo "make test-oracle  against llama.cpp (builds llama-cpp-python from source: minutes)"
	@echo "make golden       all of the golden file: what was said at its commit is said today (a minute)"
	@echo "make sanitize     the kernels under ASan, UBSan and TSan (minutes; KINDS=\"address\" or \"thread\" for one)"
	@echo "make native-mutants  mistakes in the bounds of greedy logits, in drafts and their walk: a test notices each (long)"
	@echo "make emulated     the kernels on other CPUs, under qemu: x86 without AVX, arm64 (long; CPUS=\"x86\" or \"arm64\" for one)"
	@echo "make gpu-check    on a machine with an NVIDIA GPU: correctness, then the table (ARGS=--dry: tried on a CPU)"
	@echo "make test-clients  others' programs and SDKs, unmodified, in an environment of their own (needs node; RESULT=1)"
	@echo "make test-schemas  some 500 JSON schemas of the world: how many are served, is one weakened? RESULT=1 writes benchmarks/results"
	@echo "make test-tool-calls  canitoolcall's fixtures of our formats: read as it expects, at every cut? RESULT=1 writes benchmarks/results"
	@echo "make first-hour   a clone, its environment, and every command of the README and the how-to pages typed there (long; RESULT=1)"
	@echo "make bench        decode speed beside llama.cpp; RESULT=1 writes benchmarks/results"
	@echo "make kills        servers ended by SIGTERM and SIGKILL under load, 50 times each; RESULT=1 writes benchmarks/results"
	@echo "make fuzz         a million inputs over all parsers, 20,000 of them whole loads; goes on where it was (N=20000; RESULT=1)"
	@echo "make probes       everything hostile that is known, against real servers (minutes); RESULT=1 writes benchmarks/results"
	@echo "make overload     ten times the load that can be answered, over HTTP (six minutes); RESULT=1 writes benchmarks/results"
	@echo "make vanish       a thousand clients that vanish: is everything given back? RESULT=1 writes benchmarks/results"
	@echo "make soak         30 minutes of mixed and hostile clients (ARGS=\"--minutes 5\"); RESULT=1 writes benchmarks/results"
	@echo "make paired       two commits side by side, within 1 %? A=COMMIT B=COMMIT (some six minutes)"
	@echo "make figures      all that docs/status.md shows, measured and rendered (hours; ARGS=\"--list\" or \"--only counts\")"
	@echo "make env-size     a fresh 'pip install .' weighed: no torch, under 200 MB"
	@echo "make release-check  hashed locks up to date, bill of materials, known weaknesses of what is locked"
	@echo "make lock         resolve the hashed locks anew (constraints/runtime.txt, wheel.txt)"
	@echo "make wheel        dist/octavo-*.whl: installs in seconds where no compiler is (same Python version, same kind of CPU)"
	@echo "make gallery      the plots of README.md and docs/how-to/measure.md, drawn from benchmarks/results"
	@echo "make ext | lint | format | docs | clean"

# --- environments -------------------------------------------------------------------------------

env: ext
	@$(ONCE) .make/env --makes .venv/bin/octavo $(FRAME) -- $(MAKE) --no-print-directory _env

_env:
	@echo "making .venv (runtime)"
	@$(PYTHON) -m venv .venv
	@$(RUNTIME) $(PIP) -c constraints/test.txt $(EDITABLE) -e .

test-env: ext
	@$(ONCE) .make/test-env --makes $(TEST) $(FRAME) -- $(MAKE) --no-print-directory _test-env

_test-env:
	@echo "making .venv-test (runtime + oracles; torch is large)"
	@$(PYTHON) -m venv .venv-test
	@$(TEST) $(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==2.13.0
	@$(TEST) $(PIP) -c constraints/test.txt $(EDITABLE) -e '.[dev]'

oracle-env: ext
	@$(ONCE) .make/oracle-env --makes $(ORACLE) $(FRAME) -- $(MAKE) --no-print-directory _oracle-env

_oracle-env:
	@echo "making .venv-oracle (llama-cpp-python is built from source: minutes)"
	@$(PYTHON) -m venv .venv-oracle
	@$(ORACLE) $(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==2.13.0
	@$(ORACLE) $(PIP) -c constraints/test.txt -r constraints/oracle.txt
	@$(ORACLE) $(PIP) -c constraints/test.txt $(EDITABLE) -e '.[dev]'

clients-env:
	@$(ONCE) .make/clients-env --makes $(CLIENTS) $(FRAME) tests/clients/package.json -- $(MAKE) --no-print-directory _clients-env

_clients-env:
	@echo "making .venv-clients (others' clients; torch is large)"
	@$(PYTHON) -m venv .venv-clients
	@$(CLIENTS) $(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==2.13.0 \
		|| echo "clients: no torch: lm-eval is left out"
	@grep -v '^#' constraints/clients.txt | while read -r each; do \
		$(CLIENTS) $(PIP) "$$each" || echo "clients: $$each cannot be installed"; done
	@$(PYTHON) -m venv .venv-clients/instructor && .venv-clients/instructor/bin/python $(PIP) instructor==1.17.0 \
		|| echo "clients: instructor, which needs an older openai, cannot be installed"
	@$(PYTHON) -m venv .venv-clients/text-generation
	@.venv-clients/text-generation/bin/python $(PIP) -r constraints/text-generation.txt \
		|| echo "clients: text-generation cannot be installed"
	@cp tests/clients/package.json .venv-clients/
	@cd .venv-clients && { npm install --silent --no-fund --no-audit || echo "clients: npm's cannot be installed"; } && \
		{ npm install --silent --no-save --no-fund --no-audit $(CLAUDE) || echo "clients: no $(CLAUDE)"; } && \
		for each in @anthropic-ai/claude-code/install.cjs opencode-ai/postinstall.mjs; do \
			[ ! -f node_modules/$$each ] || node node_modules/$$each; done

guidellm-env:
	@$(ONCE) .make/guidellm-env --makes .venv-guidellm/bin/guidellm constraints/guidellm.txt -- $(MAKE) --no-print-directory _guidellm-env

_guidellm-env:
	@echo "making .venv-guidellm (another client to measure beside octavo bench; large)"
	@$(PYTHON) -m venv .venv-guidellm
	@.venv-guidellm/bin/python $(PIP) -r constraints/guidellm.txt

release-env:
	@$(ONCE) .make/release-env --makes $(RELEASE) constraints/release.txt -- $(MAKE) --no-print-directory _release-env

_release-env:
	@echo "making .venv-release (pip-audit)"
	@$(PYTHON) -m venv .venv-release
	@$(RELEASE) $(PIP) -r constraints/release.txt

# --- the native extension, in place ---------------------------------------------------------------

ext:
	@if [ ! -f CMakeLists.txt ]; then :; \
	elif ! command -v $(CXX) >/dev/null 2>&1; then \
		echo "no C++ compiler ($(CXX)): Octavo will run on its NumPy reference, slowly"; \
	else \
		$(ONCE) .make/build-env --makes $(BUILD) constraints/build.txt -- $(MAKE) --no-print-directory _build-env && \
		$(ONCE) .make/ext --makes 'src/octavo/kernels/_native*.so' CMakeLists.txt csrc constraints/build.txt -- $(MAKE) --no-print-directory _ext; \
	fi

_build-env:
	@echo "making .venv-build (cmake, ninja, nanobind)"
	@$(PYTHON) -m venv .venv-build
	@$(BUILD) $(PIP) -r constraints/build.txt

_ext:
	@echo "building the native extension"
	@PATH="$(CURDIR)/.venv-build/bin:$$PATH" cmake -S . -B build/ext -G Ninja -DCMAKE_BUILD_TYPE=Release \
		-DCMAKE_CXX_COMPILER=$(CXX) -DPython_EXECUTABLE=$(CURDIR)/$(BUILD) -DOCTAVO_IN_PLACE=ON >/dev/null
	@PATH="$(CURDIR)/.venv-build/bin:$$PATH" cmake --build build/ext

# --- what people type -----------------------------------------------------------------------------

serve: env
	@exec .venv/bin/octavo serve $(MODEL) --host $(HOST) --port $(PORT)

PYTEST := $(TEST) -m pytest -m "not slow and not oracle and not clients"
# NumPy's and torch's threads would wait for each other's cores, spinning.
ALONE  := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
# Its items share ids, of which xdist would run one each.
SHARED := tests/server/test_schemathesis.py

# Every part runs, whatever the one before said; the tests come last.
test: test-env env
	@failed=0; \
	$(MAKE) --no-print-directory lint || failed=1; \
	$(PYTHON) scripts/env_size.py --limit-mb 200 .venv || failed=1; \
	$(if $(ARGS),$(PYTEST) $(ARGS),$(ALONE) $(PYTEST) -n $(WORKERS) --dist loadfile --ignore $(SHARED)) || failed=1; \
	$(if $(ARGS),:,$(PYTEST) $(SHARED)) || failed=1; \
	exit $$failed

test-slow: test-env
	@$(TEST) -m pytest -m slow $(ARGS)

test-oracle: oracle-env
	@$(ORACLE) -m pytest -m oracle $(ARGS)

golden: test-env
	@PYTHONPATH=tests/support/checkout:src $(TEST) scripts/golden.py compare

sanitize: test-env
	@PATH="$(CURDIR)/.venv-build/bin:$$PATH" BUILD_PYTHON=$(CURDIR)/$(BUILD) csrc/sanitize.sh $(CURDIR)/$(TEST) $(KINDS)

# Long: each mistake is compiled for every instruction set. ARGS="--only 0,3" for some of them.
native-mutants: test-env
	@PATH="$(CURDIR)/.venv-build/bin:$$PATH" $(TEST) scripts/native_mutants.py --builder $(CURDIR)/$(BUILD) $(ARGS)

# Long: an emulator takes minutes where the CPU takes seconds.
emulated: test-env
	@PATH="$(CURDIR)/.venv-build/bin:$$PATH" BUILD_PYTHON=$(CURDIR)/$(BUILD) PYTEST_ARGS="$(ARGS)" csrc/emulate.sh $(CURDIR)/$(TEST) $(CPUS)

# ARGS="--limit 50" for a part. What is weakened is its status; the shares are figures.
test-schemas: test-env
	@$(if $(RESULT),$(RUNTIME) benchmarks/record.py real-schemas -- )env PYTHONPATH=tests/support/checkout:src:tests \
		$(TEST) benchmarks/real_schemas.py $(if $(RESULT),--json) $(ARGS)

# Long: a clone, its environment, every command of the README and the how-to pages. ARGS="--page serve" for some.
first-hour: env
	@$(if $(RESULT),$(RUNTIME) benchmarks/record.py first-hour -- )$(PYTHON) scripts/first_hour.py $(if $(RESULT),--json) $(ARGS)

test-tool-calls: test-env
	@$(if $(RESULT),$(RUNTIME) benchmarks/record.py tool-calls -- )env PYTHONPATH=tests/support/checkout:src \
		$(TEST) benchmarks/tool_calls.py $(if $(RESULT),--json) $(ARGS)

# RESULT=1 keeps what was tried, from which make docs writes docs/reference/clients.md.
test-clients: test-env clients-env
	@$(if $(RESULT),OCTAVO_CLIENTS_RESULT=tests/clients/results.json) $(TEST) -m pytest -m clients -rs $(ARGS)

lint: test-env
	@failed=0; \
	$(TEST) -m ruff check . || failed=1; \
	$(TEST) -m ruff format --check . || failed=1; \
	$(TEST) -m mypy || failed=1; \
	exit $$failed

format: test-env
	@$(TEST) -m ruff check --fix .
	@$(TEST) -m ruff format .

docs: gallery
	@$(TEST) scripts/reference_pages.py

# The plots of README.md and docs/how-to/measure.md, from benchmarks/results.
gallery: test-env
	@$(TEST) scripts/gallery.py --write

bench: env oracle-env
	@$(RUNTIME) benchmarks/decode.py --peer-python $(ORACLE) $(if $(RESULT),--write)

kills: env
	@$(RUNTIME) benchmarks/kills.py $(if $(RESULT),--write) $(ARGS)

# Goes on where build/fuzz says. ARGS="--seconds 600" stops sooner, ARGS=--keep adds to the corpus.
fuzz: test-env
	@$(if $(RESULT),$(RUNTIME) benchmarks/record.py fuzz -- )env PYTHONPATH=tests/support/checkout:src:tests \
		$(TEST) -m support.fuzz --inputs $(N) $(if $(RESULT),--json) $(ARGS)

probes: env
	@$(RUNTIME) benchmarks/probes.py $(if $(RESULT),--write) $(ARGS)

overload: env
	@$(RUNTIME) benchmarks/overload_served.py $(if $(RESULT),--write) $(ARGS)

vanish: env
	@$(RUNTIME) benchmarks/vanish.py $(if $(RESULT),--write) $(ARGS)

soak: env
	@$(RUNTIME) benchmarks/soak.py $(if $(RESULT),--write) $(ARGS)

paired: env
	@$(RUNTIME) benchmarks/paired.py $(A) $(B) $(ARGS)

figures: env test-env
	@$(PYTHON) benchmarks/all_figures.py $(ARGS)

env-size:
	@$(PYTHON) scripts/env_size.py --fresh --limit-mb 200

# The kernels of every instruction set are in it, and the best one that a CPU runs is chosen when it starts.
wheel:
	@$(PYTHON) -m venv .make/wheel-env
	@$(WHEEL) $(PIP) --require-hashes -r constraints/wheel.txt
	@PATH="$(CURDIR)/.make/wheel-env/bin:$$PATH" $(WHEEL) -m pip --disable-pip-version-check wheel --quiet --no-deps \
		--no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

lock: test-env
	@$(TEST) scripts/lock.py

# Every part runs, whatever the one before said. The audit's own status is 69 where nobody could be asked.
release-check: test-env
	@failed=0; \
	$(TEST) scripts/lock.py --check || failed=1; \
	$(TEST) scripts/sbom.py --output dist/octavo.cdx.json || failed=1; \
	$(MAKE) --no-print-directory release-env || echo "release-check: pip-audit could not be installed" >&2; \
	$(RELEASE) scripts/audit.py || failed=$$?; \
	exit $$failed

# On a machine with an NVIDIA GPU: numpy, torch and Triton, and this source tree. Engine and server are checked too
# where their packages are, on PYTHONPATH as well.
gpu-check:
	@PYTHONPATH=src:benchmarks$${PYTHONPATH:+:$$PYTHONPATH} $(if $(GPU_PYTHON),$(GPU_PYTHON),python3) -m gpu $(ARGS)

clean:
	rm -rf .make .venv .venv-test .venv-oracle .venv-clients .venv-guidellm .venv-build build dist .mypy_cache .ruff_cache .pytest_cache
	rm -f src/octavo/kernels/*.so
	find src tests benchmarks examples scripts -name __pycache__ -type d -prune -exec rm -rf {} +

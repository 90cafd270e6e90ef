# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
OLDEST := .venv-oldest
FUZZ   := .venv-fuzz
WHEEL  := .venv-wheel
JAX    := .venv-jax
TORCH  := .venv-torch
# What every supported TensorFlow has to pass: the folders that mirror the source, and conformance.
ON_EACH := tests/aggregate tests/conform tests/errors tests/io tests/ir tests/tf tests/rules tests/grads tests/record tests/execute tests/transform tests/lower tests/playback tests/python tests/query tests/diagnose tests/files tests/logs tests/report tests/tape tests/distribute tests/callbacks tests/cli
# What runs a second time with every query compiled.
COMPILED := tests/conform tests/query tests/execute
# Each file of tests in a process of its own, two at a time.
RUN_TESTS = tools/run_tests.py -n 2
export TF_CPP_MIN_LOG_LEVEL ?= 3
# What a test computes must not depend on which custom kernels the machine has.
export TF_ENABLE_ONEDNN_OPTS ?= 0

.PHONY: env demo test quick test-all test-browser compat mutants lint format bench bench-peers compare coverage fuzz docs wheel check-dist pictures lock clean

env: $(VENV)/.ready

demo: env
	$(BIN)/retrotape demo

# Everything but what is marked slow; then a third of what computes derivatives, another third for each commit, with every
# query compiled the first time.
test: env
	$(BIN)/python $(RUN_TESTS) -m "not slow" tests src
	RETROTAPE_COMPILE=always $(BIN)/python $(RUN_TESTS) -m "not slow" --share 3 $(COMPILED)

# A sample for in between, which finds most of what `make test` finds.
quick: env
	$(BIN)/python $(RUN_TESTS) -m "not slow" --share 8 tests

# All tests, slow ones too, in parts of at most an hour: `make test-all PART=laws` runs one. Random programs are others every
# day: `make test-all DATE=20261118` repeats those of a day.
PARTS := fast laws slow compiled compiled-slow uncompiled uncompiled-slow oldest browser
PART ?= $(PARTS)
DATE ?= $(shell date +%Y%m%d)
test-all: export RETROTAPE_SEEDS = $(DATE)
test-all:
	@failed=""; for part in $(PART); do echo "part $$part" && $(MAKE) --no-print-directory part-$$part || failed="$$failed $$part"; done; \
	test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

.PHONY: $(addprefix part-,$(PARTS))
part-fast: env
	$(BIN)/python $(RUN_TESTS) --part fast -m "not slow" tests src
part-laws: env
	$(BIN)/python $(RUN_TESTS) --part laws -m slow tests/laws
part-slow: env
	$(BIN)/python $(RUN_TESTS) --part slow -m slow $(filter-out tests/laws/ tests/helpers/,$(wildcard tests/*/))
part-compiled part-compiled-slow: export RETROTAPE_COMPILE = always
part-uncompiled part-uncompiled-slow: export RETROTAPE_COMPILE = 0
part-compiled part-uncompiled: part-%: env
	$(BIN)/python $(RUN_TESTS) --part $* -m "not slow" tests
part-compiled-slow part-uncompiled-slow: part-%: env
	$(BIN)/python $(RUN_TESTS) --part $* -m slow tests
part-oldest: $(OLDEST)/.ready
	$(OLDEST)/bin/python $(RUN_TESTS) --part oldest -m "not slow" $(ON_EACH)
part-browser: test-browser

# Reports in a real browser. It installs Debian's Chromium where there is none (as root), and axe-core by npm, which checks
# whether everybody can use a page.
BROWSER := $(HOME)/.cache/retrotape-browser
test-browser: export RETROTAPE_BROWSER_CACHE = $(BROWSER)
test-browser: export RETROTAPE_BROWSER = required
test-browser: env $(BROWSER)/node_modules/axe-core/axe.min.js
	command -v chromium > /dev/null || { apt-get update -qq && apt-get install -qq --yes --no-install-recommends chromium fonts-dejavu-core; }
	$(BIN)/python -m pytest -q -m browser tests/report

$(BROWSER)/node_modules/axe-core/axe.min.js:
	npm install --silent --no-save --prefix $(BROWSER) axe-core@4

# Another TensorFlow, in an environment of its own: `make compat TF=2.22`, `TF=2.22.0rc1`, `TF=nightly`;
# `TESTS=tests/conform` runs a part only. Another Python: `make compat PYTHON=python3.13` runs all of `make test` with it.
compat:
ifdef TF
	@$(PYTHON) tools/compat.py "$(TF)" $(TESTS)
else
	$(MAKE) test VENV=.venv-$(shell $(PYTHON) -c "import sys; print('python%d.%d' % sys.version_info[:2])")
endif

# Lines and branches that the tests reach; fails below the floor in pyproject.toml. `tests/stress/interrupts` is left out: it
# needs the one trace function that a thread has, and takes it from whoever measures.
coverage: env
	$(BIN)/python -m pytest -q -m "not slow" --ignore=tests/stress/interrupts --cov --cov-report=term-missing

# Do the tests find small faults? Puts some into a copy of the source, one after the other, and runs the tests that reach
# each. It takes two hours, half of them to measure which test reaches what; the table is build/mutants/report.txt.
mutants: env
	$(BIN)/python tools/mutants.py

lint: env
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: env
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Ours beside the stock tape and `tf.function`, then what each part costs. `make bench BENCH=speed` runs one program,
# `make bench QUICK=1` most of them, for a few seconds each.
BENCH ?= speed playback losses flight start forward shapes soak kept storage scale $(if $(QUICK),,parallel farm notes growth lengths imports)
bench bench-peers: export TF_ENABLE_ONEDNN_OPTS = 1
bench: env
	@for name in $(BENCH); do echo "benchmarks/$$name.py" && $(BIN)/python benchmarks/$$name.py $(if $(QUICK),--quick) || exit 1; done

# The same work in JAX, PyTorch and TorchJD, each in an environment of its own.
bench-peers: env $(JAX)/.ready $(TORCH)/.ready
	$(BIN)/python benchmarks/speed.py --peers $(if $(QUICK),--quick)
	$(BIN)/python benchmarks/playback.py --peers $(if $(QUICK),--quick)
	$(BIN)/python benchmarks/losses.py --peers $(if $(QUICK),--quick)
	$(BIN)/python benchmarks/storage.py --peers $(if $(QUICK),--quick)

# Is this checkout slower than another version? `make compare OLD=main~3`; OLD may also be a checkout or a Python.
compare: env
	$(BIN)/python benchmarks/compare_trees.py "$(OLD)"

# Two minutes for each reader of files. Atheris has no wheels for some Pythons, so it is not in the lock and has an
# environment of its own, which sees the packages of the other one.
FUZZ_SECONDS ?= 120
fuzz: env $(FUZZ)/.ready
	@for target in text fields functions container; do \
	  echo "fuzzing $$target for $(FUZZ_SECONDS) s" && \
	  $(FUZZ)/bin/python tests/files/store/fuzz_atheris.py $$target -max_total_time=$(FUZZ_SECONDS) -verbosity=0 -artifact_prefix=$(FUZZ)/ || exit 1; \
	done

# The site, without network; fails where the reference misses a name.
# The code on its pages runs in `make test`.
docs: env
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Look at it: $(BIN)/python -m http.server -d site"

wheel: env
	rm -rf dist
	$(BIN)/hatchling build
	ls -l dist

# What `make wheel` has made, as a user gets it: a wheel that works where nothing else is installed, and a source
# distribution that can be built. It builds nothing anew: what is checked is what gets published.
check-dist:
	rm -rf $(WHEEL)
	$(PYTHON) -m venv $(WHEEL)
	$(WHEEL)/bin/python -m pip install --quiet "$$(ls dist/*.whl)[cpu]"
	$(WHEEL)/bin/python -m pip check
	cd $(WHEEL) && bin/retrotape --version && bin/retrotape demo
	$(WHEEL)/bin/python -m pip wheel --quiet --no-deps --wheel-dir $(WHEEL)/rebuilt dist/*.tar.gz

# The terminal pictures of the README; a test says when they are out of date.
pictures: env
	$(BIN)/python tools/pictures.py

$(VENV)/.ready: requirements/dev.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/dev.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

$(OLDEST)/.ready: requirements/oldest.lock pyproject.toml
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --require-hashes -r requirements/oldest.lock
	$(OLDEST)/bin/python -m pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

.venv-%/.ready: requirements/%.txt
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet -r $<
	touch $@

$(FUZZ)/.ready: $(VENV)/.ready
	$(BIN)/python -m venv $(FUZZ)
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
	  > "$$($(FUZZ)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/env.pth"
	@echo "installing atheris into $(FUZZ)"
	$(FUZZ)/bin/python -m pip install --quiet atheris \
	  || { echo "atheris is not to be had for this Python: https://pypi.org/project/atheris lists those it is for"; exit 1; }
	touch $@

# Needs uv; the lock names versions and hashes, never an address.
lock:
	uv pip compile -q --universal --python-version 3.10 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --no-annotate requirements/dev.in -o requirements/dev.lock
	uv pip compile -q --universal --python-version 3.10 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --no-annotate requirements/oldest.in -o requirements/oldest.lock

clean:
	rm -rf .venv $(OLDEST) $(FUZZ) $(WHEEL) $(JAX) $(TORCH) .venv-compat-* .venv-python* dist site build .coverage

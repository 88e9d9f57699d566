# make demo [HOST=timm|fairseq|espnet]: one training each of CAPE and a rival, and a page
# make demo-full [HOST=…]: thirty trainings, three of each, and the report
# make install-demo: what make demo needs · make install: what all others need too
# make lint · make test · make test-release: what only a release needs
# make test-py311 · make test-fairseq-0.12: older hosts, each in its own environment
# make test-newest: the newest release of each host, in an environment of its own
# make docs: the documentation site, in OUT/docs
# make figures: docs/figures/*.png, and the published numbers of docs/evidence.md
# make dist: sdists and wheels of cape-plugins and cape-studies, checked
# make bench [DEVICE=cuda DTYPE=bfloat16]
# Each sets up what it needs, in VENV; nothing is installed again when nothing changed.

VENV ?= .venv
VENV_PY311 ?= .venv-py311
VENV_0_12 ?= .venv-fairseq-0.12
VENV_NEWEST ?= .venv-newest
OUT ?= out
# The study of one host, or the set of all three: $(call OF_HOST,demo) is demo_timm, or demo.
OF_HOST = $(1)$(if $(HOST),_$(HOST))
DEVICE ?= cpu
DTYPE ?= float32

# The interpreter that makes VENV: PYTHON=… chooses; otherwise 3.12 (today's hosts, constraints/python-3.12.txt)
# where it exists, else 3.11 (the last that ran there, constraints/python-3.11.txt).
PYTHON ?= $(shell sh tools/find_python 3.12 3.11)
PYTHON_3_11 ?= $(shell sh tools/find_python 3.11)
PYTHON_3_10 ?= $(shell sh tools/find_python 3.10)

BIN = $(VENV)/bin
BIN_0_12 = $(VENV_0_12)/bin
# Small models and small tests: one thread per process, two processes, beat two threads.
PYTEST = OMP_NUM_THREADS=1 $(1)/python -m pytest -n 2 --dist loadfile -m $(2)

# What codespell reads.
PROSE = *.md .github benchmarks cape_plugins configs constraints docs examples integrations studies tests tools Makefile

# What decides what is installed.
PACKAGE = pyproject.toml studies/pyproject.toml examples/cape-fire/pyproject.toml

.PHONY: install install-demo install-fairseq-0.12 demo demo-full test test-release test-py311 test-fairseq-0.12 test-newest lint format docs figures dist bench clean help

help:
	@sed -n 's/^# make/make/p' Makefile

install: $(VENV)/.installed
install-demo: $(VENV)/.installed-demo
install-fairseq-0.12: $(VENV_0_12)/.installed

$(VENV)/.installed-demo: $(PACKAGE) constraints/python-3.12.txt constraints/python-3.11.txt tools/install
	@sh tools/install "$(VENV)" "$(PYTHON)" demo
	@touch $@

# All at once where nothing is there yet: both stamps are of one installation.
$(VENV)/.installed: $(PACKAGE) constraints/python-3.12.txt constraints/python-3.11.txt tools/install
	@sh tools/install "$(VENV)" "$(PYTHON)" all
	@touch $(VENV)/.installed-demo $@

$(VENV_0_12)/.installed: $(PACKAGE) constraints/fairseq-0.12.txt tools/install-fairseq-0.12
	@sh tools/install-fairseq-0.12 "$(VENV_0_12)" "$(PYTHON_3_10)" constraints/fairseq-0.12.txt
	@touch $@

demo: install-demo
	@$(BIN)/cape-run $(call OF_HOST,demo_short) --jobs 2 --out $(OUT)
	@$(BIN)/cape-report $(call OF_HOST,demo_short) --out $(OUT)

demo-full: install-demo
	$(BIN)/cape-run $(call OF_HOST,demo) --jobs 2 --out $(OUT)
	$(BIN)/cape-report $(call OF_HOST,demo) --out $(OUT)

test: install
	$(call PYTEST,$(BIN),"not release and not gpu")

test-release: install
	$(call PYTEST,$(BIN),"release and not gpu")

# Older hosts: what a command line or a name reaches, not the whole suite.
test-py311:
	@$(MAKE) install VENV="$(VENV_PY311)" PYTHON="$(PYTHON_3_11)"
	$(call PYTEST,$(VENV_PY311)/bin,"not release and not gpu") tests/test_autoload.py \
		tests/*/test_command_line.py tests/timm/test_models.py

test-fairseq-0.12: install-fairseq-0.12
	$(call PYTEST,$(BIN_0_12),"not release and not gpu") tests/fairseq/test_command_line.py \
		$(filter-out %_benchmarks.py,$(wildcard tests/test_*.py))

# What a new release may break: a model of every pos, a training step, cached = whole, saved = loaded.
# Hosts are upgraded each time: there is no stamp.
test-newest:
	@sh tools/install "$(VENV_NEWEST)" "$(PYTHON)" newest
	$(VENV_NEWEST)/bin/python -m cape_plugins.env
	$(call PYTEST,$(VENV_NEWEST)/bin,"not release and not gpu") tests/test_relies.py \
		$(addprefix tests/timm/test_,models.py checkpoints.py one_forward.py) \
		$(addprefix tests/fairseq/test_,generation.py language_model.py one_forward.py variant.py) \
		$(addprefix tests/espnet/test_,encoders.py loading.py one_forward.py) \
		$(addprefix tests/transformers/test_,decoder.py encoder.py checkpoints.py augment_positions.py)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell $(PROSE)
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: install
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet -c docs . $(OUT)/docs

figures: install
	$(BIN)/python tools/docs/figures.py

# Sdists and wheels of both, the same bytes each time
dist: install
	rm -rf dist
	sh tools/dist $(BIN)/python . dist
	sh tools/dist $(BIN)/python studies dist
	$(BIN)/twine check --strict dist/*

bench: install
	$(BIN)/python benchmarks/autoload.py
	$(BIN)/python benchmarks/attention.py --device $(DEVICE) --dtype $(DTYPE)
	$(BIN)/python benchmarks/variants.py --device $(DEVICE) --dtype $(DTYPE)

clean:
	rm -rf out build dist *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache

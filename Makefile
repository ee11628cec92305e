# make demo      sets everything up, measures a real sweep on this machine, shows its report
# make test      sets everything up, runs the checks and the tests of every day
# make test-all  the same with the tests that are too long for every day
# make check     ruff, mypy, import contracts, dead code
# make bench     names what became slower than in the last recorded revision (10 minutes)
# make gpu-wheels  fetches what a bare machine with a GPU lacks, for `python -m benchmarks.gpu`
# make docs      builds the documentation as a site in site/; fails on a broken link or unknown command

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WHAT := --quiet --editable '.[all]' --group dev
# uv takes a third of pip's time; pip serves where uv does not, such as with an index in pip.conf
UV := UV_CACHE_DIR=$(VENV)/.uv $(BIN)/uv pip install --python $(BIN)/python $(WHAT)
STAMP := .stamps/venv
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: demo test test-all bench prepare check lint types docs slurm browser clean gpu-wheels

demo: $(STAMP)
	$(BIN)/hpcsweep submit sweeps/quickstart.yaml --cluster local
	$(BIN)/hpcsweep collect quickstart
	$(BIN)/hpcsweep report quickstart
	$(BIN)/hpcsweep report quickstart --html results/quickstart/report.html

# Several processes share the tests (tests/support/lanes.py). Types are checked beside the first
# import of all. pytest's summary is the last line, unless a check fails.
test test-all: prepare lint
	@$(MAKE) --no-print-directory types >.stamps/types.log 2>&1 & types=$$!; \
	$(MAKE) --no-print-directory .stamps/compiled; \
	$(BIN)/python -m pytest -n auto $(if $(filter test-all,$@),--all) $(PYTEST); tests=$$?; \
	wait $$types || { cat .stamps/types.log; exit 1; }; exit $$tests

# what is imported is compiled then: by one process, else by all that begin together
.stamps/compiled: $(STAMP)
	@$(BIN)/python -c 'import torch._dynamo, torchvision, scipy.stats, sklearn.ensemble, \
	    sklearn.gaussian_process, matplotlib.pyplot, pandas, submitit, hypothesis'
	@touch $@

bench: $(STAMP)
	$(BIN)/python -m benchmarks.guard $(BENCH)

# What a machine with torch alone lacks, for Python 3.12 on x86-64: 10 MB in a folder that git
# ignores. The front-end of cuDNN is the newest one that pyproject.toml takes; what runs plans in it
# needs none of its dependencies, a compiler among them.
FETCH := $(PYTHON) -m pip download --quiet --only-binary :all: --python-version 3.12 \
    --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 --dest .gpu
gpu-wheels:
	rm -rf .gpu
	$(FETCH) pydantic
	$(FETCH) --no-deps 'nvidia-cudnn-frontend>=1.26,<1.30'
	@ls -l .gpu

prepare: $(STAMP) slurm browser

check: lint types

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/vulture

# with --quiet, --strict would not see any warning
docs: $(STAMP) .stamps/docs
	$(BIN)/python -m pytest -q tests/docs/test_documentation.py \
	    tests/docs/test_generated_tables.py tests/docs/test_map.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open site/index.html"

.stamps/docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --group docs
	@mkdir -p $(@D) && touch $@

# torch and torchvision come as PyPI pairs them; the CUDA build runs on a CPU, too
$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "hpcsweep needs Python 3.10")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet uv && $(UV) || $(BIN)/python -m pip install $(WHAT)
	@rm -rf $(VENV)/.uv
	@mkdir -p $(@D) && touch $@

# The tests start their own Slurm on localhost; where it cannot be installed they skip with a reason.
slurm:
	@if ! command -v slurmctld >/dev/null && command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	    echo "installing Slurm for the tests"; \
	    { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy \
	        --no-install-recommends slurm-wlm slurmdbd munge mariadb-server; } >/tmp/hpcsweep-apt.log 2>&1 \
	    || echo "Slurm could not be installed (/tmp/hpcsweep-apt.log); its tests will skip"; \
	fi

# The tests open the page of a sweep in Chromium; where it cannot be installed they skip.
browser: slurm
	@if ! command -v chromium >/dev/null && command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	    echo "installing Chromium for the tests"; \
	    { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy \
	        --no-install-recommends chromium; } >/tmp/hpcsweep-apt-chromium.log 2>&1 \
	    || echo "no Chromium (/tmp/hpcsweep-apt-chromium.log); the tests that need it will skip"; \
	fi

clean:
	rm -rf $(VENV) .stamps build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis

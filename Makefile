# List of all commands. `make help` prints it.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo quick-start quick-start-bridge test test-long test-compiled test-kernel test-arm64 test-soak e2e check lint fmt fuzz bench bench-controller bench-matrix bench-operator bench-relay bench-sessions bench-short bench-wan crds deb docs plugin release figures lab clean setup setup-test setup-compiled setup-kernel setup-arm64 worlds

# The folder operator/ must never shadow Python's module operator (CONTRIBUTING.md)
export PYTHONSAFEPATH := 1
# Keep compiled modules: without them, each start of a controller or an operator compiles a hundred modules, which takes two seconds
unexport PYTHONDONTWRITEBYTECODE
export PATH := $(PATH):$(HOME)/.cargo/bin

python := .venv/bin/python
cargo_folders := agent-image testbed/linkemu bench/controller
# All suites except the soak test, which takes an hour by itself, and the peers and the release, which need clusters of their own
e2e_whole := $(filter-out %_soak.py,$(wildcard e2e/tests/unit/test_e2e_?_*.py e2e/tests/test_e2e_?_*.py))
# Without the removal of a release without its hooks, which waits for minutes until the operator counts as gone
e2e_short := --small $(foreach suite,install traffic,e2e/tests/test_e2e_?_$(suite).py) \
	e2e/tests/test_e2e_9_uninstall.py::test_uninstall_leaves_crds_and_users_objects_only \
	$(foreach test,first_accelerated_byte_comes_within_three_minutes two_hundred_simultaneous_connections_succeed,e2e/tests/peers/test_peers_1_traffic.py::test_$(test))
e2e_peers := e2e/tests/peers
# Installation of a release from a registry, by the lines of README and docs: two clusters one after another
e2e_release := e2e/tests/release
e2e_load := e2e/tests/unit/test_e2e_?_load.py
$(foreach suite,install traffic faults upgrade scale external overlay soak uninstall,$(eval e2e_$(suite) := e2e/tests/test_e2e_?_$(suite).py))
python_folders := compile operator controller-image testbed e2e bench

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

setup:
	@scripts/setup.sh --if-needed lab

setup-test:
	@scripts/setup.sh --if-needed test

setup-compiled:
	@scripts/setup.sh --if-needed compiled
	@scripts/compiled.sh out/compiled

setup-kernel:
	@scripts/setup.sh --if-needed kernel

setup-arm64:
	@scripts/setup.sh --if-needed arm64

demo: setup ## measure plain TCP and SOS on long paths, one and two in parallel: table, bars, out/demo.png, out/demo.json (root)
	@$(python) -m sos_testbed demo --out out

quick-start: setup ## two kind clusters with ordinary pods over an emulated WAN, which keep running for experiments: docs/quick-start.md (root; needs a container engine)
	@$(python) -m pytest e2e --keep-cluster --cluster sos-e2e-try -k first_accelerated_byte
	@echo 'The clusters are up. Next: export KUBECONFIG=$(CURDIR)/out/e2e/a/kubeconfig:$(CURDIR)/out/e2e/b/kubeconfig PATH=$(CURDIR)/out/release:$$PATH:~/.cache/sos/bin'

quick-start-bridge: setup ## two sites with Open vSwitch on a kind cluster, which keeps running for experiments: docs/quick-start-bridge.md (root; needs a container engine)
	@$(python) -m pytest e2e --small --keep-cluster --cluster sos-e2e-try -k "sites_become_ready or fast_with_the_service"
	@echo 'The cluster is up. Next: export KUBECONFIG=$(CURDIR)/out/e2e/kubeconfig PATH=$$PATH:~/.cache/sos/bin'

test: setup-test ## every test suite, without the tests of test-long and test-soak; the last line is `N passed, N failed` (root)
	@$(python) scripts/test.py

test-long: setup-test ## slow tests, then measuring tests one by one: gigabytes in each direction, balance, delays, the link emulator (root)
	@$(python) scripts/test.py operator-slow testbed-slow testbed-measures

test-compiled: setup-compiled ## the controller's tests with the controller compiled as in its image (root)
	@$(python) scripts/test.py controller-compiled

test-kernel: setup-kernel ## scenarios on Debian's kernel and its Open vSwitch, in a virtual machine (KVM where it boots, else emulation): KERNEL=6.1|backports; ARGS='--only overlay' (testbed/kernel/README.md; root)
	@$(python) testbed/kernel/run.py $(if $(KERNEL),--kernel $(KERNEL)) $(ARGS)

test-arm64: setup-arm64 ## unit tests of the agent's crates built for arm64, in an emulated process (root for the set-up)
	@$(python) scripts/test.py agent-image-arm64

test-soak: setup-test ## the longest tests: an operator killed fifty times, an API server down for a minute, hosts silent for a quarter of an hour (root)
	@$(python) scripts/test.py operator-long testbed-long

e2e: setup ## tests on a kind cluster: images, chart, pods, faults (root; needs a container engine); SUITE=install|traffic|faults|upgrade|scale|external|overlay|soak|peers|release|uninstall: a single suite; SUITE=short: the minimum for each change, with fewer nodes; CNI=kube-router: with this network plugin in place of kind's; KIND_NODE_IMAGE of another Kubernetes version; MINUTES=60: duration of the soak
	@$(if $(CNI),SOS_E2E_CNI=$(CNI)) $(if $(MINUTES),SOS_E2E_SOAK_MINUTES=$(MINUTES)) $(python) -m pytest $(or $(e2e_$(or $(SUITE),whole)),$(error there is no SUITE $(SUITE): `make help` names them)) $(if $(KEEP),--keep-cluster)

bench: setup bench-controller ## more paths than the demo, both directions, 1 Gbit/s; the controller compared with a learning switch; the operator; balances; sampling; handshakes; a port scan beside pings; results in out/bench (root)
	@$(python) -m sos_testbed bench --out out/bench
	@$(python) -m sos_testbed bench-balance --out out/bench
	@$(python) bench/measure/sampling.py --out out/bench
	@$(python) bench/measure/handshakes.py --out out/bench
	@$(python) bench/measure/ack_scan.py --out out/bench
	@$(MAKE) --no-print-directory bench-operator

bench-controller: setup-compiled ## the controller part of bench: PEER='CMD with {port}' measures another controller, too
	@cargo build -q --release --locked --manifest-path bench/controller/Cargo.toml
	@$(python) bench/controller/run.py --compiled out/compiled/site --out out/bench $(if $(PEER),--peer '$(PEER)')

bench-operator: setup-test ## the operator part of bench: 50 sites, 50 pools, 1,000 services; duration of a change and of kubectl sos status, writes of a resync, memory; fails if a target is missed
	@$(python) bench/operator/scale.py --out out/bench

bench-wan: setup ## SOS compared with plain TCP, tuned hosts (bbr, 64 MB buffers), iperf3, MPTCP, haproxy and GridFTP on seven paths, 5 runs of 20 s: two hours or more; resumes after an interruption; ARGS='--only 59ms --runs 1' (bench/wan/README.md; root)
	@$(python) bench/wan/run.py --out out/bench $(ARGS)

bench-matrix: setup ## regression matrix: SOS compared with plain TCP and with each of its own paths alone on thirty networks, 5 runs of 10 s: two and a half hours; resumes after an interruption; ARGS='--only equal --runs 1' (bench/matrix/README.md; root)
	@$(python) bench/matrix/run.py --out out/bench $(ARGS)

bench-relay: setup ## CPU time of an agent pair per byte compared with haproxy, socat and plain TCP, at 1 Gbit/s and at an unlimited rate, without delay; cost and gain of compression: twenty-five minutes; ARGS='--only flat --runs 1' (bench/relay/README.md; root)
	@$(python) bench/relay/run.py --out out/bench $(ARGS)

bench-short: setup ## short requests over 100 ms, and connections per second, compared with plain TCP and haproxy: twenty-five minutes; ARGS='--only 1kb --runs 1' (bench/short/README.md; root)
	@$(python) bench/short/run.py --out out/bench $(ARGS)

bench-sessions: setup ## 10,000 sessions at one pair of agents: memory, opening rate; bursts, slow readers, small sessions during bulk transfers: twenty minutes; ARGS='--only idle --runs 1' (bench/sessions/README.md; root)
	@$(python) bench/sessions/run.py --out out/bench $(ARGS)

figures: setup ## tables of docs/performance.md from benchmark results in out/bench, or FROM=DIR
	@$(python) scripts/figures.py $(or $(FROM),out/bench)

crds: ## all CustomResourceDefinitions as one file, out/sos.crds.yaml, a part of each release
	@scripts/crds.sh $(or $(OUT),out)/sos.crds.yaml

plugin: setup ## kubectl sos as one executable file, out/kubectl-sos, which needs Python 3.11 only (docs/plugin.md)
	@$(python) scripts/plugin.py --out $(or $(OUT),out)

release: setup ## the files of a release in out/release: chart, list of images, plugin, krew manifest, CRDs, checksums; REGISTRY=ghcr.io/acme of the images, VERSION=0.1.0, REPOSITORY=https://github.com/acme/sos (needs helm)
	@$(python) scripts/release.py --registry '$(or $(REGISTRY),$(error REGISTRY is missing: make release REGISTRY=ghcr.io/acme))' $(if $(VERSION),--version '$(VERSION)') $(if $(REPOSITORY),--home '$(REPOSITORY)')

docs: setup ## the documentation as a site with search, in out/docs; a link to a page, heading or file that does not exist fails the build
	@.venv/bin/uv venv -q --clear .venv/docs
	@.venv/bin/uv pip install -q --python .venv/docs/bin/python --require-hashes -r docs/site/requirements.txt
	@.venv/docs/bin/sphinx-build -q -E -W --keep-going -b html -d out/docs-cache -c docs/site . out/docs
	@cp out/docs/README.html out/docs/index.html
	@echo 'docs: out/docs/index.html'

deb: setup ## the Debian package of the agent for machines outside Kubernetes, in out/ (docs/concepts/machines.md)
	@scripts/deb.sh $(or $(OUT),out)

lab: setup ## a lab for experiments (the same as ./lab up)
	@./lab up

check: lint test test-compiled test-long test-soak ## all checks that must pass before a change is merged

worlds: setup-test ## generated worlds at their schemas' limits: COUNT=10000 through CRD admission, the compiler and the parsers of controller, nodes and agents; LIVE=1000 on an API server with a running operator (root)
	$(python) scripts/worlds.py --count $(or $(COUNT),10000)
	SOS_LIVE_WORLDS=$(or $(LIVE),1000) $(python) -m pytest operator -s -k generated_worlds_cause_no_exit

fuzz: setup ## every parser of network input, a million cases each; findings in out/fuzz/found
	@$(python) scripts/fuzz.py $(ARGS)

lint: setup ## style, types, import rules; changes nothing
	$(python) scripts/lint.py

fmt: setup ## format all code
	.venv/bin/ruff format -q $(python_folders) scripts
	.venv/bin/ruff check -q --fix-only $(python_folders) scripts
	for folder in $(cargo_folders); do cargo fmt --manifest-path $$folder/Cargo.toml --all; done

clean: ## remove labs, build results and measurements (downloads stay)
	@if [ -x $(python) ] && [ -e .venv/.set-up ]; then $(python) -m sos_testbed down --all; fi
	for folder in $(cargo_folders); do cargo clean -q --manifest-path $$folder/Cargo.toml; done
	rm -rf out .venv .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache

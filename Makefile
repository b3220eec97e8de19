# One command per need. `make run` and `make test` do all their own set-up; everything lands in .venv and in the cache.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
KIND ?=
RANDOM ?=
GRAPH ?=
SHAPES ?=
SBOM ?= build/sbom.json
KILLS ?= $(if $(filter chaos,$(MAKECMDGOALS)),100,$(if $(filter test-all,$(MAKECMDGOALS)),10,50))
.DEFAULT_GOAL := help
# Without bytecode on the disk, each of the hundreds of processes of a test run compiles what it imports, and each worker rewrites all tests.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: console help setup quick run wheel test test-all test-containers check docs format bench bench-ingest bench-failover bench-recovery chaos chaos-ingest chaos-notices try-notices soak simulate simulate-clocks simulate-notices simulate-pools yardsticks sbom pin-images lock clean

help:
	@echo "make run     start everything: embedded servers, example fleet, example job (Ctrl-C stops it)"
	@echo "make setup   create the Python environment for tests and checks, without running anything"
	@echo "make quick   the part of make check that takes seconds: format, lint, plain English, import order, timing of tests"
	@echo "make test    prove each promise (KIND=unit|property|contract|integration|migration|fault|simulation: one kind;"
	@echo "             RANDOM=1: in random order, RANDOM=12345: in the order of that seed)"
	@echo "make test-all   the same and all that takes longer: every fault at every gateway, whole stacks, all seeds, the ladders of kills"
	@echo "make test-containers   every service of docker-compose.yml as a container without an engine (root, debootstrap, runc; 25 minutes)"
	@echo "make check   make quick, and types, the console, and the docs"
	@echo "make console  build the console's page from console/ (needs Node; the platform doesn't)"
	@echo "make docs    build the docs as a site, into build/site"
	@echo "make bench   two works side by side with plain Spark, Hazelcast Jet and Flink, and the latency from answer to result;"
	@echo "             then what each query of NEXMark costs at the desk"
	@echo "             (BENCH='--repetitions 1 --side strandline --side jet --work W1': a part of it)"
	@echo "make chaos KILLS=100   break every part of a running job and what it stands on, some at a time; check every result"
	@echo "             (GRAPH=1: of a job with branches, sessions, windows that count, a join and a lookup that changes;"
	@echo "             SHAPES=1: of jobs over records of mixed shapes)"
	@echo "make chaos-ingest KILLS=50   break gateways and Kafka under load; count what was lost or written twice"
	@echo "make chaos-notices KILLS=100 MINUTES=60   kill control services while bad receivers get notices; count what was lost or repeated"
	@echo "make try-notices   cause each condition of a notice on a real stack; print each message that was received"
	@echo "make bench-ingest   what each gateway takes, what a record costs it, how soon it acknowledges"
	@echo "make bench-failover   seconds without results when a runner, its JVM or the leading control service is killed"
	@echo "make bench-recovery   seconds from kill -9 under load to results, beside plain Spark; exactly_once against none"
	@echo "make soak HOURS=2   the example for hours, with samples of memory, descriptors, threads and disk use; fails if one grows"
	@echo "make simulate SEEDS=100000   histories of a job in memory, with kills, zombies and upgrades; count what is wrong"
	@echo "make simulate-clocks SEEDS=100000   histories with wrong clocks and rejected records; count late records and stuck windows"
	@echo "             (RULES=all: compare the rule with its former form and with others)"
	@echo "make simulate-notices SEEDS=10000   histories of notices with kills and bad receivers; count what is lost, repeated or too much"
	@echo "make simulate-pools SEEDS=1000 JOBS=100   histories of jobs in pools with kills, zombies, bad jobs and outages of the ledger"
	@echo "make yardsticks   sizes by package, the engine's lines, and tests of kinds outside of their folders"
	@echo "make format  rewrite the code in the project's format"
	@echo "make wheel   build the wheel and its checksum, into build/wheel"
	@echo "make sbom    write which packages the image holds, with versions and hashes (CycloneDX)"
	@echo "make lock    resolve the dependencies again and write the three lock files"
	@echo "make pin-images   resolve the tags of all images to digests and write them into Dockerfile and docker-compose.yml"
	@echo "             (CHECK=1: only compare; REGISTRY=URL: a mirror to query)"

$(VENV)/.run-ready: requirements.lock requirements-build.lock pyproject.toml scripts/make-environment
	@sh scripts/make-environment $(PYTHON) $(VENV) requirements.lock
	@touch $@

$(VENV)/.test-ready: requirements-dev.lock requirements-build.lock pyproject.toml scripts/make-environment
	@sh scripts/make-environment $(PYTHON) $(VENV) requirements-dev.lock
	@touch $@ $(VENV)/.run-ready

run: $(VENV)/.run-ready
	@$(BIN)/strandline example

WITHOUT_SERVERS := unit property simulation
WITH_SERVERS := contract migration integration fault
KINDS = $(or $(KIND),$(WITHOUT_SERVERS) $(WITH_SERVERS))
PYTEST = $(BIN)/python -m pytest $(if $(RANDOM),-p randomly $(if $(filter-out 1,$(RANDOM)),--randomly-seed=$(RANDOM),),)
# One worker waits for servers, and one for the faults of a broker, so two more than cores. With servers, the tests of a module stay together.
WORKERS ?= 4
SHARED = $(if $(filter-out 1,$(WORKERS)),-n $(WORKERS) --dist $(if $(filter $(WITH_SERVERS),$(KINDS)),loadfile --no-loadscope-reorder,worksteal),)
# $(call run-tests,OPTIONS): every kind that is asked for.
run-tests = $(foreach kind,$(filter-out $(WITHOUT_SERVERS) $(WITH_SERVERS),$(KINDS)),echo "no kind of test is called '$(kind)'" >&2; exit 2;) \
	$(PYTEST) $(1) $(SHARED) $(addprefix tests/,$(KINDS))

test: $(VENV)/.test-ready
	@$(call run-tests,)

# Needs root and Debian's debootstrap and runc, which few machines have, and half an hour.
CONTAINERS := tests/integration/test_containers.py tests/integration/test_dockerfile.py

test-all: $(VENV)/.test-ready
	@$(call run-tests,-m 'long or not long' --hypothesis-profile untimed $(addprefix --ignore=,$(CONTAINERS)))
	@$(if $(filter-out fault,$(KIND)),:,$(BIN)/python -m tests.fault.job_ladder --kills $(KILLS) --failpoints 1)
	@$(if $(filter-out fault,$(KIND)),:,$(BIN)/python -m tests.fault.ingest_ladder --kills $(KILLS) --by-turns --at-once 2)

test-containers: $(VENV)/.test-ready
	@$(PYTEST) -m 'long or not long' $(CONTAINERS)

setup: $(VENV)/.test-ready

# The part of `check` that takes seconds. The pre-commit hooks call it, too.
quick: $(VENV)/.test-ready
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/python scripts/words_check.py
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python scripts/yardsticks.py --check
	@$(BIN)/python -m tests.support.timing_check

check: quick
	@$(BIN)/mypy
	@$(MAKE) --no-print-directory check-console
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

NODE_TOOLS := console/tools/node_modules/.package-lock.json
$(NODE_TOOLS): console/tools/package-lock.json console/tools/package.json
	@cd console/tools && npm ci --no-audit --no-fund --ignore-scripts --silent && touch node_modules/.package-lock.json

# The built page is committed: only its development needs Node.
.PHONY: check-console
check-console:
	@if command -v npm >/dev/null 2>&1; then $(MAKE) --no-print-directory $(NODE_TOOLS) && cd console/tools && \
		npm run --silent types && node build.mjs --check; \
		else echo "Node isn't installed: the console's page was NOT compared with its sources"; fi

console: $(NODE_TOOLS)
	@cd console/tools && npm run --silent types && node build.mjs

docs: $(VENV)/.test-ready
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "the docs are in build/site/index.html"

format: $(VENV)/.test-ready
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(VENV)/.test-ready
	@$(BIN)/python -m benchmarks $(BENCH)
	@$(if $(BENCH),:,$(BIN)/python -m benchmarks.nexmark)
	@$(if $(BENCH),:,$(BIN)/python -m benchmarks.decoder --formats)

chaos: $(VENV)/.test-ready
	@$(BIN)/python -m tests.fault.job_ladder --kills $(KILLS) $(if $(GRAPH),--graph,) $(if $(SHAPES),--shapes,)

chaos-ingest: $(VENV)/.test-ready
	@$(BIN)/python -m tests.fault.ingest_ladder --kills $(KILLS)

MINUTES ?= 60
MISTAKE ?=
chaos-notices: $(VENV)/.test-ready
	@$(BIN)/python -m tests.fault.notice_kills --kills $(if $(filter command,$(firstword $(origin KILLS))),$(KILLS),100) --minutes $(MINUTES) \
		--mistake "$(MISTAKE)"

try-notices: $(VENV)/.test-ready
	@$(BIN)/python -m tests.fault.notice_stack

bench-ingest: $(VENV)/.test-ready
	@$(BIN)/python -m benchmarks.ingest

bench-failover: $(VENV)/.test-ready
	@$(BIN)/python -m tests.fault.failover_times --kills $(if $(filter command,$(firstword $(origin KILLS))),$(KILLS),5)

bench-recovery: $(VENV)/.test-ready
	@$(BIN)/python -m benchmarks.recovery

HOURS ?= 2
soak: $(VENV)/.test-ready
	@mkdir -p build
	@$(BIN)/python -m benchmarks.soak --hours $(HOURS) --samples build/soak-samples.jsonl

yardsticks: $(VENV)/.run-ready
	@$(BIN)/python scripts/yardsticks.py

SEEDS ?= 100000
FIRST ?= 0
JOBS ?= 100
RULES ?= current
simulate-clocks: $(VENV)/.test-ready
	@$(BIN)/python -m tests.simulation.test_clocks --seeds $(SEEDS) --first $(FIRST) --rules $(RULES)

simulate-notices: $(VENV)/.test-ready
	@$(BIN)/python -m tests.simulation.test_notices --seeds $(SEEDS) --first $(FIRST)

simulate-pools: $(VENV)/.test-ready
	@$(BIN)/python -m tests.simulation.test_pools --seeds $(SEEDS) --first $(FIRST) --jobs $(JOBS)

simulate: $(VENV)/.test-ready
	@$(BIN)/python -m tests.simulation.test_simulation --seeds $(SEEDS) --first $(FIRST)

sbom: $(VENV)/.test-ready
	@mkdir -p $(dir $(SBOM))
	@PYTHONWARNINGS=ignore::UserWarning $(BIN)/cyclonedx-py requirements requirements.lock --pyproject pyproject.toml --output-format JSON --output-reproducible \
		--output-file $(SBOM)
	@echo "what the image holds of Python packages is in $(SBOM) (CycloneDX)"

# The wheel and its checksum, built with the locked build tools. The same commit gives the same bytes.
wheel: $(VENV)/.test-ready
	@rm -rf build/wheel build/lib build/bdist.* *.egg-info && mkdir -p build/wheel
	@SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/wheel .
	@cd build/wheel && sha256sum *.whl > SHA256SUMS && cat SHA256SUMS

# REGISTRY: a mirror to query instead of the registry of each image.
pin-images: $(VENV)/.run-ready
	@$(BIN)/python scripts/pin_images.py $(if $(CHECK),--check,) $(if $(REGISTRY),--registry $(REGISTRY),)

lock: $(VENV)/.test-ready
	@$(BIN)/pip-compile -q --generate-hashes --strip-extras --no-emit-index-url --no-emit-find-links --allow-unsafe \
		--all-build-deps --only-build-deps -o requirements-build.lock pyproject.toml
	@$(BIN)/pip-compile -q --generate-hashes --strip-extras --no-emit-index-url --no-emit-find-links --allow-unsafe \
		--extra apprise --extra avro --extra embedded --extra postgresql --extra protobuf -o requirements.lock pyproject.toml
	@$(BIN)/pip-compile -q --generate-hashes --strip-extras --no-emit-index-url --no-emit-find-links --allow-unsafe \
		--extra apprise --extra avro --extra embedded --extra postgresql --extra protobuf --extra dev -c requirements.lock -c requirements-build.lock -o requirements-dev.lock pyproject.toml

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache

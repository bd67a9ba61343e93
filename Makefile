# What a person types. `make help` lists it.

STAGE := target/gpool
RELEASE := target/release
GENERATED := target/generations
STATIC_TARGET := x86_64-unknown-linux-gnu
STATIC := target/static/$(STATIC_TARGET)/release
# Built alone: in one build cargo would unify the features of no_std libraries with those of programs.
SHIMS := gpool-interposer-cuda gpool-interposer-nvml
SIMULATED := gpool-simulated-cuda gpool-simulated-nvml
# One build of the shims for each generation of the driver, which differ in the names that they export; the list is
# that of driver-abi/src/lib.rs. Each has a target directory, or cargo would build all of them anew each time.
GENERATIONS := 535 550 555 580
FIRST_GENERATION := $(firstword $(GENERATIONS))
LIBRARIES := $(SHIMS) $(SIMULATED)
EXCLUDE := $(addprefix --exclude ,$(LIBRARIES))
CARGO := cargo
CARGO_FLAGS := --locked --quiet
# Programs that tests start unwind as those must (cargo's panic setting does not hold for tests): otherwise all of their
# libraries would be compiled twice. What is shipped, and the shims in every profile, aborts.
UNWINDING := CARGO_PROFILE_DEV_PANIC=unwind
UNIT_TESTS := $(UNWINDING) $(CARGO) test $(CARGO_FLAGS) --workspace $(EXCLUDE)
# Models of the region's protocol: another build, because loom takes the place of the atomics.
MODELS := RUSTFLAGS="--cfg loom" $(CARGO) test $(CARGO_FLAGS) -p gpool-interposer-logic --test models --target-dir target/models

.PHONY: help prepare build check lint package demo test unit-tests models sanitizers bench test-long test-gpu gpu-bundle advisories reference licences docs clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 14

prepare: ## Install what this machine lacks of the Debian packages for the build, the demo and the playground
	@tests/prepare.sh

build: ## Build everything and lay it out in target/gpool
	@# Of what this is a build; taken before it, because files may change meanwhile.
	@mkdir -p target && { git describe --always --dirty --exclude '*' 2> /dev/null || echo unknown; } > target/COMMIT
	$(CARGO) build $(CARGO_FLAGS) --release --workspace $(EXCLUDE)
	@# The shims are linked as a whole by one thread each, so what is linked statically is compiled beside them. What does not
	@# differ between generations is compiled for the first one: the others begin with its directory.
	RUSTFLAGS="-C target-feature=+crt-static" \
	    $(CARGO) build $(CARGO_FLAGS) --release -p gpool-runtime-hook --target $(STATIC_TARGET) --target-dir target/static \
	    & static=$$!; \
	for generation in $(GENERATIONS); do \
	    if [ ! -e $(GENERATED)/$$generation ] && [ -e $(GENERATED)/$(FIRST_GENERATION) ]; then \
	        rm -rf $(GENERATED)/begun && cp -a $(GENERATED)/$(FIRST_GENERATION) $(GENERATED)/begun \
	        && mv $(GENERATED)/begun $(GENERATED)/$$generation || { kill $$static; exit 1; }; fi; \
	    for library in $(SHIMS); do \
	    GPOOL_DRIVER_GENERATION=$$generation $(CARGO) build $(CARGO_FLAGS) --profile guest -p $$library \
	        --target-dir $(GENERATED)/$$generation || { kill $$static; exit 1; }; done; done; \
	for library in $(SIMULATED); do \
	    $(CARGO) build $(CARGO_FLAGS) --release -p $$library || { kill $$static; exit 1; }; done; \
	wait $$static
	rm -rf $(STAGE)
	mkdir -p $(STAGE)/bin $(STAGE)/libexec $(STAGE)/lib $(STAGE)/simulated
	cp $(RELEASE)/gpool $(RELEASE)/gpool-supervisor $(RELEASE)/gpool-device-plugin $(RELEASE)/gpool-simgpu $(STAGE)/bin/
	cp $(RELEASE)/gpool-tenant $(RELEASE)/gpool-demo $(RELEASE)/gpool-integration $(STAGE)/bin/
	cp $(RELEASE)/gpool-bench $(RELEASE)/gpool-launch-cost $(RELEASE)/gpool-shim-stand $(STAGE)/bin/
	cp $(RELEASE)/gpool-package-pages $(RELEASE)/gpool-package-tree $(STAGE)/bin/
	cp $(STATIC)/gpool-runtime $(STAGE)/bin/
	cp $(STATIC)/gpool-hook $(STATIC)/gpool-run $(RELEASE)/gpool-gpu-test $(STAGE)/libexec/
	for generation in $(GENERATIONS); do mkdir $(STAGE)/lib/$$generation && for shim in cuda nvml; do \
	    cp $(GENERATED)/$$generation/guest/libgpool_shim_$$shim.so $(STAGE)/lib/$$generation/libgpool-$$shim.so \
	    || exit 1; done || exit 1; done
	$(CARGO) tree $(CARGO_FLAGS) -p gpool-runtime-hook --edges normal --prefix none --no-dedupe | sed 's/ (.*//' \
	    | sort -u > $(STAGE)/wrapper-crates
	cp target/COMMIT $(STAGE)/
	cp $(RELEASE)/nvidia-cuda-mps-control $(STAGE)/simulated/
	cp $(RELEASE)/libgpool_simulated_cuda.so $(STAGE)/simulated/libcuda.so.1
	cp $(RELEASE)/libgpool_simulated_nvml.so $(STAGE)/simulated/libnvidia-ml.so.1

check: ## Run the fast gates: format, lints, dependencies, rooms, symbols, texts, the manual
	$(CARGO) fmt --check
	@$(MAKE) --no-print-directory lint
	if $(CARGO) deny --version > /dev/null 2>&1; then $(CARGO) deny check bans licenses sources; \
	    else echo "skipped: cargo-deny is not installed"; fi
	$(UNWINDING) $(CARGO) test $(CARGO_FLAGS) -p gpool-tests --test rooms --test symbols --test messages --test documentation \
	    --test packages --test device_nodes

# The programs that say their version have that of the package. No other build has one: each commit would have them linked anew.
package: export GPOOL_VERSION = $(shell packaging/version.sh)
package: ## Pack what is built: gpool and a simulated GPU as .deb, gpool as .rpm, into target/package
	@tests/prepare.sh package
	@$(MAKE) --no-print-directory build
	rm -rf target/package
	packaging/pack.sh $(STAGE) target/package "$$GPOOL_VERSION"
	@ls -l target/package

demo: ## Run the main job and judge it: three containers share one simulated GPU
	@tests/prepare.sh
	@$(MAKE) --no-print-directory build
	@$(STAGE)/bin/gpool-demo

test: ## Run everything that continuous integration runs
	@tests/prepare.sh test
	@$(MAKE) --no-print-directory build
	$(CARGO) fmt --check
	@# What only computes does so when a processor has nothing else to do (SCHED_IDLE): scenarios mostly wait, and those
	@# that judge shares hardly feel it; one that fails runs once more then, for which its time is counted (nice). clippy is the
	@# last of it, because cargo lets nobody else begin in its directory meanwhile. What fetching mounts is no scenario's to see.
	@# Some unit tests are one long test each: two lines of them keep both processors at work.
	@# What runs beside has a session of its own, so that it can be ended with all that it has started.
	@unshare --mount nice -n 19 chrt --idle 0 timeout 900 $(STAGE)/bin/gpool-integration --fetch > target/fetch.log 2>&1 & fetched=$$!; \
	    setsid nice -n 19 chrt --idle 0 $(MAKE) --no-print-directory -j1 unit-tests models sanitizers lint & others=$$!; \
	    files=; give_up() { kill $$fetched $$files -$$others 2> /dev/null; wait; exit 1; }; \
	    trap give_up INT; \
	    $(STAGE)/bin/gpool-integration --alone || give_up; \
	    $(UNIT_TESTS) --test '*' > target/test-files.log 2>&1 & files=$$!; \
	    $(UNIT_TESTS) --lib --bins && $(UNIT_TESTS) --doc; passed=$$?; \
	    wait $$files || passed=1; cat target/test-files.log; \
	    [ $$passed = 0 ] || give_up; \
	    wait $$fetched; \
	    $(STAGE)/bin/gpool-integration --together; passed=$$?; wait $$others && exit $$passed

unit-tests:
	$(UNIT_TESTS) --no-run

lint: ## Run clippy, where it is installed
	@# The shims have no way to unwind.
	if $(CARGO) clippy --version > /dev/null 2>&1; then \
	    $(UNWINDING) $(CARGO) clippy $(CARGO_FLAGS) --workspace $(addprefix --exclude ,$(SHIMS)) --all-targets -- -D warnings \
	    && $(CARGO) clippy $(CARGO_FLAGS) $(addprefix -p ,$(SHIMS)) --all-targets -- -D warnings; fi

models: ## Try the orders in which the region's threads and processes may meet
	LOOM_MAX_PREEMPTIONS=3 $(MODELS)

sanitizers: ## Run what is built of the CUDA shim, and its tests, under the address and the thread sanitizer
	tests/sanitizers.sh

bench: ## Measure every figure of SPECIFICATION.md into target/bench/results.json
	@tests/prepare.sh
	@$(MAKE) --no-print-directory build
	@$(STAGE)/bin/gpool-bench

test-long: ## Run the searches that take too long for `make test`, a virtual machine, and a cluster of Kubernetes
	@tests/prepare.sh test
	@$(MAKE) --no-print-directory build
	$(STAGE)/bin/gpool-integration kill-storm-long
	$(STAGE)/bin/gpool-integration gpu-suite-long
	$(STAGE)/bin/gpool-integration daemon-reload-vm
	$(STAGE)/bin/gpool-integration kubernetes
	@# Four thousand: of gangs alone, each of which shares four GPUs for ten seconds of virtual time, that takes four minutes.
	PROPTEST_CASES=4000 $(UNIT_TESTS) --release --no-fail-fast -- --include-ignored
	LOOM_MAX_PREEMPTIONS=4 $(MODELS)
	@$(MAKE) --no-print-directory build
	tests/memory_checkers.sh

test-gpu: ## Run what needs a real NVIDIA GPU
	@if [ ! -e /dev/nvidiactl ]; then echo "skipped: no GPU"; else \
	    $(MAKE) --no-print-directory gpu-bundle || exit 1; \
	    for part in 1 2 3; do target/gpu-bundle/run --part $$part --out target/gpu/$$part || failed=1; done; \
	    exit $${failed:-0}; fi

gpu-bundle: ## Put what measures on a real GPU into target/gpu-bundle, to be carried to a machine that has one
	@# Also where there is a build: it may be of another commit than what is measured is said to be.
	@tests/prepare.sh
	@$(MAKE) --no-print-directory build
	@tests/gpu/bundle.sh

advisories: ## Compare the dependencies with what is known against them, with cargo-deny; needs its database's network
	$(CARGO) deny check advisories

reference: ## Write the pages of the manual that are made from the code
	$(CARGO) run $(CARGO_FLAGS) -p gpool-tests --bin gpool-manual

licences: ## Write the texts of the licences of others' crates into target/THIRD-PARTY-LICENCES.txt
	@mkdir -p target
	$(CARGO) run $(CARGO_FLAGS) -p gpool-tests --bin gpool-manual -- --licences > target/THIRD-PARTY-LICENCES.txt

docs: ## Make the book target/book of the manual, with mdbook
	@if command -v mdbook > /dev/null; then docs/book.sh target/book; \
	    else echo "mdbook is not installed; the pages in docs/ are readable without it" >&2; exit 1; fi

clean: ## Remove everything that was built
	$(CARGO) clean

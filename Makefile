# Starling's commands; `make help` lists them. CMake does the building: see CMakeLists.txt for its options.

TORCH ?=#          another version of torch than the pinned one, in an environment and a build folder of its own
CMAKE_ARGS ?=#     more for cmake, such as -DSTARLING_WERROR=ON
TASK ?=#           of the demo, in place of Fashion-MNIST: scripts/demo --help
BENCH ?=#          more for a benchmark, such as --repetitions 15
FOLDERS ?=#        of tests/, for coverage: all, if none are named
TSAN ?= transport exchange gossip# the folders of tests that `make sanitize` runs under TSan
FAULTS ?=#         of the fault matrix, or of `make faults-peers`: all, if none are named
FUZZ ?=#           more for the fuzzers, such as --seconds 1800 toml
PYTHONS ?=#        of the wheels, and of more modules in the bundle: versions or paths, such as 3.11 3.13
JOBS ?= $(shell nproc)

SUFFIX := $(if $(TORCH),-torch-$(TORCH))
VENV := .venv$(SUFFIX)
BUILD := build$(SUFFIX)

.DEFAULT_GOAL := build
# Every target: each has a line with its help.
.PHONY: $(shell sed -n 's/^\([a-z0-9_-]*\):.*\#\# .*/\1/p' $(firstword $(MAKEFILE_LIST)))

help:  ## this list
	@awk -F':.*## ' '/^[a-z0-9_-]+:.*## / {printf "make %-19s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

deps:  ## install what is missing: Debian packages, torch in .venv
	@TORCH=$(TORCH) scripts/bootstrap --venv $(VENV) $(BOOTSTRAP)

command: deps  ## build the command alone: .venv/bin/starling
	@cmake --log-level=NOTICE -G Ninja -S . -B $(BUILD) -DSTARLING_PYTHON=$(CURDIR)/$(VENV)/bin/python $(if $(PYTHONS),"-DSTARLING_PYTHONS=$(PYTHONS)") $(CMAKE_ARGS)
	@cmake --build $(BUILD) -j $(JOBS) --target starling-cli
	@ln -sf ../../$(BUILD)/bin/starling $(VENV)/bin/starling

build: command  ## build everything, the tests too
	@cmake --build $(BUILD) -j $(JOBS)

test: BOOTSTRAP = --tests
test: build  ## run the tests, without the long ones
	@scripts/dev-tools requirements-test.txt $(VENV)
	@scripts/dev-tools requirements-bench.txt $(VENV)
	@ctest --test-dir $(BUILD) --output-on-failure -j 2 -LE '^long$$'

test-long: BOOTSTRAP = --tests
test-long: build  ## run the long tests: many seeds, wheel, frameworks, notebook, launchers, programs on the package
	@scripts/dev-tools requirements-test.txt $(VENV)
	@scripts/dev-tools requirements-pack.txt $(VENV)
	@scripts/dev-tools requirements-examples.txt $(VENV)
	@scripts/dev-tools requirements-watch.txt $(VENV)
	@scripts/dev-tools requirements-docs.txt $(VENV)
	@scripts/dev-tools requirements-peers.txt $(VENV)
	@scripts/dev-tools requirements-launch.txt $(VENV)
	@scripts/dev-tools requirements-ray.txt $(VENV)
	@ctest --test-dir $(BUILD) --output-on-failure -j 2 -L '^long$$'

test-launchers: BOOTSTRAP = --tests
test-launchers: build  ## torchrun, MPI, Ray Train and, as root, a SLURM cluster: real runs on this machine
	@scripts/dev-tools requirements-test.txt $(VENV)
	@scripts/dev-tools requirements-launch.txt $(VENV)
	@scripts/dev-tools requirements-ray.txt $(VENV)
	@ctest --test-dir $(BUILD) --output-on-failure -R '^(train-launchers|python_launchers|examples_launch|examples_ray)$$'
	@if [ $$(id -u) = 0 ]; then scripts/try-slurm --starling $(BUILD)/bin/starling; \
	  else echo "SLURM is left out: scripts/try-slurm needs root"; fi

test-all: test  ## run all tests
	@$(MAKE) --no-print-directory test-long

demo: command  ## four workers learn Fashion-MNIST (or TASK) without an all-reduce, beside the same run with one
	@$(if $(TASK),scripts/dev-tools requirements-pack.txt $(VENV))
	@scripts/demo $(TASK) --starling $(VENV)/bin/starling

bench-accuracy: command  ## the demo's two runs, and narrow wires, with five paired seeds: out/bench/accuracy.json
	@bench/accuracy.py --starling $(VENV)/bin/starling $(BENCH)

bench-update: command  ## mixing and AdamW in one pass beside torch's own, on one core: out/bench/update.json
	@cmake --build $(BUILD) -j $(JOBS) --target bench-update
	@bench/one_program.py $(BUILD)/bin/bench-update $(BENCH)

bench-cuda: command  ## on a GPU: the update beside torch's, and a step alone and shared: out/bench/cuda.json
	@cmake --build $(BUILD) -j $(JOBS) --target bench-cuda
	@bench/one_program.py $(BUILD)/bin/bench-cuda $(BENCH)

bench-detection: command  ## how soon the others know that a worker was killed or stopped: out/bench/detection.json
	@cmake --build $(BUILD) -j $(JOBS) --target bench-detection
	@bench/one_program.py $(BUILD)/bin/bench-detection $(BENCH)

bench-exchange: BOOTSTRAP = --tests
bench-exchange: command  ## the exchange beside Gloo's, on loopback and an emulated link (root): out/bench/exchange.json
	@cmake --build $(BUILD) -j $(JOBS) --target bench-exchange
	@bench/exchange.py --program $(BUILD)/bin/bench-exchange $(BENCH)

bench-models: command  ## forward and backward of the small models beside eager PyTorch, on one core: out/bench/models.json
	@cmake --build $(BUILD) -j $(JOBS) --target bench-models starling_python
	@scripts/dev-tools requirements-pack.txt $(VENV)
	@scripts/dev-tools requirements-examples.txt $(VENV)
	@PYTHONPATH=$(BUILD)/python $(VENV)/bin/python bench/models.py --program $(BUILD)/bin/bench-models $(BENCH)

bench-overhead: BOOTSTRAP = --tests
bench-overhead: command  ## time of a step with nobody to mix with, memory, many workers on a host, protections: out/bench/overhead.json
	@cmake --build $(BUILD) -j $(JOBS) --target bench-overhead
	@bench/overhead.py --program $(BUILD)/bin/bench-overhead $(BENCH)

bench-python_step: BOOTSTRAP = --tests
bench-python_step: command  ## optimizer.step() from Python beside C++'s and torch's fused AdamW: out/bench/python_step.json
	@cmake --build $(BUILD) -j $(JOBS) --target bench-overhead starling_python
	@PYTHONPATH=$(BUILD)/python $(VENV)/bin/python bench/python_step.py --program $(BUILD)/bin/bench-overhead $(BENCH)

bench-step: BOOTSTRAP = --tests
bench-step: command  ## a step beside DDP's and Decent-DP's, on an emulated link (root): out/bench/step.json
	@cmake --build $(BUILD) -j $(JOBS) --target bench-step
	@scripts/dev-tools requirements-bench.txt $(VENV)
	@bench/step.py --program $(BUILD)/bin/bench-step --python $(VENV)/bin/python $(BENCH)

bench-time_to_loss: BOOTSTRAP = --tests
bench-time_to_loss: command  ## seconds until DDP's loss, beside DDP and Decent-DP, on emulated hosts (root): out/bench/time_to_loss.json
	@cmake --build $(BUILD) -j $(JOBS) --target starling_python
	@scripts/dev-tools requirements-bench.txt $(VENV)
	@scripts/dev-tools requirements-pack.txt $(VENV)
	@PYTHONPATH=$(BUILD)/python $(VENV)/bin/python bench/time_to_loss.py --starling $(VENV)/bin/starling $(BENCH)

bench-peers: BOOTSTRAP = --tests
bench-peers: command  ## each algorithm beside the peer that has it: losses, seconds, bytes (root): out/bench/peers.json
	@cmake --build $(BUILD) -j $(JOBS) --target starling_python
	@scripts/dev-tools requirements-bench.txt $(VENV)
	@scripts/dev-tools requirements-pack.txt $(VENV)
	@scripts/dev-tools requirements-peers.txt $(VENV)
	@PYTHONPATH=$(BUILD)/python $(VENV)/bin/python bench/peers.py --starling $(VENV)/bin/starling $(BENCH)

bench-async: BOOTSTRAP = --tests
bench-async: command  ## what a slow, stopped or dead worker costs the others under gossip (root): out/bench/async.json
	@cmake --build $(BUILD) -j $(JOBS) --target bench-async
	@bench/async.py --program $(BUILD)/bin/bench-async --starling $(BUILD)/bin/starling $(BENCH)

bench-loader: BOOTSTRAP = --tests
bench-loader: command  ## images per second and core beside torchvision's and DALI's loaders; text and translation: out/bench/loader.json
	@cmake --build $(BUILD) -j $(JOBS) --target bench-loader
	@scripts/dev-tools requirements-pack.txt $(VENV)
	@scripts/dev-tools requirements-examples.txt $(VENV)
	@scripts/dev-tools requirements-loader.txt $(VENV)
	@$(VENV)/bin/python bench/loader.py --program $(BUILD)/bin/bench-loader --starling $(BUILD)/bin/starling $(BENCH)

bench-planner: BOOTSTRAP = --tests
bench-planner: command  ## what the planner predicts beside measured steps, on emulated hosts (root): out/bench/planner.json
	@cmake --build $(BUILD) -j $(JOBS) --target bench-planner
	@bench/planner.py --program $(BUILD)/bin/bench-planner --starling $(BUILD)/bin/starling --python $(VENV)/bin/python $(BENCH)

bench-paper_steps: command  ## which of the paper's published step times the runtime model explains: a table
	@cmake --build $(BUILD) -j $(JOBS) --target bench-paper_steps
	@$(BUILD)/bin/bench-paper_steps

study-a2cid2: command  ## what A2CiD2's paper claims, on virtual workers; hours, goes on where it stopped: out/bench/a2cid2
	@bench/a2cid2_study.py --starling $(BUILD)/bin/starling $(BENCH)

faults: BOOTSTRAP = --tests
faults: command  ## real runs in which something fails, and what must hold: out/faults/matrix.json; FAULTS="dies-*" for some
	@STARLING=$(CURDIR)/$(BUILD)/bin/starling tests/faults/matrix.py $(FAULTS)

faults-peers: BOOTSTRAP = --tests
faults-peers: command  ## the same faults under torchrun with DDP, Decent-DP, torchft and Starling: out/faults/peers.json
	@cmake --build $(BUILD) -j $(JOBS) --target starling_python
	@scripts/dev-tools requirements-bench.txt $(VENV)
	@scripts/dev-tools requirements-peers.txt $(VENV)
	@PYTHONPATH=$(BUILD)/python $(VENV)/bin/python tests/faults/peers.py $(FAULTS)

bundle: build  ## the programs for a machine that has torch but no compiler: out/starling-*.tar.xz
	@scripts/bundle --build $(BUILD)

wheel: deps  ## wheels for PYTHONS="3.11 3.13", each tested where only Python and torch are: out/wheels
	@TORCH=$(TORCH) JOBS=$(JOBS) scripts/wheels --venv $(VENV) $(PYTHONS)

release: build wheel  ## wheels for PYTHONS, sources, programs and SBOM, each tested: out/release
	@$(VENV)/bin/python scripts/release --build $(BUILD)

docs: BOOTSTRAP = --tests
docs: command  ## the documentation site, offline: out/docs/index.html
	@cmake --build $(BUILD) -j $(JOBS) --target starling_python
	@scripts/dev-tools requirements-docs.txt $(VENV)
	@PYTHONPATH=$(BUILD)/python $(VENV)/bin/python scripts/docs --starling $(BUILD)/bin/starling

format:  ## format the C++ sources
	@scripts/format

check-format:  ## fail where `make format` would change something
	@scripts/format --check

sanitize: BOOTSTRAP = --tests
sanitize: deps  ## the torch-free tests and the fuzzers' corpus under ASan and UBSan, those of threads under TSan
	@scripts/sanitize address
	@scripts/fuzz --replay
	@scripts/sanitize thread $(TSAN)

coverage: BOOTSTRAP = --tests
coverage: deps  ## share of lines that the short tests run, by folder; FOLDERS="core topology": by their tests
	@scripts/dev-tools requirements-test.txt $(VENV)
	@scripts/dev-tools requirements-bench.txt $(VENV)
	@JOBS=$(JOBS) scripts/coverage $(FOLDERS)

fuzz: BOOTSTRAP = --tests
fuzz: deps  ## libFuzzer on every reader of files and of peers' bytes, a minute each; FUZZ="--seconds 1800 toml" for more
	@scripts/fuzz $(FUZZ)

clean:  ## remove what was built, keep .venv
	@rm -rf build build-*

# Each target works alone, in any order, in a fresh clone; scripts/setup.sh installs missing packages.
.PHONY: bench demo test soak fuzz mutants outside setup

# Otherwise each of the thousands of processes that the tests start would compile zarrfs anew.
unexport PYTHONDONTWRITEBYTECODE

# make demo STORE=/data/x.zarr: mounts and shows that store, read-only. STORE is passed in the environment, so that no shell parses it.
export STORE

demo: setup
	@demo/run.sh

# make test ARGS="-k staging": runs the tests. Three workers for two cores, since tests spend much of their time waiting.
test: setup
	.venv/bin/python -m pytest -n auto --dist loadfile --no-loadscope-reorder $(ARGS)

# make soak ARGS="tests/views": runs the same tests at full length, with forty times the random examples. Takes hours.
soak: setup
	ZARRFS_EXAMPLES=10 ZARRFS_ENDINGS=300 .venv/bin/python -m pytest -n auto --dist loadfile --no-loadscope-reorder --timeout 3600 $(ARGS)

# make fuzz SEED=7 MINUTES=60: reads randomly mutated stores until the time is over. Prints its seed (tests/hostile/README.md).
MINUTES = 10
export SEED MINUTES

fuzz: setup
	.venv/bin/python -m tests.fuzz --seed "$$SEED" --minutes "$$MINUTES"

# make mutants ARGS="index errno": injects small faults that the tests have to detect (tests/mutants.py). Takes one or several hours.
mutants: setup
	.venv/bin/python -m tests.mutants $(ARGS)

# make bench: measures speed, each result beside that of a peer in the same run. 15 minutes on an idle machine.
bench:
	@VENV=.venv-bench scripts/setup.sh bench
	@benchmarks/all.sh $(CURDIR)/.venv-bench/bin/python

# make outside ARGS="--suite xarray": runs the test suites of other projects with their temporary folders in a mount. Takes hours.
outside: setup
	.venv/bin/python -m tests.outside $(ARGS)

setup:
	@scripts/setup.sh test

# Each target works alone, in any order, in a fresh clone; scripts/setup.sh installs what is missing.
.PHONY: demo test soak fuzz mutants setup

# make demo STORE=/data/x.zarr: mount and show that store, read-only. Passed in the environment: no shell reads it.
export STORE

demo: setup
	@demo/run.sh

# make test ARGS="-k staging". Three at once for two cores: much of the time is waited.
test: setup
	.venv/bin/python -m pytest -n auto --dist loadfile --no-loadscope-reorder $(ARGS)

# make soak ARGS="tests/views": the same tests at full length, forty times the random examples. Takes hours.
soak: setup
	ZARRFS_EXAMPLES=10 ZARRFS_ENDINGS=300 .venv/bin/python -m pytest -n auto --dist loadfile --no-loadscope-reorder --timeout 3600 $(ARGS)

# make fuzz SEED=7 MINUTES=60: stores that are mutated at random, until the time is over. Prints its seed (tests/hostile/README.md).
MINUTES = 10
export SEED MINUTES

fuzz: setup
	.venv/bin/python -m tests.fuzz --seed "$$SEED" --minutes "$$MINUTES"

# make mutants ARGS="index errno": small faults that the tests have to notice (tests/mutants.py). Takes an hour, or some of them.
mutants: setup
	.venv/bin/python -m tests.mutants $(ARGS)

setup:
	@scripts/setup.sh test

"""The command line: what people and mount(8) run."""

"""Transformers: a store in, a store out, with one thing added. They are stacked by whoever opens the store."""

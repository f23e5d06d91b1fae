"""Transformers: stores that wrap a store and add one function each. The opener of a store stacks them."""

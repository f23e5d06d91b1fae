"""Memory: one budget for data whose size a store or a writer determines, and files beyond it."""

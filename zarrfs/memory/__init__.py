"""Memory: one budget for what stores and writers choose the size of, and files where it does not suffice."""

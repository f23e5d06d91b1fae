"""The life of a mount as those see it who are not its daemon: before, how it begins, how it ends, and when it is dead."""

"""Settings of hypothesis for tests that run beside others: no judgement by the clock, and fewer examples than its default."""

from hypothesis import settings

unhurried = settings(deadline=None, max_examples=50)

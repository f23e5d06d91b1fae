import pytest

pytest.register_assert_rewrite("tests.stores.conformance", "tests.stores.readable", "tests.support.stores")

import pytest

pytest.register_assert_rewrite("tests.support.conforming", "tests.support.comparing")

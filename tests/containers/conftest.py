import pytest

pytest.register_assert_rewrite("tests.containers.conformance")

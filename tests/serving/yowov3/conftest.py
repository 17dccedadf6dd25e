"""A checkout for tests that only read it."""

from __future__ import annotations

import pytest

from tests.yowov3_repo import Checkout, write_checkout


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """One that works."""
    return write_checkout(tmp_path_factory.mktemp("yowov3"))

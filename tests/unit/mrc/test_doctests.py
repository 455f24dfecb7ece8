"""The examples in the documentation strings of farstep.mrc are true."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize("module", ["addressing", "profiles"])
def test_examples_are_true(module):
    failed, attempted = doctest.testmod(importlib.import_module(f"farstep.mrc.{module}"))
    assert attempted > 0
    assert failed == 0

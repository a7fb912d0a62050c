"""The examples in the package's docstrings give what they show."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize("module", ["tasks.honeycomb", "tasks.honeycomb.query"])
def test_docstring_examples_give_what_they_show(module):
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0

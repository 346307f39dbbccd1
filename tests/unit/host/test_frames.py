"""Which line of a plugin is blamed for an exception."""

from __future__ import annotations

import importlib.util

import pytest

from endpick.host.failures import place

PLUGIN = "import json\n\n\ndef score(library):\n    return helper(library)\n\n\ndef helper(library):\n    return library()\n"


@pytest.fixture
def load(tmp_path):
    """`load("acme/plugin.py", source)`: a module from this file below a temporary folder, with its path."""

    def make(file: str, source: str):
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module, path

    return make


def blamed(call, *arguments) -> str:
    with pytest.raises(ValueError, match=r"no|Expecting") as caught:
        call(*arguments)
    inside = caught.value.__traceback__.tb_next  # this frame stands for the host's
    return place(caught.value.with_traceback(inside))


@pytest.mark.parametrize("file", ["acme/plugin.py", "site-packages/acme/plugin.py", "site-packages/acme_plugin.py"])
def test_innermost_plugin_line_is_blamed(load, file):
    plugin, path = load(file, PLUGIN)
    library, _ = load("site-packages/vendor/library.py", "def fail():\n    raise ValueError('no')\n")

    assert blamed(plugin.score, library.fail) == f"{path}:9 in helper"


def test_standard_library_is_not_blamed_either(load):
    plugin, path = load("acme/plugin.py", "import json\n\n\ndef score():\n    return json.loads('{')\n")

    assert blamed(plugin.score) == f"{path}:5 in score"


def test_other_modules_of_the_package_belong_to_the_plugin(load):
    plugin, _ = load("acme/plugin.py", PLUGIN)
    table, path = load("acme/tables/table.py", "def read():\n    raise ValueError('no')\n")

    assert blamed(plugin.score, table.read) == f"{path}:2 in read"


def test_no_plugin_is_blamed_where_no_plugin_code_ran():
    assert place(ValueError("no")) == ""

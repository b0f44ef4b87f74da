"""What `import stockade` offers is this list, and nothing that is not in it."""

from __future__ import annotations

import importlib

import stockade

PUBLIC = ["Command", "Executor", "Job", "Limits", "Network", "Policy", "Result", "Terminal", "profile", "run"]


def test_the_public_names_are_these_in_order() -> None:
    assert stockade.__all__ == sorted(stockade.__all__) == PUBLIC


def test_every_public_name_can_be_imported_and_no_other_is_loaded_on_first_use() -> None:
    given: dict[str, object] = {}
    exec("from stockade import *", given)
    assert sorted(set(given) - {"__builtins__"}) == PUBLIC
    assert sorted(stockade._HOMES) == PUBLIC
    for name, home in stockade._HOMES.items():
        assert getattr(stockade, name) is getattr(importlib.import_module(home), name)

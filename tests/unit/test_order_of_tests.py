"""Each half of the tests begins with long ones (tests/conftest.py), since `make test` has two workers."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.conftest import pytest_collection_modifyitems


def item(path: str, *marks: str) -> Any:
    return SimpleNamespace(path=Path("tests", path), get_closest_marker=lambda name: name in marks or None)


def test_each_half_begins_with_long_files_and_files_stay_whole() -> None:
    short = [item(f"unit/test_{letter}.py") for letter in "abcdef"]
    slow = [item("numerics/test_s.py"), item("numerics/test_s.py", "slow")]
    workflow = [item("workflow/test_w.py") for _ in range(3)]
    items = [*slow, *short, *workflow]
    pytest_collection_modifyitems(items)
    assert items[:3] == workflow
    assert items[len(items) // 2 :][:2] == slow
    assert [one for one in items if one in short] == short


def test_a_workflow_that_is_more_than_half_leaves_nothing_out() -> None:
    items = [item("unit/test_a.py"), item("numerics/test_s.py", "slow"), *(item("workflow/test_w.py") for _ in "abc")]
    before = list(items)
    pytest_collection_modifyitems(items)
    assert sorted(map(id, items)) == sorted(map(id, before))
    assert items[0].path.parent.name == "workflow"

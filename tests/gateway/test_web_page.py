"""The broker's own page as text: what can be said of it without a browser. `tests/conformance/web` has one."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from gateway.web_operations import WEB_OPERATIONS
from routing.administration import OPERATIONS

WEB = Path(str(files("gateway") / "web"))
MODULES = sorted(WEB.glob("*.js"))
FROM_TEXT = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|\beval\b|new Function|"
    r"\balert\(|\bprompt\(|window\.confirm|document\.cookie|localStorage"
)
"""What makes elements or code of text, holds up the page, or keeps more than a tab's time."""
ASKED = re.compile(r'\b(?:ask|all)\("([a-z_.-]+)"|operation: "([a-z_.-]+)"|"((?!amq)[a-z-]+\.[a-z_]+)", (?:\(|[a-z])')


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name)
def test_modules_are_small_and_make_nothing_of_text(module: Path) -> None:
    source = module.read_text()
    assert source.count("\n") <= 500
    assert FROM_TEXT.findall(source) == []


def test_nothing_is_from_elsewhere_and_all_that_is_imported_is_there() -> None:
    for file in WEB.iterdir():
        text = file.read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert not re.search(r"https?://|url\(|@import|//cdn", text), file.name
    for module in MODULES:
        for name in re.findall(r'(?:^import [^;"]*from |import\()"([^"]+)"', module.read_text(), re.MULTILINE):
            assert (WEB / name).is_file(), f"{module.name} imports {name}"
    page = (WEB / "index.html").read_text()
    named = re.findall(r'(?:src|href)="/web/([^"]+)"', page)
    assert named
    assert all((WEB / name).is_file() for name in named)
    assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|style=", page), "nothing inline"


def test_it_asks_for_nothing_that_there_is_not() -> None:
    there = OPERATIONS.keys() | WEB_OPERATIONS.keys()
    asked = {name for module in MODULES for found in ASKED.findall(module.read_text()) for name in found if name}
    assert len(asked) > 40
    assert asked <= there

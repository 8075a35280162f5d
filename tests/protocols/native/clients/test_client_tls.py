"""Files that a client's terms cannot be made of are named."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from protocols.native.clients.client_tls import tls_context


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    here, gone = tmp_path / "here.pem", tmp_path / "gone.pem"
    here.write_text("")
    for ca, cert, key in ((gone, None, None), (None, gone, None), (None, here, gone)):
        with pytest.raises(FileNotFoundError, match=r"gone\.pem"):
            tls_context(*(str(path) if path else None for path in (ca, cert, key)))


def test_a_file_with_something_else_in_it_is_named(tmp_path: Path) -> None:
    empty = str(tmp_path / "empty.pem")
    Path(empty).write_text("no certificate")
    for terms in ((empty,), (None, empty), (None, empty, empty)):
        with pytest.raises(ssl.SSLError, match=rf"^{empty}.*: nothing in PEM that can be used: "):
            tls_context(*terms)

"""What programs import from `millrace`: the errors that its clients say they raise are there to be caught."""

from __future__ import annotations

import inspect
import re

import millrace
from protocols.native import errors


def test_errors_that_clients_name_can_be_imported_from_the_package() -> None:
    public = [getattr(millrace, name) for name in millrace.__all__]
    said = " ".join(
        inspect.getdoc(member) or ""
        for one in public
        for _, member in [("", one), *inspect.getmembers(one, inspect.isroutine)]
    )
    named = set(re.findall(r"\w+", said)) & {
        name for name, one in vars(errors).items() if inspect.isclass(one) and issubclass(one, errors.MillraceError)
    }
    assert len(named) > 10
    assert named <= set(millrace.__all__)

"""docs/settings.md, made of the structs that `Config` consists of: names, defaults, and what their docstrings say.

python -m tests.support.settings_page       writes it anew
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec

from gateway.config import Config

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"

INTRODUCTION = """\
# Settings

All that a broker can be told. A setting `section.name` is a line in a file of TOML (`millrace serve --config FILE`), a
variable of the environment, or one of the options that `millrace serve --help` names; what comes later in this list
counts:

```toml
[limits]
connections_max = 5000          # MILLRACE_LIMITS_CONNECTIONS_MAX=5000
```

Tables and lists are JSON in the environment (`MILLRACE_USERS='{"ada": "secret"}'`). A name that is no setting, or a
number that makes no sense, is one line and exit code 2. All is read at the start; certificates and keys are looked at
again while the broker runs. Topics have settings of their own (`millrace topics describe NAME --settings`), queues
[arguments and policies](queues.md).

This page is made from the code by `python -m tests.support.settings_page`.
"""


def settings_page() -> str:
    """The whole page."""
    sections, tables = [("", Config)], [INTRODUCTION]
    for name, section in sections:
        fields = msgspec.structs.fields(section)
        sections += [(field.name, field.type) for field in fields if _is_section(field)]
        texts, prefix = _texts(section), f"{name}." if name else ""
        rows = [
            f"| `{prefix}{field.name}` | {_default(field)} | {_choices(field) + texts.get(field.name, '')} |"
            for field in fields
            if not _is_section(field)
        ]
        heading = f"## {name}\n\n{_in_a_line(inspect.getdoc(section) or '')}\n\n" if name else ""
        tables.append(f"{heading}| setting | default | |\n|---|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(tables)


def _is_section(field: msgspec.structs.FieldInfo) -> bool:
    return isinstance(field.type, type) and issubclass(field.type, msgspec.Struct)


def _texts(section: type) -> dict[str, str]:
    """What stands below each field of a struct."""
    (found,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    assert isinstance(found, ast.ClassDef)
    return {
        field.target.id: _in_a_line(inspect.cleandoc(text.value.value))
        for field, text in zip(found.body, found.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


def _in_a_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _choices(field: msgspec.structs.FieldInfo) -> str:
    """What it can be, if that is one of a few."""
    if get_origin(field.type) is not Literal:
        return ""
    return ", ".join(f"`{choice}`" for choice in get_args(field.type)) + ". "


def _default(field: msgspec.structs.FieldInfo) -> str:
    value: Any = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if value is None or value == "":
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"`{value if isinstance(value, str) else json.dumps(value)}`"
    if "bytes" in field.name:
        for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
            if value and value % size == 0:
                return f"{value:,} ({value // size} {unit})"
    return f"{value:,}"


if __name__ == "__main__":
    PAGE.write_text(settings_page())

"""The table of settings in the README, made from common/settings.py.

    python -m cli.settings_table [--write FILE | --check FILE]

Without an option it prints the table. FILE has it between `<!-- settings -->` and `<!-- /settings -->`.
"""

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from common.settings import Settings

_MARKED = re.compile(r"(?<=<!-- settings -->\n).*?(?=<!-- /settings -->)", re.DOTALL)


def table() -> str:
    """One row per setting, in the order of the source."""
    prefix = Settings.model_config["env_prefix"]
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        meaning = (field.description or "").replace("|", "\\|")
        rows.append(f"| `{prefix}{name.upper()}` | {_shown(field.default)} | {meaning} |")
    return "\n".join(rows) + "\n"


def replaced(text: str) -> str:
    """`text` with the current table between its markers. Raises ValueError when it has no markers."""
    new, count = _MARKED.subn(lambda _: table(), text)
    if count != 1:
        raise ValueError(f"expected one pair of <!-- settings --> and <!-- /settings --> lines, found {count}")
    return new


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m cli.settings_table", description="The table of settings.")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--write", type=Path, metavar="FILE", help="replace the table in FILE")
    action.add_argument("--check", type=Path, metavar="FILE", help="exit 1 when the table in FILE is an old one")
    options = parser.parse_args()
    file: Path | None = options.write or options.check
    if file is None:
        print(table(), end="")
        return 0
    text = file.read_text()
    new = replaced(text)
    if options.write:
        file.write_text(new)
    elif new != text:
        print(
            f"the settings in {file} are not up to date: python -m cli.settings_table --write {file}", file=sys.stderr
        )
        return 1
    return 0


def _shown(default: Any) -> str:
    value = default.get_secret_value() if isinstance(default, SecretStr) else default
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return "" if value is None or value == "" else f"`{value}`"


if __name__ == "__main__":
    sys.exit(main())

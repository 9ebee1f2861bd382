"""`tailrace keys new`."""

import re

from starlette.requests import HTTPConnection

from api.auth import KeyRing
from common.settings import Settings
from tests.cli.support import run


def test_a_new_key_is_known_by_its_line() -> None:
    shown = run("keys", "new", "team-a").out
    key = re.search(r"tr-[\w-]{43}", shown)
    line = re.search(r"^team-a:[0-9a-f]{64}$", shown, re.MULTILINE)
    assert key
    assert line
    ring = KeyRing.load(Settings(api_keys=line[0]))
    headers = [(b"authorization", f"Bearer {key[0]}".encode())]
    assert ring.owner(HTTPConnection({"type": "http", "headers": headers})) == "team-a"


def test_no_key_is_made_twice() -> None:
    assert run("keys", "new", "a").out != run("keys", "new", "a").out


def test_a_name_that_the_configuration_could_not_hold() -> None:
    done = run("keys", "new", "a,b")
    assert done.exit_code == 1
    assert done.err == "error: a key's name has letters, digits and _ . @ - only, not 'a,b'\n"

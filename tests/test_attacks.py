"""The fixed part of the attacks that the tests run; `make attack` runs all of them, and for longer."""

import json

import pytest
from attacks.__main__ import campaign
from attacks._common import ATTACKS, Effort


def held(name: str, effort: Effort) -> None:
    found = campaign([name], effort)[name]
    if not found["held"]:
        pytest.fail(json.dumps(found, indent=1, default=str))


@pytest.mark.parametrize("name", [name for name, one in ATTACKS.items() if "quick" in one.efforts])
def test_quick(name):
    held(name, "quick")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, one in ATTACKS.items() if "slow" in one.efforts])
def test_slow(name):
    held(name, "slow")


def test_every_attack_is_in_the_campaign():
    assert all("full" in one.efforts for one in ATTACKS.values())
    assert {name for name, one in ATTACKS.items() if "quick" in one.efforts}

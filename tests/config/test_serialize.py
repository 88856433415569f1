import dataclasses
import json
import math
import subprocess
import sys
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tyro.conf import Positional, arg

from kairode.config.serialize import first_difference, from_dict, to_dict
from kairode.errors import KairodeError


@dataclasses.dataclass(frozen=True)
class Agent:
    rate: float = 1e-3
    hidden: tuple[int, ...] = (64, 64)
    double: bool = False


@dataclasses.dataclass(frozen=True)
class Config:
    env: Annotated[Positional[str], arg(metavar="ENV")]
    agent: Agent = dataclasses.field(default_factory=lambda: Agent(rate=5.0))
    other: Agent | None = None
    limit: float | None = None
    bounds: tuple[float, int] = (0.0, 1)
    schedule: float | tuple[float, ...] | None = None
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.env == "mars":
            raise KairodeError("there is no environment 'mars'.")


def test_a_config_becomes_plain_json() -> None:
    config = Config("hiv", limit=math.inf, fields={"intervals": (1, 3)})
    found = to_dict(config)
    agent = {"rate": 1e-3, "hidden": [64, 64], "double": False}
    assert found == {
        "env": "hiv",
        "agent": {**agent, "rate": 5.0},
        "other": None,
        "limit": math.inf,
        "bounds": [0.0, 1],
        "schedule": None,
        "fields": {"intervals": [1, 3]},
    }
    assert '"limit": Infinity' in json.dumps(found)


numbers = st.floats(allow_nan=False)
agents = st.builds(Agent, rate=numbers, hidden=st.lists(st.integers()).map(tuple), double=st.booleans())
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.builds(
        Config,
        env=st.text().filter(lambda name: name != "mars"),
        agent=agents,
        other=st.none() | agents,
        limit=st.none() | numbers,
        bounds=st.tuples(numbers, st.integers()),
        schedule=st.none() | numbers | st.lists(numbers).map(tuple),
        fields=st.dictionaries(st.text(), plain, max_size=3),
    )
)
def test_there_and_back(config: Config) -> None:
    assert from_dict(Config, json.loads(json.dumps(to_dict(config)))) == config


def test_missing_fields_take_their_defaults() -> None:
    assert from_dict(Config, {"env": "hiv"}) == Config("hiv")
    # What is missing inside a nested config is that class's default, not that of the field it stands in.
    assert from_dict(Config, {"env": "hiv", "agent": {"double": True}}).agent == Agent(double=True)


def test_whole_numbers_are_numbers() -> None:
    found = from_dict(Config, {"env": "hiv", "limit": 3, "agent": {"rate": 1}})
    assert (found.limit, type(found.limit), type(found.agent.rate)) == (3.0, float, float)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"agent": {"rate": "fast"}}, 'c.json: agent.rate must be a number, got "fast".'),
        ({"agent": {"hidden": [1, 2.5]}}, "c.json: agent.hidden must be a list with an integer in each place, got"),
        ({"agent": {"double": 1}}, "c.json: agent.double must be true or false, got 1."),
        ({"agent": None}, "c.json: agent must be an object, got null."),
        ({"limit": "inf"}, 'c.json: limit must be a number or null, got "inf".'),
        ({"bounds": [1.0]}, "c.json: bounds must be a list of 2: a number, an integer, got [1.0]."),
        ({"fields": []}, "c.json: fields must be an object, got []."),
        ({"env": "mars"}, "c.json: there is no environment 'mars'."),
        ({"enw": 1}, "unknown field 'enw' in c.json. Did you mean 'env'?"),
        ({"agent": {"rat": 1}}, "unknown field 'agent.rat' in c.json. Did you mean 'agent.rate'?"),
    ],
)
def test_errors_name_file_field_and_what_is_expected(change: dict[str, Any], said: str) -> None:
    with pytest.raises(KairodeError) as error:
        from_dict(Config, {"env": "hiv", **change}, file="c.json")
    assert str(error.value).startswith(said)


def test_a_required_field_must_be_there() -> None:
    with pytest.raises(KairodeError, match=r"^env is missing: a string is needed\.$"):
        from_dict(Config, {})
    with pytest.raises(KairodeError, match=r"^c: the config must be an object, got \[\]\.$"):
        from_dict(Config, [], file="c")


def test_the_first_difference_in_words() -> None:
    one = to_dict(Config("hiv"))
    assert first_difference(one, one) == "nothing differs"
    other = to_dict(Config("hiv", Agent(hidden=(3,))))
    assert first_difference(one, other) == "agent.rate is 5.0 there and 0.001 here"
    other = to_dict(Config("hiv", other=Agent()))
    assert first_difference(one, other).startswith('other is null there and {"rate": 0.001')
    assert first_difference({"a": {"b": 1}}, {"a": {}}) == "a.b is 1 there and missing here"
    assert first_difference({"fit": {"iterations": 3000}}, {"fit": {"iterations": 500}}) == (
        "fit.iterations is 3000 there and 500 here"
    )


def test_nothing_here_imports_jax() -> None:
    modules = "config.serialize config.command_line config.run config.presets config.commands "
    modules += "runs.folder _lock runs.migrate seeds callbacks files"
    imports = "".join(f"import kairode.{name}\n" for name in modules.split())
    code = f"import sys\n{imports}assert 'jax' not in sys.modules and 'filelock' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)

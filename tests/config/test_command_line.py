import dataclasses
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import tyro
from hypothesis import given, settings
from hypothesis import strategies as st

from kairode.cli.common import parse_fields
from kairode.config.command_line import command_line
from kairode.errors import KairodeError


@dataclasses.dataclass(frozen=True)
class Agent:
    reward_scale: float = 1.0
    double: bool = False
    dueling: bool = True
    hidden: tuple[int, ...] = (64, 64)


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    latent: int = 10
    field: Agent = Agent()


@dataclasses.dataclass(frozen=True)
class Config:
    env: tyro.conf.Positional[str] = "hiv"
    dqn: Agent = Agent()
    sizes: Annotated[ModelConfig, tyro.conf.arg(name="")] = ModelConfig()
    data_seed: int = 0
    setting: Literal["ours", "paper"] = "ours"
    schedule: float | None = None
    visits: bool | None = None
    quick: bool = False
    checks: bool = True
    bounds: tuple[float, int] = (0.0, 1)
    prices: tuple[float, ...] = (0.0,)
    data: Path | None = None
    model: str = "latent-ode"
    digest: tyro.conf.Suppress[str] = ""


HOW: dict[str, Any] = {"omit": ("env", "digest"), "flat": ("sizes",)}


def parsed(words: list[str], default: Config) -> Config:
    return tyro.cli(Config, default=default, args=words, config=(tyro.conf.FlagCreatePairsOff,))


def test_only_what_differs() -> None:
    config = Config(
        "acrobot",
        Agent(reward_scale=1e-6, double=True, dueling=False, hidden=(8,)),
        data_seed=3,
        prices=(0.0, 1e6),
        checks=False,
    )
    words = command_line(("kairode", "run", "acrobot"), config, Config(), **HOW)
    assert shlex.join(words) == (
        "kairode run acrobot --dqn.reward-scale 1e-06 --dqn.double --dqn.no-dueling --dqn.hidden 8 --data-seed 3 "
        "--no-checks --prices 0 1e+06"
    )
    assert parsed(shlex.split(shlex.join(words))[2:], Config()) == config
    assert command_line(("kairode", "run", "hiv"), Config(), Config(), **HOW) == ["kairode", "run", "hiv"]


numbers = st.floats(allow_nan=False)
# No word that the parser reads as something else: an option, nothing, or None.
words_of_text = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"))).filter(
    lambda text: text not in ("", "None", "--")
)
agents = st.builds(
    Agent,
    reward_scale=numbers,
    double=st.booleans(),
    dueling=st.booleans(),
    hidden=st.lists(st.integers(), max_size=3).map(tuple),
)
configs = st.builds(
    Config,
    env=st.sampled_from(["hiv", "acrobot"]),
    dqn=agents,
    sizes=st.builds(ModelConfig, latent=st.integers(), field=agents),
    data_seed=st.integers(),
    setting=st.sampled_from(["ours", "paper"]),
    schedule=st.none() | numbers,
    visits=st.none() | st.booleans(),
    quick=st.booleans(),
    checks=st.booleans(),
    bounds=st.tuples(numbers, st.integers()),
    prices=st.lists(numbers, max_size=3).map(tuple),
    data=st.none() | words_of_text.filter(lambda text: "\0" not in text).map(Path),
    model=words_of_text,
)


@settings(deadline=None, max_examples=60)
@given(configs, configs)
def test_the_parser_reads_back_any_config_from_any_default(config: Config, default: Config) -> None:
    words = command_line((config.env,), config, default, **HOW)
    assert parsed(shlex.split(shlex.join(words)), default) == config


def test_what_no_option_can_say_is_refused() -> None:
    @dataclasses.dataclass(frozen=True)
    class Maybe:
        names: tuple[str, ...] = ()

    with pytest.raises(KairodeError, match="--names cannot be given '-x'"):
        command_line((), Maybe(names=("-x",)), Maybe())


def test_fields_are_json_or_python() -> None:
    words = ["a=1", "b=[1, null]", "c=(1, 3)", "d=inf", "e=true", "f=None", "g=some word", "h='1'", 'i="1"', "j=x=y"]
    assert parse_fields(words) == {
        "a": 1,
        "b": [1, None],
        "c": (1, 3),
        "d": float("inf"),
        "e": True,
        "f": None,
        "g": "some word",
        "h": "1",
        "i": "1",
        "j": "x=y",
    }
    with pytest.raises(KairodeError, match="--set takes name=value, got 'horizon'"):
        parse_fields(["horizon"])

"""The command of a config, read by the command, gives the config again."""

import dataclasses
import shlex
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kairode import cli
from kairode.cli import dyna, fit, run
from kairode.config.agents import ActorCriticConfig, DQNConfig
from kairode.config.algorithms import FitConfig, LearnConfig, ScheduleConfig
from kairode.config.commands import command_of, command_of_schedule
from kairode.config.models import ModelConfig
from kairode.config.planning import PlanConfig
from kairode.config.presets import AGENTS, dyna_preset, fit_preset, learn_preset, mpc_preset, run_preset
from kairode.config.run import RunConfig
from kairode.config.serialize import from_dict, to_dict
from kairode.config.training import LossWeights, TrainingConfig
from kairode.envs.zoo import ENVIRONMENTS
from kairode.errors import KairodeError

NAMED = ("gridworld", "acrobot", "hiv", "hiv-partial")
CONTROLS = ("pendulum", "swimmer", "hopper", "half-cheetah")
MODES: tuple[dict[str, Any], ...] = (
    {},
    {"rounds": 0},
    {"rounds": 2},
    {"latent_policy": True},
    {"schedule": 0.1 + 0.2},
    {"paper": True},
    {"latent_policy": True, "paper": True, "schedule": 5.0},
)


@pytest.fixture
def parsed(monkeypatch) -> Callable[[Any], Any]:
    """The config that the command of a config runs."""
    found: list[Any] = []
    for module, name in ((run, "_run_named"), (run, "_run_mpc"), (fit, "_fit"), (dyna, "_dyna")):
        monkeypatch.setattr(module, name, lambda config, *rest: found.append(config))

    def parse(config: Any) -> Any:
        words = shlex.split(command_of(config, "a b"))
        assert words[-2:] == ["--out", "a b"]
        cli.parse_command(words[1:])()
        return found.pop()

    return parse


def presets() -> list[Any]:
    found: list[Any] = [fit_preset(env) for env in (*NAMED, *CONTROLS)]
    for env in NAMED:
        found += [dyna_preset(env), *(run_preset(env, **modes) for modes in MODES)]
    for env in CONTROLS:
        found += [mpc_preset(env), mpc_preset(env, "rnn"), mpc_preset(env, "free", "sac")]
    return [*found, *(mpc_preset("hopper", model, agent) for model in ("latent-ode", "free") for agent in AGENTS)]


def test_every_environment_has_presets() -> None:
    assert {*NAMED, *CONTROLS} == set(ENVIRONMENTS)


@pytest.mark.parametrize("config", presets(), ids=command_of)
def test_presets(parsed, config: Any) -> None:
    assert parsed(config) == config
    assert from_dict(type(config), to_dict(config)) == config


def test_presets_need_few_words() -> None:
    for env in (*NAMED, *CONTROLS):
        assert command_of(fit_preset(env)) == f"kairode fit {env}"
    for env in NAMED:
        assert command_of(run_preset(env)) == f"kairode run {env}"
        assert command_of(dyna_preset(env)) == f"kairode dyna {env}"
    for env in CONTROLS:
        assert command_of(mpc_preset(env)) == f"kairode run {env}"
    assert command_of(run_preset("hiv", rounds=0)) == "kairode run hiv --rounds 0"
    assert command_of(run_preset("hiv", rounds=2)) == "kairode run hiv --rounds 2"
    assert command_of(run_preset("hiv", paper=True)) == "kairode run hiv --paper"
    assert command_of(run_preset("acrobot", schedule=0.4)) == "kairode run acrobot --schedule 0.4"
    assert command_of(mpc_preset("hopper", "free", seeds=3)) == "kairode run hopper --model free --seeds 3"
    assert command_of(mpc_preset("swimmer", "rnn", "sac")) == "kairode run swimmer --model rnn --agent.kind sac"


def test_what_differs_is_named() -> None:
    config = run_preset("gridworld", latent_policy=True, episodes=7, seed=3, env_fields={"horizon": 30})
    assert command_of(config) == "kairode run gridworld --latent-policy --episodes 7 --seed 3 --set horizon=30"
    config = run_preset("gridworld", episodes=3, seed=1, env_fields={"intervals": (2, 3)})
    assert command_of(config) == "kairode run gridworld --episodes 3 --seed 1 --set 'intervals=[2, 3]'"
    odd = mpc_preset("swimmer", "rnn", "sac", plan=PlanConfig(candidates=100, elites=5), relative_obs=False, seeds=2)
    assert command_of(odd) == (
        "kairode run swimmer --model rnn --agent.kind sac --seeds 2 --plan.candidates 100 --plan.elites 5 "
        "--no-relative-obs"
    )
    training = TrainingConfig(iterations=7, weights=LossWeights(kl=0.5))
    fitted = FitConfig("hiv", "rnn", sizes=ModelConfig(latent_size=5, timer="classes"), training=training, seed=1)
    fitted = dataclasses.replace(fitted, env_fields={"max_decisions": 50, "horizon": 90})
    assert command_of(fitted) == (
        "kairode fit hiv --model rnn --seed 1 --latent-size 5 --iterations 7 --weights.kl 0.5 --set max_decisions=50 "
        "horizon=90"
    )


def test_a_file_determines_its_split() -> None:
    config = FitConfig("a/b.parquet", sizes=fit_preset("x").sizes, standardize=True, episodes=8, digest="0" * 64)
    assert command_of(config) == "kairode fit a/b.parquet"


def test_the_command_of_chosen_times() -> None:
    config = ScheduleConfig(prices=(0.0, 2.0), budgets=(6,), imagined_episodes=2, refits=0, tolerance=0.0)
    assert command_of_schedule(config, "runs/x") == (
        "kairode schedule runs/x --prices 0 2 --budgets 6 --tolerance 0 --imagined-episodes 2 --refits 0"
    )


positive = st.floats(1e-9, 1e9)
counts = st.integers(1, 10**7)
fields = st.dictionaries(
    st.sampled_from(["horizon", "noise", "timing"]),
    st.none() | st.integers() | st.floats(allow_nan=False) | st.booleans() | st.text() | st.lists(counts, max_size=3),
)
# Dicts, not configs: the type checker draws random numbers, which no strategy may.
dqns = st.fixed_dictionaries(
    {
        "hidden": st.lists(counts, max_size=3).map(tuple),
        "learning_rate": positive,
        "double_q": st.booleans(),
        "reward_scale": positive,
        "cooldown": st.floats(0, 1),
    }
)
learns = st.fixed_dictionaries(
    {
        "episodes": counts,
        "rollout_length": st.none() | counts,
        "obs_margin": st.none() | st.floats(0, 10),
        "sample_intervals": st.booleans(),
        "dqn": dqns,
    }
)
settled = settings(deadline=None, max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])


@settled
@given(
    st.sampled_from(NAMED),
    st.sampled_from(MODES),
    st.fixed_dictionaries(
        {
            "model": st.sampled_from(["rnn", "latent-ode"]),
            "episodes": st.integers(10, 10**6),
            "model_free_episodes": st.none() | st.integers(0, 10),
            "prices": st.lists(positive, max_size=3).map(tuple),
            "candidates": st.lists(positive, max_size=3).map(tuple),
            "env_fields": fields,
        }
    ),
    learns,
)
def test_variations_of_the_main_job(
    parsed, env: str, modes: dict[str, Any], changes: dict[str, Any], learn: dict[str, Any]
) -> None:
    config = run_preset(env, **modes, **changes, learn=from_dict(LearnConfig, learn))
    assert parsed(config) == config


@settled
@given(
    st.sampled_from(CONTROLS),
    st.sampled_from(["rnn", "free", "latent-ode"]),
    st.sampled_from([None, *AGENTS]),
    st.fixed_dictionaries(
        {
            "decisions": st.integers(20_000, 10**6),
            "relative_obs": st.booleans(),
            "plan": st.fixed_dictionaries({"noise": positive, "elites": st.integers(1, 50), "iterations": counts}),
            "sizes": st.fixed_dictionaries({"latent_size": counts, "solver": st.sampled_from(["rk4:2", "dopri5"])}),
            "env_fields": fields,
        }
    ),
    st.none()
    | st.fixed_dictionaries(
        {"hidden": st.tuples(counts, counts), "noise": positive, "kind": st.sampled_from([*AGENTS])}
    ),
)
def test_variations_of_mpc(
    parsed, env: str, model: str, agent: str | None, changes: dict[str, Any], other: dict[str, Any] | None
) -> None:
    parts = {"plan": PlanConfig(**changes.pop("plan")), "sizes": ModelConfig(**changes.pop("sizes"))}
    given_agent = agent if other is None else ActorCriticConfig(**other)
    config = mpc_preset(env, model, given_agent, **parts, **changes)
    assert parsed(config) == config


@settled
@given(
    st.sampled_from([*NAMED, "hopper"]),
    st.fixed_dictionaries(
        {
            "seeds": counts,
            "standardize": st.booleans(),
            "setting": st.sampled_from(["ours", "paper"]),
        }
    ),
    st.none() | counts,
    st.sampled_from(["none", "auto"]),
    fields,
)
def test_variations_of_fits(
    parsed, env: str, changes: dict[str, Any], count: int | None, timer: str, more: dict[str, Any]
) -> None:
    training = TrainingConfig(patience=count, chunk_length=count, weights=LossWeights(kl_warmup=count or 0))
    config = fit_preset(env, **changes, sizes=ModelConfig(timer=timer), training=training)
    config = dataclasses.replace(config, env_fields={**config.env_fields, **more})
    assert parsed(config) == config


@settled
@given(
    st.sampled_from(NAMED),
    st.fixed_dictionaries({"rounds": st.integers(0, 9), "exploration": st.floats(0, 1), "seed": counts}),
    dqns,
    fields,
)
def test_variations_of_dyna(
    parsed, env: str, changes: dict[str, Any], dqn: dict[str, Any], more: dict[str, Any]
) -> None:
    config = dyna_preset(env, **changes, dqn=DQNConfig(**dqn), env_fields=more)
    assert parsed(config) == config


def test_the_papers_protocol() -> None:
    config = run_preset("hiv", paper=True)
    assert (config.episodes, config.fit_iterations, config.learn.episodes) == (1000, 12_000, 1500)
    assert (config.model_free_episodes, config.ensemble_size, config.setting) == (3500, 1, "paper")
    assert config.learn.dqn == DQNConfig()
    assert (config.learn.rollout_length, config.learn.obs_margin, config.learn.sample_intervals) == (None, None, False)


def test_defaults_depend_on_the_modes() -> None:
    assert run_preset("hiv", rounds=0).learn.episodes == 2400  # rollouts of 25 decisions
    assert run_preset("hiv", latent_policy=True).learn.episodes == 300  # whole episodes
    assert run_preset("hiv").rounds == 5
    assert run_preset("hiv").learn.sample_intervals
    assert learn_preset("hiv", rollouts=True).rollout_length == 25
    assert run_preset("acrobot", schedule=0.4).schedule_episodes == 0
    assert mpc_preset("hopper", "free").decisions == 400_000
    assert mpc_preset("pendulum", "free").decisions == 10_000


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: RunConfig(model="latnt-ode"), r"unknown model 'latnt-ode'.*Did you mean 'latent-ode'"),
        (lambda: RunConfig(rounds=1, episodes=5), "episodes must be an integer of at least 10, got 5"),
        (lambda: RunConfig(rounds=1, paper=True), r"--paper works without Dyna rounds only: add --rounds 0"),
        (lambda: RunConfig(schedule_refits=1), "--schedule-refits continues from Dyna rounds"),
        (lambda: RunConfig(fit_iterations=0), "fit_iterations must be an integer of at least 1, got 0"),
        (lambda: mpc_preset("hopper", decisions=300), r"decisions must exceed the 15,000 random ones .*, got 300"),
        (lambda: mpc_preset("hopper", agent="ppo"), "ddpg, td3, sac"),
        (lambda: FitConfig("hiv", seeds=0), "seeds must be an integer of at least 1, got 0"),
        (lambda: FitConfig("hiv", seed=2**30), r"seed must be an integer between 0 and 2\^30"),
        (lambda: PlanConfig(candidates=3), r"elites .50. must not exceed candidates .3."),
        (lambda: ScheduleConfig(prices=()), "at least one price"),
        (lambda: ScheduleConfig(tolerance=1.5), r"tolerance must lie in \[0, 1\], got 1.5"),
        (lambda: ScheduleConfig(seed=-1), "seed must be an integer of at least 0, got -1"),
        (lambda: ScheduleConfig(oracle=True, refits=1), "leave one of them out"),
        (lambda: TrainingConfig(learning_rate=0.0), "learning_rate must be positive, got 0"),
    ],
)
def test_what_cannot_be_is_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(KairodeError, match=said):
        make()


def test_the_paper_s_protocol_chooses_the_best_interval() -> None:
    assert [run_preset(env, paper=True).tolerance for env in ("gridworld", "acrobot", "hiv")] == [0.0] * 3

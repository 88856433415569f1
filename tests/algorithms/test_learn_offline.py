"""Policies from records alone, on processes whose best action is known."""

import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kairode
from kairode.agents.fitted_q import least_value
from kairode.algorithms import learn_offline, task
from kairode.algorithms.estimate import Estimate
from kairode.algorithms.evaluate_offline import Effort, OfflineEvaluation
from kairode.algorithms.learn_offline import Candidate, choose_offline, discounted, evenly_spaced, rank_candidates
from kairode.config.offline import OfflineConfig, OfflineRunConfig
from kairode.data.trajectory import Trajectory
from kairode.envs.core import Spec, Task
from kairode.errors import KairodeError, KairodeWarning
from kairode.planning.table_task import TableTask
from kairode.runs.offline import run_offline

STEPS = 8
SMALL: Any = {"updates": 1000, "stops": 1, "hidden": (32, 32)}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimates of little effort: what is tested is what is chosen among."""
    monkeypatch.setattr(learn_offline, "SELECTION", Effort(3, 400, 5))
    monkeypatch.setattr(task, "fit_outcomes", functools.partial(task.fit_outcomes, iterations=500))
    monkeypatch.setattr(learn_offline, "fit_behavior", functools.partial(learn_offline.fit_behavior, iterations=300))


def records(
    episodes: int = 200, seed: int = 0, discount: float = 0.9, wild: float = 0.01, **columns: Any
) -> Trajectory:
    """The level x moves towards 1 under `up`, towards -1 under `down`, in proportion to the time; staying near 0 pays.

    `wild` is taken once in a hundred decisions, always where it happens to pay much.
    """
    rng = np.random.default_rng(seed)
    rows: dict[str, list[Any]] = {name: [] for name in ("who", "t", "x", "act", "gain")}
    for who in range(episodes):
        x, t = rng.uniform(-1, 1), 0.0
        for _ in range(STEPS + 1):
            act = "wild" if rng.random() < wild else str(rng.choice(["up", "down"]))
            tau = float(rng.choice([1.0, 2.0]))
            after = np.clip(x + {"up": 0.3, "down": -0.3, "wild": 0.0}[act] * tau + rng.normal(0, 0.02), -1.5, 1.5)
            gain = 5.0 if act == "wild" else 1.0 - after**2
            for name, value in zip(rows, (who, t, x, act, gain), strict=True):
                rows[name].append(value)
            x, t = after, t + tau
    rows |= {name: make(rows) for name, make in columns.items()}
    return kairode.load_table(rows, episode="who", action="act", reward="gain", discount=discount)


def greedy(policy: Any, data: Trajectory, *seen: float) -> str:
    action, _ = policy.act((), jnp.array(seen, jnp.float32), jnp.zeros(()), key=jax.random.key(0))
    return data.spec.actions.names[int(action)]


@pytest.fixture(scope="module")
def data() -> Trajectory:
    return records()


def test_records_alone_show_the_best_action(data: Trajectory) -> None:
    policy = kairode.learn_offline(None, data, recipes=("bcq",), **SMALL)
    assert [greedy(policy, data, x) for x in (-0.9, 0.9)] == ["up", "down"]
    assert policy.epsilon == 0.0


@pytest.mark.slow
def test_what_was_hardly_ever_done_is_excluded(data: Trajectory, tmp_path: Any) -> None:
    """Q-learning follows the luck of the rare action; with the support of actions it is not chosen, and a saved policy
    keeps that."""
    xs = np.linspace(-1, 1, 9)
    lucky = kairode.learn_offline(None, data, recipes=("q-learning",), **SMALL)
    assert "wild" in {greedy(lucky, data, x) for x in xs}
    careful = kairode.learn_offline(None, data, recipes=("bcq",), **SMALL)
    assert "wild" not in {greedy(careful, data, x) for x in xs}
    kairode.save_policy(tmp_path, careful, {"env": "table", "setting": "records"})
    loaded = kairode.load_policy(tmp_path)
    for one, other in zip(jax.tree.leaves(careful), jax.tree.leaves(loaded), strict=True):
        np.testing.assert_array_equal(one, other)
    assert "wild" not in {greedy(loaded, data, x) for x in xs}


@pytest.mark.slow
def test_units_do_not_matter() -> None:
    """A column of large numbers, such as platelets, does not drown the one that matters; nor does an offset."""
    data = records(
        wild=0.0,
        x=lambda rows: [5.0 + 0.001 * x for x in rows["x"]],
        count=lambda rows: np.random.default_rng(1).normal(250_000, 50_000, len(rows["x"])).tolist(),
    )
    policy = kairode.learn_offline(None, data, recipes=("bcq",), **SMALL)
    for count in (200_000.0, 300_000.0):
        assert [greedy(policy, data, 5.0 + 0.001 * x, count) for x in (-0.9, 0.9)] == ["up", "down"]


class Steep(Task):
    """Only 'up' pays, whatever the table says."""

    spec: Spec

    def reward(self, obs: Any, action: Any, next_obs: Any, tau: Any) -> Any:
        return jnp.where(action == self.spec.actions.names.index("up"), 1.0, 0.0) + 0.0 * obs[0]

    def terminal(self, obs: Any) -> Any:
        return jnp.zeros((), bool)


def test_rewards_of_a_task_of_the_users_own(data: Trajectory) -> None:
    policy = kairode.learn_offline(None, data, task=Steep(data.spec), recipes=("q-learning",), **SMALL)
    assert {greedy(policy, data, x) for x in (-0.9, 0.0, 0.9)} == {"up"}
    other: Any = Steep(dataclasses.replace(data.spec, discount=0.5))
    with pytest.raises(KairodeError, match=r"0\.5 in the task and 0\.9 in the data"):
        kairode.learn_offline(None, data, task=other, recipes=("q-learning",), **SMALL)


def test_leaving_the_data_is_worse_than_going_on() -> None:
    """Where rewards are costs and records were cut off: -1 a day for ever."""
    rows = {"episode": np.repeat(np.arange(10), 31), "t": np.tile(np.arange(31.0), 10), "reward": np.full(310, -1.0)}
    data = kairode.load_table({**rows, "action": np.tile([0, 1], 155), "x": np.arange(310.0) % 7}, discount=0.999)
    assert least_value(data) <= -1 / (1 - 0.999) * 0.999


@pytest.mark.slow
def test_in_imagination(tmp_path: Any) -> None:
    """The same policy for the same seed, and from a checkpoint; the recipes with models and without are candidates."""
    data = records(wild=0.0)
    models = kairode.fit("latent-rnn", data, seeds=2, iterations=400)
    config = OfflineConfig(
        recipes=("ensemble", "action-support", "bcq"), decisions=3000, rollout_length=8, updates=1000, stops=1
    )
    found = choose_offline(models, data, config, seed=1, folder=tmp_path)
    assert {one.name for one in found.candidates} == {"ensemble", "action-support", "bcq"}
    assert [greedy(found.policy, data, x) for x in (-0.9, 0.9)] == ["up", "down"]
    again = choose_offline(models, data, config, seed=1, folder=tmp_path)
    for one, other in zip(jax.tree.leaves(found.policy), jax.tree.leaves(again.policy), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(KairodeError, match=str(tmp_path)):  # other episodes to choose by set another limit
        choose_offline(models, data[:160], config, choose=data[160:], seed=1, folder=tmp_path)


@pytest.mark.slow
def test_episodes_to_choose_by(data: Trajectory) -> None:
    """Given, all other episodes are learned from; the policy is that of the same split made by hand."""
    held_out = evenly_spaced(len(data), 0.2)
    options: Any = {"recipes": ("q-learning", "bcq"), **SMALL}
    by_itself = kairode.learn_offline(None, data, **options)
    given = kairode.learn_offline(None, data[~held_out], choose=data[held_out], **options)
    for one, other in zip(jax.tree.leaves(by_itself), jax.tree.leaves(given), strict=True):
        np.testing.assert_array_equal(one, other)


def test_episodes_to_choose_by_are_checked_first(data: Trajectory) -> None:
    other = kairode.load_table(
        {"episode": [0, 0, 1, 1, 2, 2], "t": [0.0, 1.0] * 3, "x": [0.0, 1.0] * 3, "action": ["b", "c"] * 3}
    )
    for choose, match in (
        (data[:2], "at least 3: choose has 2"),
        (other, "they must match"),
    ):
        with pytest.raises(KairodeError, match=match):
            kairode.learn_offline(None, data, choose=choose, updates=10**9)
    with pytest.raises(KairodeError, match="pass one of them"):
        kairode.learn_offline(None, data, choose=data[:50], held_out=0.3)


def test_too_few_episodes_are_left_to_learn_from(tmp_path: Any) -> None:
    rows = [f"{who},{t},{t},{'ab'[t % 2]},1" for who in range(12) for t in range(3)]
    (tmp_path / "small.csv").write_text("\n".join(["episode,t,x,action,reward", *rows]))
    config = OfflineRunConfig(str(tmp_path / "small.csv"), test_fraction=0.5, offline=OfflineConfig(held_out=0.49))
    with pytest.raises(KairodeError, match="0 would be left to learn from"):
        run_offline(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_discount_of_one_without_ends_is_said() -> None:
    data = records(episodes=30, discount=1.0)
    with pytest.warns(KairodeWarning, match="values have no bound"):
        policy = kairode.learn_offline(None, data, recipes=("bcq",), **SMALL)
    assert policy.spec.discount < 1
    longer = dataclasses.replace(data, spec=dataclasses.replace(data.spec, tick=4.0))  # load_table takes it per day
    with pytest.warns(KairodeWarning, match=r"a discount of (\S+) per time unit") as said:
        _, found = discounted(longer, TableTask(longer.spec))
    (given,) = re.findall(r"a discount of (\S+) per", str(said[0].message))
    assert float(given) ** 4 == pytest.approx(found.spec.discount, rel=1e-3)


def estimated(name: str, records: tuple[float, float], model: tuple[float, float] | None = None) -> Candidate:
    none = Estimate(float("nan"), float("nan"), float("nan"))
    found = {"fitted_q": Estimate(sum(records) / 2, *records), "doubly_robust": none}
    if model is not None:
        found["model"] = Estimate(sum(model) / 2, *model)
    return Candidate(name, None, OfflineEvaluation(found, none, 0.0, 1.0))


def test_records_decide_and_then_the_models() -> None:
    """What the records show to be worse is behind, however good the models find it; a wide interval shows nothing."""
    found = rank_candidates(
        [
            estimated("likely", (1.0, 3.0), (5.0, 6.0)),
            estimated("behind", (0.2, 0.9), (90.0, 99.0)),
            estimated("unsure", (-50.0, 80.0), (2.0, 400.0)),
            estimated("modest", (0.9, 1.1), (3.0, 4.0)),
        ]
    )
    assert [one.name for one in found] == ["likely", "modest", "unsure", "behind"]
    alone = rank_candidates([estimated("wide", (-5.0, 9.0)), estimated("narrow", (1.0, 2.0))])
    assert [one.name for one in alone] == ["narrow", "wide"]
    unknown = float("nan")
    assert rank_candidates([estimated("none", (unknown, unknown)), *alone])[-1].name == "none"


def test_the_replay_buffer_has_the_records(data: Trajectory) -> None:
    """All of them and room for what is imagined, unless that would be too much."""
    models = [object()]  # not used
    config = OfflineConfig(decisions=3000)
    problem = learn_offline._Problem(data, data, kairode.learn_task(data, members=1), models, None, config, 0)  # type: ignore[arg-type]
    settings, rows = learn_offline._replay(problem, agents=2)
    assert len(rows.action) == data.decisions
    assert settings.replay_capacity == data.decisions + 3000


def test_episodes_are_held_out_evenly() -> None:
    mask = evenly_spaced(100, 0.2)
    assert mask.sum() == 20
    assert np.diff(np.flatnonzero(mask)).max() <= 6


@pytest.mark.parametrize(
    ("models", "options", "match"),
    [
        (None, {"recipes": ("ensemble",)}, "need models"),
        (None, {"recipes": ("magic",)}, "unknown recipe"),
        (None, {"held_out": 0.99}, "too few"),
        (None, {"decision": 3}, "unknown option"),
    ],
)
def test_refusals(data: Trajectory, models: Any, options: Any, match: str) -> None:
    with pytest.raises(KairodeError, match=match):
        kairode.learn_offline(models, data[:20], **options)

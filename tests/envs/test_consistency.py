"""Held actions compose: two intervals of tau are one of 2 tau. Where they do not, the check says what to set."""

import math
from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kairode
from kairode.envs import Acrobot, Discrete, Intervals, Spec, Variable
from kairode.envs.accrual import AccruedRewards
from kairode.envs.consistency import check_course
from kairode.errors import KairodeError

DECAY = 0.1


class LevelTask(kairode.Task):
    """High is good."""

    spec: Spec = eqx.field(static=True)

    def reward(self, obs, action, next_obs, tau):
        return next_obs[0] * tau

    def terminal(self, obs):
        return jnp.zeros((), bool)


class Infusion(kairode.Environment):
    """dc/dt = u - 0.1 c + noise: an Ornstein-Uhlenbeck process, drawn exactly over any interval."""

    noise: float = 0.0
    high: float = 12.0

    @property
    def task(self):
        intervals = Intervals(2, self.high, step=1)
        spec = Spec("infusion", (Variable("c", "mg/l"),), Discrete(("off", "on")), intervals, "hour", horizon=48.0)
        return LevelTask(spec)

    def reset(self, *, key):
        return jax.random.uniform(key, (1,))

    def observe(self, state):
        return state

    def interval(self, state, action, *, key):
        return jax.random.randint(key, (), 2, 13).astype(state.dtype)

    def transition(self, state, action, tau, *, key):
        rest = action / DECAY
        spread = self.noise * jnp.sqrt((1 - jnp.exp(-2 * DECAY * tau)) / (2 * DECAY))
        return rest + jnp.exp(-DECAY * tau) * (state - rest) + spread * jax.random.normal(key, (1,))


class Pill(Infusion):
    """The same as a bolus: 1 mg/l at the decision. That it acts once is not said."""

    def transition(self, state, action, tau, *, key):
        spread = self.noise * jnp.sqrt((1 - jnp.exp(-2 * DECAY * tau)) / (2 * DECAY))
        return jnp.exp(-DECAY * tau) * (state + action) + spread * jax.random.normal(key, (1,))


class OncePill(Pill):
    action_mode = "once"


@pytest.mark.parametrize("setting", ["ours", "paper"])
@pytest.mark.parametrize("name", ["gridworld", "acrobot", "hiv", "hiv-partial", "pendulum"])
def test_our_environments_pass_or_say_otherwise(name: str, setting: str) -> None:
    env = kairode.make(name, setting=setting)
    check_course(env)
    assert env.action_mode == ("once" if (name, setting) == ("acrobot", "paper") else "held")


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("high", [3.0, 12.0])
def test_what_composes_passes(noise: float, high: float) -> None:
    check_course(Infusion(noise, high))


def test_a_pill_that_is_given_twice_is_refused() -> None:
    # From c, one pill and 12 hours leave e^-1.2 (c + 1); a second pill after 6 hours adds e^-0.6.
    with pytest.raises(KairodeError) as refused:
        check_course(Pill())
    said = str(refused.value)
    assert "in 'infusion' an interval of 12 hours does not equal two of 6 under the same action: c is" in said
    assert 'Set action_mode = "once" in Pill if an action acts once' in said
    one, two = (float(word) for word in said.split("c is ")[1].split(" after two")[0].split(" after one and "))
    assert two - one == pytest.approx(math.exp(-0.6), abs=1e-3)


def test_with_noise_the_means_are_compared() -> None:
    with pytest.raises(KairodeError, match="c is on average"):
        check_course(Pill(noise=0.3))


def test_where_it_is_tried() -> None:
    env = Pill()
    for call in (
        lambda: kairode.evaluate(env, accrue=True, episodes=2),
        lambda: kairode.learn(None, env, accrue=True, episodes=1),
        lambda: kairode.schedule_for_learning(env, env),
        lambda: AccruedRewards.of(env, 12.0),
    ):
        with pytest.raises(KairodeError, match="does not equal two of 6"):
            call()


def test_nothing_is_promised_where_actions_act_once() -> None:
    check_course(OncePill())
    check_course(OncePill(noise=0.3))


def test_an_unknown_mode_is_refused() -> None:
    class Wrong(Infusion):
        action_mode = "twice"

    with pytest.raises(KairodeError, match="unknown action_mode 'twice' of 'infusion'"):
        check_course(Wrong())


def test_a_course_of_an_action_that_acts_once_starts_at_the_decision() -> None:
    env, key, taus = OncePill(), jax.random.key(0), jnp.arange(1.0, 7.0)
    found = env.course(jnp.array([2.0]), jnp.array(1), taus, key=key)
    np.testing.assert_allclose(found[:, 0], 3 * np.exp(-DECAY * np.arange(1, 7)), rtol=1e-5)
    # Given again every hour, as a held action would be: c_n = e^-0.1 (c_(n-1) + 1).
    by_hand, again = 2.0, []
    for _ in range(6):
        by_hand = math.exp(-DECAY) * (by_hand + 1)
        again.append(by_hand)
    np.testing.assert_allclose(Pill().course(jnp.array([2.0]), jnp.array(1), taus, key=key)[:, 0], again, rtol=1e-5)


def test_with_noise_every_time_has_its_own_distribution_and_the_last_is_the_transition() -> None:
    env, taus = OncePill(noise=0.3), jnp.array([1.0, 3.0, 8.0])
    keys = jax.random.split(jax.random.key(1), 4000)
    state, action = jnp.array([2.0]), jnp.array(1)
    found = np.asarray(jax.vmap(lambda key: env.course(state, action, taus, key=key))(keys))[..., 0]
    last = jax.vmap(lambda key: env.transition(state, action, taus[-1], key=key))(keys)
    np.testing.assert_allclose(found[:, -1], last[:, 0], rtol=1e-6)
    variance = 0.3**2 * (1 - np.exp(-2 * DECAY * taus)) / (2 * DECAY)
    np.testing.assert_allclose(found.mean(0), 3 * np.exp(-DECAY * taus), atol=5 * np.sqrt(variance.max() / 4000))
    np.testing.assert_allclose(found.var(0), variance, rtol=0.12)


def test_the_published_acrobot_ends_where_plain_evaluation_ends_it() -> None:
    """One integration step per interval: two of 0.4 s are not one of 0.8 s, so all times are from the decision."""

    class Held(Acrobot):
        action_mode: ClassVar[Literal["held", "once"]] = "held"

    with pytest.raises(KairodeError, match=r"interval of 0\.8 seconds does not equal two of 0\.4"):
        check_course(Held(substep=math.inf))
    env = kairode.make("acrobot", setting="paper")
    key, state, action = jax.random.key(0), jnp.array([0.5, -0.2, 1.0, 2.0]), jnp.array(2)
    passed = env.course(state, action, 0.2 * jnp.arange(1.0, 6.0), key=key)
    wanted = [env.transition(state, action, jnp.asarray(0.2 * i), key=key) for i in range(1, 6)]
    np.testing.assert_allclose(passed, np.stack(wanted), rtol=1e-5, atol=1e-5)


class VectorReward(LevelTask):
    """A forgotten [0]."""

    def reward(self, obs, action, next_obs, tau):
        return next_obs * tau


class Branching(Infusion):
    """Python's if on a traced value."""

    def transition(self, state, action, tau, *, key):
        return state + tau if action > 0 else state


class OtherState(Infusion):
    def transition(self, state, action, tau, *, key):
        return {"c": state}


class Scalar(Infusion):
    def observe(self, state):
        return state[0]


class Late(Infusion):
    def interval(self, state, action, *, key):
        return jnp.array(30.0)


class Rewarded(Infusion):
    @property
    def task(self):
        return VectorReward(super().task.spec)


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (Rewarded(), r"VectorReward\.reward must return a scalar, got float32\[1\]"),
        (Branching(), r"Branching\.transition cannot be compiled by JAX: use jnp\.where"),
        (
            OtherState(),
            r"OtherState\.transition must return a state like that of reset, float32\[1\], got \{c: float32",
        ),
        (Scalar(), r"Scalar\.observe must return an array of shape \(1,\), got float32\[\]"),
        (Late(), r"returned an interval outside its range, 2 to 12 .*: episode 0, decision 0, .*interval 30"),
    ],
)
def test_what_a_method_returns_is_checked(env, said: str) -> None:
    with pytest.raises(KairodeError, match=said):
        kairode.collect(env, episodes=2)
    assert kairode.collect(Infusion(), episodes=2).decisions > 0

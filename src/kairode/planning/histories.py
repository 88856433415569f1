"""Histories of episodes up to now, and what models and a policy make of them: action, next interval, course.

Many histories at once, padded to one length. Models track them with their own predictions in place of what was not
measured, as in fitting; a policy is shown the last value that was measured.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from kairode.agents.actor_critic import value
from kairode.agents.actor_policy import ActorPolicy, actions
from kairode.agents.encoder import LatentMemory, TrackedMemory
from kairode.agents.q_policy import QPolicy
from kairode.data.policy import Memory
from kairode.data.trajectory import Trajectory
from kairode.envs.core import Action, Discrete, Obs, Spec, Tau
from kairode.envs.schedule import Decision, Schedule
from kairode.models.dynamics import DynamicsModel, encode_action
from kairode.models.networks import unfold
from kairode.models.predict import Episodes, follow, join_inputs
from kairode.planning.lookahead import ModelLookahead
from kairode.planning.optimized_schedule import OptimizedSchedule

SEED = 0
"""Of the initial latent states: the same in every episode, so that advice can be repeated."""


class Histories(eqx.Module):
    """Episodes up to now: observation[length] is the current one, of which no action is known yet."""

    observation: Float[Array | np.ndarray, "n moments obs"]
    """Missing values carried forward, as policies are shown them."""
    known: Bool[Array | np.ndarray, "n moments obs"]
    """Mask of what was measured."""
    action: Int[Array | np.ndarray, "n T"] | Float[Array | np.ndarray, "n T act"]
    interval: Float[Array | np.ndarray, "n T"]
    length: Int[Array | np.ndarray, " n"]


def padded_histories(data: Trajectory, usual: Float[np.ndarray, " obs"], static: Bool[np.ndarray, " obs"]) -> Histories:
    """Episodes as histories, padded to a power of two so that few programs are compiled.

    Args:
        data: episodes whose last observation is the current one.
        usual: value of each variable before it was measured for the first time.
        static: variables that do not change within an episode, so that the last value counts as measured.
    """
    seen, length = np.asarray(data.observation, np.float32), np.asarray(data.length, np.int32)
    steps = size_to_compile(int(length.max(initial=0)))
    moments = np.minimum(np.arange(steps + 1), length[:, None])
    seen = np.take_along_axis(seen, moments[..., None], axis=1)
    known = ~np.isnan(seen)
    place = np.maximum.accumulate(np.where(known, np.arange(steps + 1)[:, None], -1), axis=1)
    filled = np.where(place >= 0, np.take_along_axis(seen, np.maximum(place, 0), axis=1), usual.astype(np.float32))
    mask = np.arange(steps) < length[:, None]

    def decisions(values: Any) -> np.ndarray:
        given = np.asarray(values)
        wide = [(0, 0), (0, max(steps - given.shape[1], 0)), *([(0, 0)] * (given.ndim - 2))]
        return np.where(mask.reshape(*mask.shape, *([1] * (given.ndim - 2))), np.pad(given, wide)[:, :steps], 0)

    action = decisions(data.action).astype(np.int32 if isinstance(data.spec.actions, Discrete) else np.float32)
    return Histories(
        filled, known | (static & (place >= 0)), action, decisions(data.interval).astype(np.float32), length
    )


def size_to_compile(count: int) -> int:
    """The next power of two, at least four."""
    return max(4, 1 << max(count - 1, 0).bit_length())


class Outlook(NamedTuple):
    """The advice for histories, and how far the models agree about it."""

    action: Any
    values: Any
    """Of every discrete action in units of reward, -inf without support; of the advised controls and the usual ones."""
    interval: Any
    disagreement: Any
    """Of the ensemble about the observation after the interval, as in `data_disagreement`."""


class Outlooks(eqx.Module):
    """What is needed for an `Outlook`."""

    models: DynamicsModel
    """Stacked along the first axis."""
    policy: QPolicy | ActorPolicy
    schedule: Schedule | None
    """None for the interval that the models' timers predict."""
    shortest: Float[Array, ""]
    """Bounds of those intervals."""
    longest: Float[Array, ""]
    usual_interval: Float[Array, ""]
    """Of models without a timer; NaN if it is not known."""
    usual_action: Float[Array, " act"] | None = None
    """The mean of the controls in the data."""
    static: Bool[Array, " obs"] | None = None
    """Variables that never change within an episode: the models' predictions of them are not used."""

    @eqx.filter_jit
    def of(self, histories: Histories) -> Outlook:
        """The outlook of every history."""
        tracked = track(self.models, histories)
        memory, elapsed = jax.vmap(self._remember)(histories)
        now = current(histories)
        action, values = jax.vmap(self._act)(memory, now, elapsed)
        proposed = self._proposed(tracked, action)
        interval = proposed if self.schedule is None else self._scheduled(histories, memory, elapsed, action, proposed)
        seen = predict_courses(self.models, tracked, action, interval[None])[:, 0]
        spread = seen.std(0) / jnp.array(self.models.scale.std, seen.dtype)[:, None]
        spread = spread if self.static is None else jnp.where(self.static[:, None], 0.0, spread)
        return Outlook(action, values, interval, spread.mean(0))

    @eqx.filter_jit
    def course(self, histories: Histories, action: Any, taus: Float[Array, "k n"]) -> Float[Array, "members k obs n"]:
        """The observations that every member predicts at times after the current one."""
        return predict_courses(self.models, track(self.models, histories), action, taus)

    def _remember(self, history: Histories) -> tuple[Memory, Tau]:
        """The policy's memory before the current observation, and the time since the last decision."""
        policy, steps = self.policy, history.interval.shape[0]

        def visit(memory: Memory, k: Int[Array, ""]) -> tuple[Memory, None]:
            elapsed = jnp.where(k > 0, history.interval[k - 1], 0.0)
            after = _remember(policy, memory, history.observation[k], history.action[k], elapsed)
            return jax.tree.map(lambda a, b: jnp.where(k < history.length, a, b), after, memory), None

        memory, _ = jax.lax.scan(visit, policy.start(key=jax.random.key(SEED)), jnp.arange(steps))
        last = history.interval[jnp.maximum(history.length - 1, 0)]
        return memory, jnp.where(history.length > 0, last, 0.0)

    def _act(self, memory: Memory, obs: Obs, elapsed: Tau) -> tuple[Action, Float[Array, " a"]]:
        policy = self.policy
        if isinstance(policy, QPolicy):
            features, _ = policy.encoder.encode(memory, obs, elapsed)
            values = policy.values(features, obs)
            return jnp.argmax(values), values / policy.scale
        action, _ = policy.act(memory, obs, elapsed, key=jax.random.key(SEED))
        features = policy.normalizer.features(policy.normalizer.seen(obs, memory.obs, elapsed == 0))
        compared = [action] if self.usual_action is None else [action, self.usual_action]
        found = [value(policy.networks.critics, features, actions(policy.spec, one)) for one in compared]
        return action, jnp.stack(found) / policy.settings.reward_scale

    def _proposed(self, tracked: "Tracked", action: Any) -> Float[Array, " n"]:
        """The mean over the members of the most likely interval, one of those of the data."""
        intervals, tick = self.models.spec.intervals, self.models.spec.tick
        encoded = _encoded(self.models.spec, action)

        def one(model: DynamicsModel, tracked: Tracked) -> Float[Array, " n"]:
            inputs = join_inputs(model, tracked.obs, encoded, tracked.observed)
            return model.timer.interval(jnp.concatenate([inputs, tracked.z])) * tick

        found = eqx.filter_vmap(one)(self.models, tracked).mean(0)
        found = jnp.where(jnp.isnan(found), self.usual_interval, found)
        if intervals.step:
            found = intervals.low + intervals.step * jnp.round((found - intervals.low) / intervals.step)
        return jnp.clip(found, self.shortest, self.longest)

    def _scheduled(
        self,
        histories: Histories,
        memory: Memory,
        elapsed: Float[Array, " n"],
        action: Any,
        proposed: Float[Array, " n"],
    ) -> Float[Array, " n"]:
        """The interval of the schedule, which is given the models' latent states if it looks ahead."""
        schedule: Any = self.schedule
        time = histories.interval.sum(-1)
        obs = current(histories)
        if isinstance(schedule, OptimizedSchedule) and isinstance(schedule.lookahead, ModelLookahead):
            z = jnp.moveaxis(track(schedule.lookahead.models, histories).z, -1, 0)
            memory = jax.vmap(self._encoded_memory)(memory, obs, elapsed)
            memory = TrackedMemory(memory, LatentMemory(z, obs, action))

        def one(proposed: Tau, decision: Decision) -> Tau:
            return schedule.interval(proposed, decision, key=jax.random.key(SEED))

        return jax.vmap(one)(proposed, Decision(obs, action, time, histories.length, memory))

    def _encoded_memory(self, memory: Memory, obs: Obs, elapsed: Tau) -> Memory:
        """The policy's memory after the current observation and its action."""
        policy = self.policy
        if not isinstance(policy, QPolicy):
            return memory
        features, memory = policy.encoder.encode(memory, obs, elapsed)
        return policy.encoder.remember(memory, obs, jnp.argmax(policy.values(features, obs)))


def _remember(policy: QPolicy | ActorPolicy, memory: Memory, obs: Obs, action: Action, elapsed: Tau) -> Memory:
    """The memory after an action that was taken, whether the policy would have taken it or not."""
    if isinstance(policy, QPolicy):
        return policy.encoder.remember(policy.encoder.encode(memory, obs, elapsed)[1], obs, action)
    return policy.act(memory, obs, elapsed, key=jax.random.key(SEED))[1]


def current(histories: Histories) -> Float[Array, "n obs"]:
    """The current observation, missing values carried forward."""
    return jax.vmap(lambda seen, length: seen[length])(
        jnp.asarray(histories.observation), jnp.asarray(histories.length)
    )


class Tracked(NamedTuple):
    """Histories as the members of an ensemble see them now, batch last."""

    z: Any
    """Latent states, [members, z, n]."""
    obs: Any
    """Current observation, standardised, with each member's prediction in place of what was not measured."""
    observed: Any
    """Mask of what was measured, the same for each."""


def track(models: DynamicsModel, histories: Histories) -> Tracked:
    """Follow histories with teacher forcing; missing values are the members' own predictions."""
    spec, scale = models.spec, models.scale
    seen = jax.vmap(jax.vmap(scale.apply))(jnp.asarray(histories.observation))
    observed = jnp.asarray(histories.known) & scale.usable(seen, jnp)
    mask = jnp.arange(histories.interval.shape[1])[None] < histories.length[:, None]
    episodes = Episodes(
        obs=seen,
        action=encode_action(spec, jnp.asarray(histories.action)).astype(seen.dtype),
        tau=jnp.asarray(histories.interval) / spec.tick,
        real=mask,
        observed=observed,
    ).batch_last()
    count = histories.length.shape[0]
    here, now = (jax.vmap(lambda x, k: x[k])(x, histories.length).T for x in (observed, seen))

    def one(model: DynamicsModel, key: Any) -> tuple[Array, Array]:
        start = jnp.repeat(model.start(key=key)[:, None], count, axis=1)
        course = follow(model, start, episodes)
        own = jnp.where((histories.length > 0)[None], course.obs[-1], 0.0)
        return course.after[-1], jnp.where(here, now, own)

    keys = jax.random.split(jax.random.key(SEED), models.decoder.weight.shape[0])
    z, obs = eqx.filter_vmap(one)(models, keys)
    return Tracked(z, obs, jnp.repeat(here[None], len(keys), axis=0))


def predict_courses(
    models: DynamicsModel, tracked: Tracked, action: Any, taus: Float[Array, "k n"]
) -> Float[Array, "members k obs n"]:
    """The observations that every member predicts at times (ascending) while the action is held, in their own units."""
    encoded = _encoded(models.spec, action)

    def one(model: DynamicsModel, tracked: Tracked) -> Float[Array, "k obs n"]:
        transition, decoder = unfold((model.transition, model.decoder), None)
        x = join_inputs(model, tracked.obs, encoded, tracked.observed)
        seen = jax.vmap(decoder)(transition.path(tracked.z, x, taus / model.spec.tick))
        seen = jax.vmap(jax.vmap(model.scale.undo, 1, 1))(seen)
        if model.correction is None:
            return seen
        at = jax.vmap(jax.vmap(model.correction.at, (0, 0), 1), (None, 0))
        return seen + at(action, taus)

    return eqx.filter_vmap(one)(models, tracked)


def _encoded(spec: Spec, action: Any) -> Float[Array, "act n"]:
    return encode_action(spec, action).astype(jnp.float32).T

"""Model predictive control with an actor and a critic: the planner of the paper's algorithm 3.

Candidate action sequences are drawn around the actor's actions and rolled out in a model with its timer. Each is scored
by the task's rewards, discounted by elapsed time, plus the critic's value at the end. The planner returns the mean
first action of the best candidates. Candidates are on the last axis of every array ([feature, candidate]).
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from kairode.agents.actor_critic import Networks, greedy, value
from kairode.agents.actor_policy import ActorPolicy, controls
from kairode.agents.obs_normalizer import ObsNormalizer
from kairode.config.agents import ActorCriticConfig
from kairode.config.planning import PlanConfig
from kairode.data.policy import Memory, Policy
from kairode.envs.core import Action, Environment, Obs, Task, Tau
from kairode.errors import KairodeError
from kairode.models.dynamics import DynamicsModel, Scale
from kairode.models.networks import unfold
from kairode.models.timer import NoTimer
from kairode.trees import choose

Sequences = Float[Array, "_ k"]
"""A quantity of every candidate sequence."""


class PlanningDynamics(eqx.Module):
    """Dynamics that a planner rolls out."""

    def start(self, *, key: Key[Array, ""]) -> Any:
        """Initial belief state, for one environment; empty unless it is tracked."""
        return ()

    def track(self, belief: Any, seen_obs: Obs, control: Float[Array, " act"], tau: Tau) -> Any:
        """Belief state after an observed interval, for one environment."""
        return belief

    def unfold(self) -> "PlanningDynamics":
        """Prepared for the loop over decisions."""
        return self

    @abc.abstractmethod
    def spread(self, belief: Any, seen_obs: Obs, count: int) -> Any:
        """Copies of the belief state for `count` candidates, on the last axis."""

    @abc.abstractmethod
    def step(self, belief: Any, seen_obs: Sequences, control: Sequences) -> tuple[Any, Sequences, Float[Array, " k"]]:
        """Next belief state, next observation and interval of every candidate."""


class LearnedDynamics(PlanningDynamics):
    """A fitted model of normalised observations, with its timer's most likely interval."""

    model: DynamicsModel
    normalizer: ObsNormalizer
    held: float | None = eqx.field(static=True, default=None)
    """Fixed interval, if a schedule sets it rather than the timer."""

    def __check_init__(self) -> None:
        if isinstance(self.model.timer, NoTimer) and self.held is None:
            raise KairodeError("a planner must predict intervals: fit a model with a timer.")
        if self.model.scale != Scale.none(len(self.model.spec.observations)):
            raise KairodeError(
                "this model standardises observations itself: a planner needs a model of observations normalised by "
                "`ObsNormalizer`."
            )

    def start(self, *, key: Key[Array, ""]) -> Any:
        return self.model.start(key=key)

    def unfold(self) -> "LearnedDynamics":
        return dataclasses.replace(self, model=unfold(self.model, None))

    def track(self, belief: Any, seen_obs: Obs, control: Float[Array, " act"], tau: Tau) -> Any:
        return self.model.step(belief, self.normalizer.features(seen_obs), control, tau)[0]

    def spread(self, belief: Any, seen_obs: Obs, count: int) -> Any:
        return jnp.broadcast_to(belief[:, None], (belief.shape[0], count))

    def step(self, belief: Any, seen_obs: Sequences, control: Sequences) -> tuple[Any, Sequences, Float[Array, " k"]]:
        model = self.model
        x = jnp.concatenate([self.normalizer.features(seen_obs.T).T, control])
        if self.held is None:
            ticks = model.timer.interval(jnp.concatenate([x, belief]))
        else:
            ticks = jnp.full(x.shape[1:], self.held / model.spec.tick)
        z = model.transition.move(belief, model.transition.inputs(x, ticks), ticks)
        return z, self.normalizer.unnormalized(model.decoder(z).T).T, ticks * model.spec.tick


class TrueDynamics(PlanningDynamics):
    """The true dynamics of a system whose state is a function of the observation.

    Random numbers differ between decisions and are shared by all candidates.
    """

    env: Environment
    state: Callable[[Obs], Any] = eqx.field(static=True, default=lambda obs: obs)
    """State of an observation."""

    def spread(self, belief: Any, seen_obs: Obs, count: int) -> Any:
        start = (self.state(seen_obs), jnp.zeros((), jnp.int32))
        return jax.tree.map(lambda x: jnp.broadcast_to(x[..., None], (*x.shape, count)), start)

    def step(self, belief: Any, seen_obs: Sequences, control: Sequences) -> tuple[Any, Sequences, Float[Array, " k"]]:
        def one(belief: tuple[Any, Array], control: Array) -> tuple[Any, Obs, Tau]:
            state, number = belief
            interval_key, step_key = jax.random.split(jax.random.fold_in(jax.random.key(0), number))
            tau = self.env.interval(state, control, key=interval_key)
            state = self.env.transition(state, control, tau, key=step_key)
            return (state, number + 1), self.env.observe(state), tau

        return jax.vmap(one, in_axes=-1, out_axes=-1)(belief, control)


class SequenceState(NamedTuple):
    """State of every candidate sequence."""

    belief: Any
    seen_obs: Any
    discount: Any
    """gamma^t."""
    alive: Any
    """Whether the sequence has not terminated."""
    earned: Any
    """Discounted rewards so far."""


def advance_candidates(
    dynamics: PlanningDynamics, task: Task, normalizer: ObsNormalizer, here: SequenceState, control: Sequences
) -> SequenceState:
    """One decision of every candidate: prediction, interval, reward and discount gamma^tau."""
    spec = task.spec
    belief, seen_obs, tau = dynamics.step(here.belief, here.seen_obs, control)
    origin = normalizer.origin(here.seen_obs.T).T
    reward = jax.vmap(task.reward, in_axes=(-1, -1, -1, 0))(origin, control, seen_obs, tau)
    ended = jax.vmap(task.terminal, in_axes=-1)(seen_obs)
    discount = here.discount * spec.discount ** (tau / spec.tick)
    if type(task).end_probability is not Task.end_probability:  # weighs what follows by the chance to get there
        chance = jax.vmap(task.end_probability, in_axes=(-1, -1, -1, 0))(origin, control, seen_obs, tau)
        discount = discount if chance is None else discount * (1.0 - chance)
    return SequenceState(
        belief,
        seen_obs,
        discount,
        here.alive & ~ended,
        here.earned + jnp.where(here.alive, here.discount * reward, 0.0),
    )


class Planner(Policy):
    """Policy that plans with sampled action sequences around an actor's."""

    dynamics: PlanningDynamics
    task: Task
    networks: Networks
    normalizer: ObsNormalizer
    learning: ActorCriticConfig = eqx.field(static=True)
    settings: PlanConfig = eqx.field(static=True)

    def start(self, *, key: Key[Array, ""]) -> Memory:
        spec = self.task.spec
        nothing = jnp.zeros(len(spec.observations))
        return PlannerMemory(self.dynamics.start(key=key), nothing, nothing, jnp.zeros(spec.actions.n))

    def act(self, memory: Memory, obs: Obs, elapsed: Tau, *, key: Key[Array, ""]) -> tuple[Action, Memory]:
        first = elapsed == 0
        moved = self.dynamics.track(memory.belief, memory.seen_obs, memory.control, elapsed)
        belief = choose(first, memory.belief, moved)
        seen_obs = self.normalizer.seen(obs, memory.obs, first)
        control = self.plan(seen_obs, belief, key=key)
        return control, PlannerMemory(belief, obs, seen_obs, control)

    def without_planning(self) -> ActorPolicy:
        return ActorPolicy(self.networks, self.normalizer, self.learning, self.task.spec)

    def plan(self, seen_obs: Obs, belief: Any, *, key: Key[Array, ""]) -> Float[Array, " act"]:
        noise_shape = (self.settings.horizon, self.task.spec.actions.n, self.settings.candidates)
        proposal = None
        for round_key in jax.random.split(key, self.settings.iterations):
            noise = jax.random.normal(round_key, noise_shape)
            tried, returns = self.evaluate_sequences(seen_obs, belief, noise, proposal)
            best = jax.lax.top_k(jnp.where(jnp.isfinite(returns), returns, -jnp.inf), self.settings.elites)[1]
            chosen = tried[..., best]
            proposal = Proposal(chosen.mean(-1), jnp.maximum(chosen.std(-1), self.settings.min_noise))
        assert proposal is not None
        return controls(self.task.spec, proposal.centre[0])

    def evaluate_sequences(
        self, seen_obs: Obs, belief: Any, noise: Float[Array, "h act k"], proposal: "Proposal | None" = None
    ) -> tuple[Float[Array, "h act k"], Float[Array, " k"]]:
        """Candidate sequences in [-1, 1] and their values.

        sum_h gamma^{t_h} r_h + gamma^{t_H} Q(s_H, pi(s_H)); the critic's term only for sequences that have not
        terminated.
        """
        count = noise.shape[-1]
        dynamics = self.dynamics.unfold()
        here = SequenceState(
            dynamics.spread(belief, seen_obs, count),
            jnp.broadcast_to(seen_obs[:, None], (seen_obs.shape[0], count)),
            jnp.ones(count),
            jnp.ones(count, bool),
            jnp.zeros(count),
        )

        def decide(here: SequenceState, step: tuple[Array, Any]) -> tuple[SequenceState, Sequences]:
            noise, near = step
            around = self._actor(here.seen_obs) if near is None else near.centre[:, None]
            width = self.settings.noise if near is None else near.width[:, None]
            action = jnp.clip(around + width * noise, -1.0, 1.0)
            control = controls(self.task.spec, action.T).T
            return advance_candidates(dynamics, self.task, self.normalizer, here, control), action

        here, tried = jax.lax.scan(decide, here, (noise, proposal), unroll=unrolled())
        features = self.normalizer.features(here.seen_obs.T)
        tail = value(self.networks.critics, features, self._actor(here.seen_obs).T) / self.learning.reward_scale
        return tried, here.earned + jnp.where(here.alive, here.discount * tail, 0.0)

    def _actor(self, seen_obs: Sequences) -> Sequences:
        """pi(s) of every candidate, in [-1, 1]."""
        return greedy(self.learning, self.networks.actor, self.normalizer.features(seen_obs.T)).T


def unrolled() -> int:
    """Unroll factor of the scan over decisions: all of them on a GPU, where short loops are slow."""
    return 1 if jax.default_backend() == "cpu" else 10


class Proposal(NamedTuple):
    """Mean and width of the distribution that candidates are drawn from."""

    centre: Any
    width: Any


class PlannerMemory(NamedTuple):
    """Belief state, observation and action of the last decision."""

    belief: Any
    obs: Any
    seen_obs: Any
    """After the normaliser's changes."""
    control: Any

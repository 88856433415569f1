"""Milliseconds to choose the next visit of 1,000 patients among 14 intervals, in one compiled call.

With one Latent-ODE, with five, with the true dynamics, and continuously; beside the same choice one candidate at a time
(a call for each of the 14) and one patient at a time. Weights are random: they do not change the work. Run it while
nothing else runs: `kairode bench schedule`, with `--json` for the figures alone.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from _common import best_seconds, print_rows, run

import kairode
from kairode.agents.encoder import IdentityEncoder, LatentMemory, TrackedMemory
from kairode.agents.network import ReLUNetwork
from kairode.agents.q_policy import QPolicy
from kairode.config.presets import fit_preset
from kairode.envs.accrual import step_rewards
from kairode.envs.schedule import Decision
from kairode.models.zoo import build
from kairode.planning.optimize_schedule import optimize_schedule
from kairode.planning.optimized_schedule import OptimizedSchedule

PATIENTS = 1000
ALONE = 20
"""Patients in the measurement of one at a time: the rest would take as long each."""
ENV = kairode.make("hiv")
SPEC = ENV.task.spec
KEY = jax.random.key(0)
POLICY = QPolicy(ReLUNetwork.new(6, 256, 512, 4, key=KEY), IdentityEncoder(), SPEC, accrues=True)
MODELS = [build("latent-ode", SPEC, fit_preset("hiv").sizes, key=jax.random.key(i)) for i in range(5)]


def decisions(members: int) -> Decision:
    """Patients along random treatment, with latent states of so many models."""
    seen = kairode.collect(ENV, episodes=50, seed=1, schedule=5)
    obs = jnp.asarray(seen.observation[:, :200:10].reshape(-1, 6)[:PATIENTS], jnp.float32)
    action = jax.random.randint(KEY, (PATIENTS,), 0, 4)
    z = jax.random.normal(KEY, (PATIENTS, members, MODELS[0].initial.size))
    zero = jnp.zeros(PATIENTS)
    memory = TrackedMemory((), LatentMemory(z, obs, action))
    return Decision(obs, action, zero, zero.astype(jnp.int32), memory, jax.vmap(ENV.restored)(obs))


@eqx.filter_jit
def choose(schedule: OptimizedSchedule, these: Decision) -> Any:
    """Intervals of all patients, in one call."""
    return jax.vmap(lambda one: schedule.interval(jnp.zeros(()), one, key=KEY))(these)


@eqx.filter_jit
def one_candidate(model: Any, q: ReLUNetwork, these: Decision, tau: Any) -> Any:
    """What one candidate comes to for all patients: its own solve, through every day until it."""
    days = jnp.minimum(jnp.arange(1.0, 15.0), tau)

    def value(one: Decision) -> Any:
        seen = model.path(one.memory.latents.z[0], one.obs, one.action, days)[1]
        before = jnp.concatenate([one.obs[None], seen[:-1]])
        rewards = step_rewards(ENV.task, before, one.action, seen, jnp.diff(days, prepend=0.0))
        gamma = SPEC.discount ** jnp.arange(14.0)
        return (gamma * rewards).sum() + SPEC.discount**tau * q(seen[-1]).max()

    return jax.vmap(value)(these)


def measure() -> dict[str, dict[str, float]]:
    """Milliseconds for all patients."""
    single, five = decisions(1), decisions(5)
    one = optimize_schedule(MODELS[0], POLICY, ENV)
    many = optimize_schedule(MODELS, POLICY, ENV, quantile=0.2)
    truth = optimize_schedule(ENV, POLICY, ENV)
    flowing = optimize_schedule(MODELS[0], POLICY, ENV, continuous=True)
    first = [jax.tree.map(lambda x, i=i: x[i : i + 1], single) for i in range(ALONE)]
    taus = [jnp.asarray(float(tau)) for tau in range(1, 15)]

    def candidates() -> Any:
        return jnp.argmax(jnp.stack([one_candidate(MODELS[0], POLICY.q, single, tau) for tau in taus]), axis=0)

    calls = {
        "one Latent-ODE": lambda: jax.block_until_ready(choose(one, single)),
        "five Latent-ODEs, a quantile": lambda: jax.block_until_ready(choose(many, five)),
        "the true dynamics": lambda: jax.block_until_ready(choose(truth, single)),
        "one Latent-ODE, continuous": lambda: jax.block_until_ready(choose(flowing, single)),
        "one Latent-ODE, a call for each candidate": lambda: jax.block_until_ready(candidates()),
        "one Latent-ODE, a call for each patient": lambda: [jax.block_until_ready(choose(one, p)) for p in first],
    }
    seconds = best_seconds(calls)
    seconds["one Latent-ODE, a call for each patient"] *= PATIENTS / ALONE
    return {"milliseconds": {name: 1e3 * value for name, value in seconds.items()}}


def show(figures: dict[str, Any]) -> None:
    rows = [[name, f"{value:.4g}"] for name, value in figures["milliseconds"].items()]
    print_rows(["choosing among 14 intervals for 1,000 patients", "ms"], rows)


if __name__ == "__main__":
    run("schedule", measure, {"env": "hiv", "patients": PATIENTS, "candidates": 14}, show, __doc__)

"""Decisions a second of DQN agents that practise in an imagined HIV world: ours beside the same work in PyTorch.

One agent and five, and what prioritised replay adds to the bare update of the network. A decision is: act, one step of
a Latent-ODE, remember, one update from 128 transitions. Needs the extra `peers`; without it ours alone are measured,
and on a GPU ours with 1, 35 and 210 agents. Run it while nothing else runs: `kairode bench policy`, with `--json` for
the figures alone.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _common import best_seconds, has_peer, print_rows, run, torch_layer, torch_tanh_net

import kairode
from kairode.agents.dqn import (
    Learner,
    ReplayTransition,
    gradient_step,
    init_learner,
    pack_transition,
    store_transitions,
    unpack_transition,
    update_q,
)
from kairode.agents.encoder import IdentityEncoder
from kairode.agents.train_step import TrainingBatch, TrainState, init_train_state, run_steps
from kairode.config.agents import DQNConfig
from kairode.config.models import MIDPOINT, PAPER_MODELS
from kairode.config.presets import fit_preset
from kairode.data.replay import Draw, add_prioritized, draw, update_priorities
from kairode.envs.hiv import LOG_MEAN, LOG_STD, MARKERS, TREATMENTS
from kairode.envs.schedule import FixedOrOwn, Own, Schedule
from kairode.models.dynamics import DynamicsModel
from kairode.models.zoo import build
from kairode.planning.model_env import make_model_env
from kairode.trees import stack

ENV, MODEL = "hiv", "latent-ode"
SETTINGS = DQNConfig()
DECISIONS = 250
"""In one round, as many as one compiled call makes."""
UPDATES = 100
"""In one round, where updates alone are measured."""
SCHEDULES = (0.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0)
"""Of the agents on a GPU: the environment's own, and intervals in days."""
SEEDS = 5
EPISODES = 10_000
"""More than are reached."""


# Ours.


def model_of(name: str, seed: int) -> DynamicsModel:
    """Random weights, small ones so that no prediction grows: training takes as long in any environment."""
    sizes = dataclasses.replace(fit_preset(ENV).sizes, solver=MIDPOINT)  # few products, beside which DQN counts
    model = build(name, kairode.make(ENV).task.spec, sizes, key=jax.random.key(seed))
    return jax.tree.map(lambda x: 0.25 * x if eqx.is_array(x) else x, model)


def room_of(name: str, seeds: int, schedules: tuple[float, ...] = ()) -> TrainingBatch:
    """A world for each seed; agents for each schedule and seed."""
    env = kairode.make(ENV)
    model_envs = [make_model_env(model_of(name, seed), env, sample_intervals=False) for seed in range(seeds)]
    model_envs *= max(1, len(schedules))
    schedule: Schedule = Own()
    if schedules:
        schedule = FixedOrOwn(jnp.repeat(jnp.array(schedules), seeds), env.task.spec.intervals.low)
    return TrainingBatch(stack(model_envs), schedule, IdentityEncoder(), len(model_envs))


class Ours:
    """Agents of some rooms; a call is one round of decisions of all of them."""

    def __init__(self, *batches: TrainingBatch) -> None:
        seeds = range(sum(batch.agents for batch in batches))
        self.fixed = (SETTINGS, batches, DECISIONS)
        # Buffers that two arrays share cannot both be given away to the compiled loop.
        self.train_state: TrainState = jax.tree.map(jnp.copy, init_train_state(batches, SETTINGS, EPISODES, seeds))

    def __call__(self) -> None:
        self.train_state = jax.block_until_ready(run_steps(self.fixed, self.train_state))

    def check(self) -> None:
        """Whether what was measured is training: all agents learn, with updates."""
        assert not self.train_state.diverged.any(), "an agent diverged: no updates were measured"
        assert (self.train_state.learner.replay.replay.size > SETTINGS.batch_size).all()


# What replay adds.


def replay_loops() -> dict[str, Callable[[], Any]]:
    """Updates from a full prioritised replay, and the same ones from batches that lie ready."""
    features, actions, capacity = len(MARKERS), len(TREATMENTS), SETTINGS.replay_capacity
    rng = np.random.default_rng(0)

    def experience(n: int) -> ReplayTransition:
        seen, then = rng.normal(size=(2, n, features)).astype(np.float32)
        action = rng.integers(actions, size=n).astype(np.int32)
        reward = rng.normal(size=n).astype(np.float32)
        return jax.tree.map(jnp.asarray, ReplayTransition(seen, action, reward, np.full(n, 0.98, np.float32), then))

    full = init_learner(features, actions, SETTINGS, key=jax.random.key(0))
    memory, part = full.replay, 10_000
    for start in range(0, capacity, part):
        memory = add_prioritized(memory, pack_transition(experience(part)))
        errors = jnp.asarray(rng.normal(size=part), jnp.float32)
        memory = update_priorities(memory, jnp.arange(start, start + part), errors)
    full = eqx.tree_at(lambda a: a.replay, full, memory)
    keys = jax.random.split(jax.random.key(1), UPDATES)
    uniform = jax.vmap(lambda key: jax.random.uniform(key, (SETTINGS.batch_size,)))(keys)
    arrivals = experience(UPDATES)
    drawn = [draw(memory, SETTINGS.batch_size, key=key) for key in keys]
    batches: Draw = stack(drawn)

    def with_replay(learner: Learner, now: tuple[ReplayTransition, Any]) -> tuple[Learner, None]:
        transition, uniform = now
        new = jax.tree.map(lambda x: x[None], transition)
        return update_q(store_transitions(learner, new), SETTINGS, jnp.array(True), uniform=uniform)[0], None

    def bare(learner: Learner, drawn: Draw) -> tuple[Learner, None]:
        return gradient_step(learner, SETTINGS, unpack_transition(drawn.items), drawn.weights, jnp.array(True))[0], None

    def loop(body: Callable[..., Any], given: Any, start: Any = full) -> Callable[[], None]:
        run = jax.jit(lambda state: jax.lax.scan(body, state, given)[0], donate_argnums=0)
        state = [jax.tree.map(jnp.copy, start)]

        def call() -> None:
            state[0] = jax.block_until_ready(run(state[0]))

        return call

    # The four products of 128 x 256 x 512 in an update (two forwards, two backwards): what no implementation is spared.
    x, g, (small, large) = jnp.ones((SETTINGS.batch_size, 256)), jnp.ones((SETTINGS.batch_size, 512)), SETTINGS.hidden
    assert (small, large) == (256, 512)

    def products(weight: Any, _: Any) -> tuple[Any, None]:
        forward = (x @ weight.T) + (x @ (0.5 * weight).T)
        back = (g + 1e-6 * forward) @ weight
        return weight + 1e-9 * (g.T @ (x + 1e-6 * back)), None

    return {
        "with_replay": loop(with_replay, (arrivals, uniform)),
        "bare": loop(bare, batches),
        "products": loop(products, jnp.zeros(UPDATES), full.q.weights[1]),
    }


# The peer: what one would write without this package, compact and in the manner of PyTorch.


class SumTree:
    """Prioritised replay of NumPy arrays: the sums of a binary tree, all draws of a batch going down together."""

    def __init__(self, capacity: int, features: int) -> None:
        self.capacity, self.size, self.cursor, self.highest = capacity, 0, 0, 1.0
        self.seen, self.then = np.zeros((2, capacity, features), np.float32)
        self.action = np.zeros(capacity, np.int64)
        self.reward, self.discount = np.zeros((2, capacity), np.float32)
        self.levels = (capacity - 1).bit_length()
        self.leaf = 1 << self.levels
        self.sums = np.zeros(2 * self.leaf)

    def add(self, seen: Any, action: int, reward: float, discount: float, then: Any) -> None:
        i = self.cursor
        self.seen[i], self.then[i] = seen, then
        self.action[i], self.reward[i], self.discount[i] = action, reward, discount
        node = i + self.leaf
        change = self.highest - self.sums[node]
        while node:
            self.sums[node] += change
            node >>= 1
        self.cursor, self.size = (i + 1) % self.capacity, min(self.size + 1, self.capacity)

    def draw(self, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Places, and importance weights."""
        total = self.sums[1]
        mark = (np.arange(count) + rng.random(count)) * (total / count)
        node = np.ones(count, np.int64)
        for _ in range(self.levels):
            node *= 2
            left = self.sums[node]
            right = mark >= left
            mark -= np.where(right, left, 0.0)
            node += right
        where = np.minimum(node - self.leaf, self.size - 1)
        weights = (self.size * self.sums[where + self.leaf] / total) ** -SETTINGS.beta
        return where, weights / weights.max()

    def update_priorities(self, where: np.ndarray, errors: np.ndarray) -> None:
        powers = (np.abs(errors) + 1e-6) ** SETTINGS.alpha
        self.highest = max(self.highest, powers.max())
        node = where + self.leaf
        self.sums[node] = powers
        for _ in range(self.levels):
            node = node >> 1  # a parent of two draws is written twice with the same sum
            self.sums[node] = self.sums[2 * node] + self.sums[2 * node + 1]


def torch_world(model: DynamicsModel) -> Callable[[Any, Any, int], tuple[Any, Any, float]]:
    """One step of a Latent-ODE with the same weights: the next observation and latent state, and the interval."""
    import torch

    ours: Any = model
    flow, low, step = ours.transition, ours.timer.low, ours.timer.step
    jump = torch_layer(np.concatenate([flow.drive.weight, flow.mix.weight], 1), flow.mix.bias)
    field, timer = torch_tanh_net(flow.field), torch_tanh_net(ours.timer.net)
    decoder = torch_layer(ours.decoder.weight, ours.decoder.bias)
    assert flow.solver.method == "midpoint"
    steps, one_hot = flow.solver.steps, torch.eye(len(TREATMENTS))

    def imagined(obs: Any, z: Any, action: int) -> tuple[Any, Any, float]:
        x = torch.cat([obs, one_hot[action], z])
        tau = low + step * int(timer(x).argmax())
        z, h = jump(x), tau / steps
        for _ in range(steps):
            z = z + h * field(z + h / 2 * field(z))
        return decoder(z), z, tau

    return imagined


def torch_agent(model: DynamicsModel) -> Callable[[], None]:
    """A DQN in the world of this model; a call is one decision."""
    import torch
    from torch import nn

    env = kairode.make(ENV)
    spec = env.task.spec
    features, actions, latent = len(spec.observations), spec.actions.n, model.initial.size
    start_obs = torch.tensor(np.asarray(env.observe(env.reset(key=jax.random.key(0)))))
    medicine = [20000 * e1**2 + 2000 * e2**2 for e1, e2 in TREATMENTS.values()]
    v, e = MARKERS.index("V"), MARKERS.index("E")
    imagined = torch_world(model)

    def network() -> nn.Sequential:
        a, b = SETTINGS.hidden
        return nn.Sequential(nn.Linear(features, a), nn.ReLU(), nn.Linear(a, b), nn.ReLU(), nn.Linear(b, actions))

    q, target = network(), network()
    target.load_state_dict(q.state_dict())
    adam = torch.optim.Adam(q.parameters(), lr=SETTINGS.learning_rate)
    replay = SumTree(SETTINGS.replay_capacity, features)
    rng = np.random.default_rng(0)
    obs, z, now, decisions, episodes = start_obs, torch.randn(latent), 0.0, 0, 0

    def gradient_step() -> None:
        where, weights = replay.draw(SETTINGS.batch_size, rng)
        seen, action, reward, discount, then = (
            torch.from_numpy(x[where])
            for x in (replay.seen, replay.action, replay.reward, replay.discount, replay.then)
        )
        with torch.no_grad():
            wanted = reward + discount * target(then).max(1).values
        value = q(seen).gather(1, action[:, None])[:, 0]
        losses = nn.functional.smooth_l1_loss(value, wanted, reduction="none")
        adam.zero_grad()
        (torch.from_numpy(weights.astype(np.float32)) * losses).mean().backward()
        nn.utils.clip_grad_value_(q.parameters(), SETTINGS.gradient_clip)
        adam.step()
        replay.update_priorities(where, (value.detach() - wanted).numpy())

    def step() -> None:
        nonlocal obs, z, now, decisions, episodes
        with torch.no_grad():
            last = SETTINGS.final_epsilon
            share = last + (1 - last) * np.exp(-decisions / SETTINGS.epsilon_decay)
            action = int(rng.integers(actions)) if rng.random() < share else int(q(obs).argmax())
            then, z, tau = imagined(obs, z, action)
        virus, cells = (10 ** (float(then[i]) * LOG_STD[i] + LOG_MEAN[i]) for i in (v, e))
        reward = SETTINGS.reward_scale * (1000 * cells - 0.1 * virus - medicine[action])
        replay.add(obs.numpy(), action, reward, spec.discount**tau, then.numpy())
        obs, now, decisions = then, now + tau, decisions + 1
        if decisions >= SETTINGS.batch_size:
            gradient_step()
        if now >= spec.horizon:
            obs, z, now, episodes = start_obs, torch.randn(latent), 0.0, episodes + 1
            if episodes % SETTINGS.target_period == 0:
                target.load_state_dict(q.state_dict())

    return step


def peer() -> dict[str, float]:
    """Seconds for a round of decisions, with one thread and with two."""
    import torch

    step = torch_agent(model_of(MODEL, 0))

    def some(threads: int) -> None:
        torch.set_num_threads(threads)
        for _ in range(DECISIONS):
            step()

    return best_seconds({"peer_1_thread": lambda: some(1), "peer_2_threads": lambda: some(2)}, 3)


def on_gpu() -> dict[str, dict[str, float]]:
    """Milliseconds for a decision of all agents."""
    cases = {
        "1": lambda: [room_of(MODEL, 1)],
        "35": lambda: [room_of(MODEL, SEEDS, SCHEDULES)],
        "210": lambda: [room_of(model, SEEDS, SCHEDULES) for model in PAPER_MODELS],
    }
    milliseconds: dict[str, float] = {}
    for agents, batches in cases.items():
        ours = Ours(*batches())
        milliseconds[agents] = 1e3 * best_seconds({agents: ours}, 3)[agents] / DECISIONS
        ours.check()
    return {"milliseconds": milliseconds, "decisions_a_second": {n: 1e3 * int(n) / x for n, x in milliseconds.items()}}


def on_cpu() -> dict[str, dict[str, float]]:
    """Milliseconds for a decision of one agent and of five, ours and the peer's, and how they compare."""
    one, five = Ours(room_of(MODEL, 1)), Ours(room_of(MODEL, SEEDS))
    seconds = best_seconds({"ours_1": one, "ours_5": five})
    one.check()
    five.check()
    loops = best_seconds(replay_loops(), 10)
    if has_peer("torch"):  # last: its threads wait for work for a while, which disturbs
        seconds |= peer()
    milliseconds = {name: 1e3 * value / DECISIONS for name, value in seconds.items()}
    rates = {name: 1e3 * (SEEDS if name == "ours_5" else 1) / value for name, value in milliseconds.items()}
    ratios = {
        "five_together": milliseconds["ours_5"] / (SEEDS * milliseconds["ours_1"]),
        "replay_adds_percent": 100 * (loops["with_replay"] / loops["bare"] - 1),
    }
    if theirs := [rate for name, rate in rates.items() if name.startswith("peer")]:
        ratios |= {f"{name}_by_peer": rates[name] / max(theirs) for name in ("ours_1", "ours_5")}
    milliseconds |= {f"update_{name}": 1e3 * value / UPDATES for name, value in loops.items()}
    return {"milliseconds": milliseconds, "decisions_a_second": rates, "ratios": ratios}


def measure() -> dict[str, dict[str, float]]:
    return on_gpu() if jax.default_backend() == "gpu" else on_cpu()


NAMES = {
    "ours_1": "one agent",
    "ours_5": "five agents together",
    "peer_1_thread": "PyTorch, one agent, 1 thread",
    "peer_2_threads": "PyTorch, one agent, 2 threads",
    "update_with_replay": "an update with prioritised replay",
    "update_bare": "the network's update alone",
    "update_products": "its four large products alone",
}


def show(figures: dict[str, Any]) -> None:
    rows = []
    for name, value in figures["milliseconds"].items():
        rate = figures["decisions_a_second"].get(name)
        rows.append([NAMES.get(name, f"{name} agents"), f"{value:.3g}", "" if rate is None else f"{rate:,.0f}"])
    print_rows([f"DQN in an imagined {ENV} world ({MODEL})", "ms", "decisions a second"], rows)
    if "ratios" not in figures:
        return
    ratios = figures["ratios"]
    print(
        f"Five agents together take {ratios['five_together']:.2f} of the time of five alone; prioritised replay adds "
        f"{ratios['replay_adds_percent']:.0f} % to the network's update."
    )
    if "ours_1_by_peer" in ratios:
        print(
            f"Ours makes {ratios['ours_1_by_peer']:.1f} times the decisions of PyTorch with one agent, "
            f"{ratios['ours_5_by_peer']:.1f} times with five."
        )


if __name__ == "__main__":
    settings = {"env": ENV, "model": MODEL, "decisions": DECISIONS, "schedules": SCHEDULES, "seeds": SEEDS}
    run("policy", measure, settings, show, __doc__)

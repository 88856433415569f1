"""Decisions a second: our environments, alone and 1,024 at once, beside plain NumPy and scipy doing the same.

Run it while nothing else runs: `kairode bench envs`, with `--json` for the figures alone.
"""

import math
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import jax
import mujoco
import numpy as np
from _common import best_seconds, print_rows, run, seconds_a_call
from scipy.integrate import odeint

import kairode
from kairode.envs.gym.semi_markov import check_action
from kairode.envs.keys import key_of
from kairode.envs.locomotion import quiet_loading
from kairode.envs.schedule import Own, next_interval
from kairode.envs.vector import next_episode_key, step_key
from kairode.envs.vector_host import HostVectorEnv

MANY = 1024
ROBOTS = (16, 128)
EPISODES = 1000
DECISIONS, ROUNDS = 400, 15
"""Of one robot, and how often each side repeats them."""
CONFIG = {"many": MANY, "robots": ROBOTS, "episodes": EPISODES, "decisions": DECISIONS, "rounds": ROUNDS, "seed": 0}


def rate(step: Callable[[], Any], decisions: int) -> float:
    """Decisions a second."""
    return decisions / seconds_a_call(step, 1 / 3)


# Plain peers: what one would write without this package. Each steps `n` instances and starts ended ones anew.


class NumpyGridworld:
    """All instances as rows of one array."""

    def __init__(self, n: int) -> None:
        self.rng, self.n = np.random.default_rng(0), n
        slant = 0.17 / math.sqrt(2)
        cardinal = [(0.17, 0), (-0.17, 0), (0, -0.17), (0, 0.17)]
        self.moves = np.array([*cardinal, (slant, -slant), (slant, slant), (-slant, -slant), (-slant, slant)])
        self.state, self.time = self.start(n), np.zeros(n)

    def start(self, n: int) -> np.ndarray:
        return np.stack([self.rng.uniform(-0.5, 0.5, n), self.rng.uniform(-5, -4, n)], axis=1)

    def step(self) -> np.ndarray:
        action, tau = self.rng.integers(8, size=self.n), self.rng.integers(1, 8, size=self.n)
        for second in range(tau.max()):
            y = self.state[:, 1]
            wind = np.where((y > 0.5) & (y < 2.5), 0.17 / 2, np.where((y >= -2.5) & (y <= 3.5), 0.17 / 4, 0.0))
            moved = self.state + self.moves[action]
            moved[:, 0] += wind
            going = (second < tau)[:, None]
            self.state = np.where(going, np.clip(moved, [-3.5, -5], [3.5, 5]), self.state)
        self.time += tau
        x, y = self.state.T
        goal = (np.abs(x) <= 0.5) & (y >= 1.5) & (y <= 2.5)
        reward = 10.0 * goal - tau
        over = goal | (self.time >= 150)
        self.state = np.where(over[:, None], self.start(self.n), self.state)
        self.time[over] = 0
        return reward


class NumpyAcrobot:
    """All instances as columns; RK4 in the same steps of 0.02 s."""

    def __init__(self, n: int) -> None:
        self.rng, self.n = np.random.default_rng(0), n
        self.state, self.time = self.rng.uniform(-0.1, 0.1, (4, n)), np.zeros(n)

    @staticmethod
    def field(s: np.ndarray, torque: np.ndarray) -> np.ndarray:
        t1, t2, w1, w2 = s
        sin2, cos2 = np.sin(t2), np.cos(t2)
        d1, d2 = 3.5 + cos2, 1.25 + 0.5 * cos2
        phi2 = 4.9 * np.sin(t1 + t2)
        phi1 = -0.5 * w2**2 * sin2 - w2 * w1 * sin2 + 14.7 * np.sin(t1) + phi2
        a2 = (torque + d2 / d1 * phi1 - 0.5 * w1**2 * sin2 - phi2) / (1.25 - d2**2 / d1)
        return np.stack([w1, w2, -(d2 * a2 + phi1) / d1, a2])

    def step(self) -> np.ndarray:
        torque = self.rng.integers(3, size=self.n) - 1.0
        steps = 10 * self.rng.integers(1, 6, size=self.n)
        h, s = 0.02, self.state
        for k in range(steps.max()):
            k1 = self.field(s, torque)
            k2 = self.field(s + h / 2 * k1, torque)
            k3 = self.field(s + h / 2 * k2, torque)
            k4 = self.field(s + h * k3, torque)
            new = s + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            new[:2] = (new[:2] + np.pi) % (2 * np.pi) - np.pi
            new[2] = np.clip(new[2], -4 * np.pi, 4 * np.pi)
            new[3] = np.clip(new[3], -9 * np.pi, 9 * np.pi)
            s = np.where(k < steps, new, s)
        self.time += 0.02 * steps
        height = -np.cos(s[0]) - np.cos(s[0] + s[1])
        over = (height > 1) | (self.time >= 99.99)
        self.state = np.where(over, self.rng.uniform(-0.1, 0.1, s.shape), s)
        self.time[over] = 0
        return height


class ScipyHIV:
    """One patient after the other through LSODA, at a relative tolerance of 1e-6."""

    start = np.array([163573.0, 5.0, 11945.0, 46.0, 63919.0, 24.0])
    efficacy = ((0.0, 0.0), (0.7, 0.0), (0.0, 0.3), (0.7, 0.3))
    visits = kairode.make("hiv").visits

    def __init__(self, n: int) -> None:
        self.rng, self.n = np.random.default_rng(0), n
        self.state, self.time = np.tile(self.start, (n, 1)), np.zeros(n)

    @staticmethod
    def field(y: np.ndarray, t: float, e1: float, e2: float) -> list[float]:
        T1, T2, T1s, T2s, V, E = y.tolist()
        a, b, sick = (1 - e1) * 8e-7 * V * T1, (1 - 0.34 * e1) * 1e-4 * V * T2, T1s + T2s
        return [
            1e4 - 0.01 * T1 - a,
            31.98 - 0.01 * T2 - b,
            a - (0.7 + 1e-5 * E) * T1s,
            b - (0.7 + 1e-5 * E) * T2s,
            (1 - e2) * 70 * sick - 13 * V - a - b,
            1 + (0.3 * sick / (sick + 100) - 0.25 * sick / (sick + 500) - 0.1) * E,
        ]

    def step(self) -> list[float]:
        rewards = []
        for i in range(self.n):
            action = int(self.rng.integers(4))
            row = int(np.searchsorted([1e4, 1e5], self.state[i, 4]))
            least, most = self.visits[row][action]
            tau = float(self.rng.integers(least, most + 1))
            e1, e2 = self.efficacy[action]
            after = odeint(self.field, self.state[i], (0.0, tau), args=(e1, e2), rtol=1e-6, atol=1e-6, mxstep=5000)[-1]
            rewards.append(-0.1 * after[4] - 20000 * e1**2 - 2000 * e2**2 + 1000 * after[5])
            self.time[i] += tau
            over = self.time[i] >= 1000
            self.state[i], self.time[i] = (self.start, 0.0) if over else (after, self.time[i])
        return rewards


PEERS: dict[str, tuple[str, type[Any], str]] = {
    "gridworld": ("kairode/WindyGridworld-v0", NumpyGridworld, "NumPy"),
    "acrobot": ("kairode/Acrobot-v0", NumpyAcrobot, "NumPy"),
    "hiv": ("kairode/HIV-v0", ScipyHIV, "scipy"),
}


def ours_alone(gym_id: str) -> float:
    env: Any = gymnasium.make(gym_id).unwrapped
    env.reset(seed=0)
    env.action_space.seed(0)

    def step() -> None:
        *_, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()

    return rate(step, 1)


def ours_together(gym_id: str, n: int) -> float:
    env = gymnasium.make_vec(gym_id, num_envs=n)
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    actions: Any = env.single_action_space

    return rate(lambda: env.step(rng.integers(int(actions.n), size=n)), n)


def gridworld_profile() -> dict[str, float]:
    """Microseconds of a step of 1,024 gridworlds, and of its parts."""
    env: Any = gymnasium.make_vec("kairode/WindyGridworld-v0", num_envs=MANY)
    env.reset(seed=0)
    inner, rng = env.instances.vector_env, np.random.default_rng(0)
    actions, ended = rng.integers(8, size=MANY), np.zeros(MANY, bool)

    def compiled(held: np.ndarray | None) -> None:
        jax.block_until_ready(inner.calls.step(inner.episodes, actions.astype(np.int32), held, inner.keys.data, ended))

    @jax.jit
    @jax.vmap
    def draws(data: Any, moment: Any) -> Any:
        """The random numbers of a step: its interval, and a start in case it resets."""
        keys = jax.random.split(step_key(data, moment.count, unrolled=True))
        data = next_episode_key(data, unrolled=True)
        start = inner.env.reset(key=jax.random.fold_in(key_of(data, unrolled=True), 1))
        return next_interval(inner.env, Own(), moment, moment.count, key=keys[0]), data, start

    parts = {
        "step": lambda: env.step(actions),
        "compiled": lambda: compiled(None),
        "compiled, intervals given": lambda: compiled(np.full(MANY, 4.0, np.float32)),
        "random numbers alone": lambda: jax.block_until_ready(draws(inner.keys.data, inner.episodes)),
        "check of the actions": lambda: check_action(inner.task.spec, actions, MANY),
        "NumPy's step": NumpyGridworld(MANY).step,
    }
    return {name: 1e6 * seconds for name, seconds in best_seconds(parts, rounds=500).items()}


class Player:
    """Plays the same actions on one robot again and again; keeps the best time of each step (resets do not count)."""

    def __init__(self, step: Callable[[np.ndarray], bool], reset: Callable[..., Any], actions: np.ndarray) -> None:
        self.step, self.reset, self.actions = step, reset, actions
        self.best = np.full(len(actions), math.inf)

    def play(self) -> None:
        self.reset(seed=0)
        for i, action in enumerate(self.actions):
            start = time.perf_counter()
            over = self.step(action)
            self.best[i] = min(self.best[i], time.perf_counter() - start)
            if over:
                self.reset()


def robot_alone(name: str) -> dict[str, float]:
    """Decisions a second of one robot: the same actions, intervals and physics on all sides, to the bit.

    `peer_1` is Gymnasium's robot with its frame skip set by the interval rule, `given_1` the same with the intervals
    known beforehand, `physics_1` the frames alone.
    """
    robot, (least, most) = kairode.make(name).robot, kairode.make(name).repeats
    ours: Any = gymnasium.make(f"kairode/{robot.gym_id.split('-')[0]}-v0").unwrapped
    with quiet_loading(name):
        theirs: Any = gymnasium.make(robot.gym_id).unwrapped
    actions = np.random.default_rng(0).uniform(-1, 1, (DECISIONS, len(robot.controls))).astype(np.float32)
    physics = ours.instances.vector_env.simulations[0].gym.data
    taus: list[int] = []
    given = iter(taus)

    def our_step(action: np.ndarray) -> bool:
        *_, terminated, truncated, _ = ours.step(action)
        return terminated or truncated

    def their_step(action: np.ndarray) -> bool:
        speed = np.linalg.norm(theirs.data.qvel)
        theirs.frame_skip = round((most - least) / 2 * np.cos(20 * np.pi * speed) + (least + most) / 2)
        *_, terminated, truncated, _ = theirs.step(action)
        return terminated or truncated

    def given_step(action: np.ndarray) -> bool:
        theirs.frame_skip = next(given)
        *_, terminated, truncated, _ = theirs.step(action)
        return terminated or truncated

    def frames_alone(action: np.ndarray) -> bool:
        theirs.data.ctrl[:] = action
        mujoco.mj_step(theirs.model, theirs.data, next(given))
        return name == "hopper" and not theirs.is_healthy

    ours.reset(seed=0)
    for action in actions:
        *_, terminated, truncated, info = ours.step(action)
        taus.append(int(info["dt"]))
        if terminated or truncated:
            ours.reset()
    steps = {"ours_1": our_step, "peer_1": their_step, "given_1": given_step, "physics_1": frames_alone}
    players = {key: Player(step, (ours if key == "ours_1" else theirs).reset, actions) for key, step in steps.items()}
    for _ in range(ROUNDS):
        ends = []
        for player in players.values():
            given = iter(taus)
            player.play()
            ends.append((physics if player is players["ours_1"] else theirs.data).qpos.copy())
        if not all(np.array_equal(end, ends[0]) for end in ends):
            raise RuntimeError(f"'{name}': the sides have simulated different physics.")
    return {key: 1 / float(player.best.mean()) for key, player in players.items()}


def robots_together(name: str) -> dict[str, float]:
    """Decisions a second of 16 and 128 robots, in MuJoCo's batch and each on its own; `ours` is what is used."""
    env, found = kairode.make(name), {}
    for n in ROBOTS:
        actions = np.random.default_rng(0).uniform(-1, 1, (20, n, env.task.spec.actions.n))
        ways = {"ours": None, "batch": True, "each": False}
        vectors = {way: HostVectorEnv(env, n, grouped=grouped) for way, grouped in ways.items()}
        best = dict.fromkeys(ways, math.inf)
        for _ in range(4):
            for way, vector_env in vectors.items():
                vector_env.reset(range(n))
                start = time.perf_counter()
                for action in actions:
                    vector_env.step(action)
                best[way] = min(best[way], time.perf_counter() - start)
        for way, vector_env in vectors.items():
            found[f"{way}_{n}"] = len(actions) * n / best[way]
            vector_env.close()
    return found


def collecting() -> dict[str, float]:
    """Seconds for 1,000 random episodes of 1,000 days, the first time (compiling) and after."""
    env = kairode.make("hiv")
    seconds, decisions = [], 0
    for seed in range(3):
        start = time.perf_counter()
        decisions = kairode.collect(env, episodes=EPISODES, seed=seed).decisions
        seconds.append(time.perf_counter() - start)
    again = min(seconds[1:])
    found = {"first_seconds": seconds[0], "seconds": again}
    return {**found, "decisions": decisions, "decisions_a_second": decisions / again}


def measure() -> dict[str, dict[str, float]]:
    figures: dict[str, dict[str, float]] = {}
    for name, (gym_id, peer, _) in PEERS.items():
        figures[name] = {
            "ours_1": ours_alone(gym_id),
            "peer_1": rate(peer(1).step, 1),
            "ours_1024": ours_together(gym_id, MANY),
            "peer_1024": rate(peer(MANY).step, MANY),
        }
    figures["gridworld-profile"] = gridworld_profile()
    for name in ("swimmer", "hopper", "half-cheetah"):
        figures[name] = {**robot_alone(name), **robots_together(name)}
    figures["collect-hiv"] = collecting()
    return figures


def show(figures: dict[str, dict[str, float]]) -> None:
    rows, robots = [], []
    for name, found in figures.items():
        if name not in PEERS and "ours_1" in found:
            robots.append([name, *(f"{found[key]:,.0f}" for key in ("ours_1", "peer_1", "given_1", "physics_1"))])
            robots[-1].append(f"{found['ours_1'] / found['peer_1']:.2f}")
            robots[-1] += [f"{found[f'{way}_{n}']:,.0f}" for n in ROBOTS for way in ("each", "batch")]
        if name not in PEERS:
            continue
        numbers = [
            *(f"{found['ours_1']:,.0f}", f"{found['peer_1']:,.0f}", f"{found['ours_1'] / found['peer_1']:.1f}"),
            *(f"{found['ours_1024']:,.0f}", f"{found['peer_1024']:,.0f}"),
            f"{found['ours_1024'] / found['peer_1024']:.1f}",
        ]
        rows.append([f"{name} ({PEERS[name][2]})", *numbers])
    heads = ["decisions a second", "ours, 1", "plain, 1", "ratio", f"ours, {MANY:,}", f"plain, {MANY:,}", "ratio"]
    print_rows(heads, rows, width=120)
    heads = ["decisions a second", "ours, 1", "Gymnasium, 1", "intervals given", "physics alone", "ratio"]
    heads += [f"{way}, {n}" for n in ROBOTS for way in ("one by one", "batch")]
    print_rows(heads, robots, width=140)
    profile = figures["gridworld-profile"]
    print_rows(profile, [[f"{us:,.1f}" for us in profile.values()]], f"{MANY:,} gridworlds, microseconds", width=140)
    found = figures["collect-hiv"]
    print(
        f"Collecting {EPISODES:,} random HIV episodes of 1,000 days ({found['decisions']:,.0f} decisions): "
        f"{found['seconds']:.1f} s, {found['first_seconds']:.1f} s the first time, with compiling."
    )


if __name__ == "__main__":
    run("envs", measure, CONFIG, show, __doc__)

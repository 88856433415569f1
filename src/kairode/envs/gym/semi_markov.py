"""Gymnasium interface: `gymnasium.make("kairode/HIV-v0")`, and vectorised by `make_vec`."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector import VectorEnv as GymnasiumVectorEnv
from gymnasium.vector.utils import batch_space

from kairode.envs.core import Continuous, Discrete, Environment, Spec
from kairode.envs.host import HostEnvironment
from kairode.envs.schedule import as_schedule, check_intervals
from kairode.envs.vector import OneStep, Step, VectorEnv
from kairode.envs.vector_host import HostVectorEnv
from kairode.envs.vector_jax import JaxVectorEnv
from kairode.envs.zoo import make
from kairode.errors import KairodeError

AGENT = "agent"
Env = str | Environment | HostEnvironment
"""An environment, or the name of one of `kairode.make`."""


def observation_space(spec: Spec) -> spaces.Box:
    """A box with the bounds of the variables, in float32."""
    low, high = np.array([(v.low, v.high) for v in spec.observations], np.float32).T
    return spaces.Box(low, high, dtype=np.float32)


def action_space(spec: Spec, chosen_by_agent: bool) -> spaces.Space:
    """Action space; a dictionary of action and interval if the agent chooses the interval."""
    actions = spec.actions
    action: spaces.Space
    if isinstance(actions, Discrete):
        action = spaces.Discrete(actions.n)
    else:
        action = spaces.Box(np.array(actions.low, np.float32), np.array(actions.high, np.float32), dtype=np.float32)
    return spaces.Dict({"action": action, "interval": interval_space(spec)}) if chosen_by_agent else action


def interval_space(spec: Spec) -> spaces.Space:
    """Integers if the environment's intervals are; otherwise any time in its range."""
    low, high = spec.intervals.low, spec.intervals.high
    if spec.intervals.whole:
        return spaces.Discrete(int(high - low) + 1, start=int(low))
    return spaces.Box(low, high, (), np.float32)


def check_action(spec: Spec, actions: Any, size: int) -> np.ndarray:
    """Actions of all instances as an array of their dtype; refuses wrong shapes, types and values."""
    kind = spec.actions
    values = np.asarray(actions)
    if isinstance(kind, Discrete):
        if size > 1 and values.shape != (size,):
            raise KairodeError(f"expected {size} actions, one per instance, got an array of shape {values.shape}.")
        if values.shape != (size,) or not np.issubdtype(values.dtype, np.integer):
            given = actions[0] if size == 1 else values.dtype
            raise KairodeError(f"an action of '{spec.name}' must be an integer ({_listed(kind)}), got {given!r}.")
        outside = values.astype(np.uint64) >= kind.n  # a negative number becomes a large one
        if outside.any():
            raise KairodeError(f"action {values[outside][0]} is outside the actions of '{spec.name}': {_listed(kind)}.")
        return values.astype(np.int32)
    if size > 1 and values.shape != (size, kind.n):
        raise KairodeError(f"expected actions of shape {(size, kind.n)}, got {values.shape}.")
    if values.shape != (size, kind.n) or values.dtype.kind not in "iufc":
        raise KairodeError(
            f"an action of '{spec.name}' must have {kind.n} numbers ({', '.join(kind.names)}), got {actions[0]!r}."
        )
    inside = kind.contain(values)
    if not inside.all():
        row, i = np.argwhere(~inside)[0]
        bounds = f"[{kind.low[i]:g}, {kind.high[i]:g}]"
        raise KairodeError(f"'{kind.names[i]}' of '{spec.name}' must be within {bounds}, got {values[row, i]:g}.")
    return values.astype(np.float32)


def _listed(actions: Discrete) -> str:
    return ", ".join(f"{i} {name}" for i, name in enumerate(actions.names))


def check_one(spec: Spec, action: Any) -> Any:
    """`check_action` of a single action, without an axis of instances, and quick about an action that is right."""
    kind, values = spec.actions, np.asarray(action)
    if isinstance(kind, Continuous) and values.shape == (kind.n,) and values.dtype.kind in "iuf":
        for x, low, high in zip(values.tolist(), *kind.accepted, strict=True):
            if not low <= x <= high:
                break
        else:
            return values.astype(np.float32, copy=False)
    return check_action(spec, values[None], 1)[0]


def check_choice(spec: Spec, taus: np.ndarray) -> None:
    """Refuse intervals chosen by an agent that are outside the environment's own."""
    check_intervals(taus, spec)
    low, high = spec.intervals.low, spec.intervals.high
    outside = (taus < low - 1e-6) | (taus > high + 1e-6)
    if spec.intervals.whole:
        outside |= taus != np.round(taus)
    if outside.any():
        kind = "integers" if spec.intervals.whole else "times"
        raise KairodeError(
            f"interval {taus[outside][0]:g} is outside those of '{spec.name}': {kind} from {low:g} to {high:g}."
        )


def made(given: Env, fields: dict[str, Any]) -> Any:
    """The environment of this name, or the environment itself."""
    if isinstance(given, str):
        return make(given, **fields)
    if not isinstance(given, Environment | HostEnvironment):
        raise KairodeError(
            f"{given!r} is neither an environment nor the name of one: pass e.g. 'hiv', kairode.make('hiv') or a "
            "kairode.ModelEnv."
        )
    if fields:
        raise KairodeError(
            f"fields ({', '.join(fields)}) can be given with a name only, not with an environment that is already "
            f"made: set them when you make '{given.task.spec.name}'."
        )
    return given


def check_drawn(env: Environment | HostEnvironment) -> None:
    """Refuse `render_mode` of an environment that has no drawing."""
    if isinstance(env, Environment):
        from kairode.envs.render import DRAWINGS

        if type(env) not in DRAWINGS:
            raise KairodeError(f"'{env.task.spec.name}' ({type(env).__name__}) has no drawing: use render_mode=None.")


def has_bounds(space: spaces.Box) -> bool:
    """Whether any variable has a bound."""
    return bool(np.isfinite(space.low).any() or np.isfinite(space.high).any())


class _Instances:
    """Common part of the single and the vector environment: instances, and validation of actions and intervals."""

    def __init__(self, given: Env, size: int, interval: Any, render_mode: str | None, fields: dict[str, Any]) -> None:
        env = made(given, fields)
        self.env, self.spec, self.size = env, env.task.spec, size
        if render_mode not in (None, "rgb_array"):
            raise KairodeError(f"render_mode of '{self.spec.name}' must be None or 'rgb_array', got {render_mode!r}.")
        if render_mode is not None:
            check_drawn(env)
        space = observation_space(self.spec)
        # The package's own environments keep within their bounds; predictions of a model need not.
        self.bounds = None if isinstance(given, str) or not has_bounds(space) else (space.low, space.high)
        self.chosen_by_agent = isinstance(interval, str) and interval == AGENT
        schedule = None if self.chosen_by_agent else as_schedule(interval, self.spec)
        self.vector_env: VectorEnv
        if isinstance(env, HostEnvironment):
            self.vector_env = HostVectorEnv(env, size, schedule, render_mode=render_mode)
        else:
            self.vector_env = JaxVectorEnv(env, size, schedule)

    def step(self, actions: Any, autoreset: np.ndarray | None = None) -> Step:
        taus = None
        if self.chosen_by_agent:
            actions, taus = self._chosen(actions)
        step = self.vector_env.step(check_action(self.spec, actions, self.size), taus, autoreset)
        return step if self.bounds is None else step._replace(obs=self.bounded(step.obs))

    def step_one(self, action: Any) -> OneStep:
        """Step the only instance."""
        taus = None
        if self.chosen_by_agent:
            action, taus = self._chosen(action)
        action = check_one(self.spec, action)
        if isinstance(self.vector_env, HostVectorEnv):
            one = self.vector_env.step_one(action, None if taus is None else float(taus[0]))
        else:
            step = self.vector_env.step(action[None], taus)
            numbers = step.reward, step.terminated, step.truncated, step.tau, step.time
            one = OneStep(step.obs[0], *(x[0].item() for x in numbers))
        return one if self.bounds is None else one._replace(obs=self.bounded(one.obs))

    def reset(self, seeds: Sequence[int | None], which: Sequence[int] | None = None) -> np.ndarray:
        """Start episodes in the instances `which` (default: all); returns the observations of all."""
        return self.bounded(self.vector_env.reset(seeds, which))

    def bounded(self, obs: np.ndarray) -> np.ndarray:
        """Observations within the bounds of the observation space."""
        return obs if self.bounds is None else np.clip(obs, *self.bounds)

    def _chosen(self, actions: Any) -> tuple[Any, np.ndarray]:
        """Actions, and the intervals that the agent chose."""
        if not isinstance(actions, dict) or set(actions) != {"action", "interval"}:
            raise KairodeError(
                f"'{self.spec.name}' was made with interval='agent': give {{'action': ..., 'interval': ...}}."
            )
        taus = np.reshape(np.asarray(actions["interval"], np.float64), self.size)
        check_choice(self.spec, taus)
        return actions["action"], taus


class SemiMarkovEnv(gymnasium.Env):
    """A single environment. `info["dt"]` and `info["time"]` give the elapsed and the absolute time.

    Args:
        name: an environment of `kairode.make` (set by the Gymnasium ids), or an environment, such as a
            `kairode.ModelEnv`. Predictions of a model are clipped to the bounds of the observation space.
        interval: "own" for the environment's schedule, a number to fix it, a list to cycle through, or "agent" to let
            the agent choose: an action is then `{"action": ..., "interval": ...}`.
        render_mode: None or "rgb_array".
        fields: any field of the environment, such as `horizon=500`, if it is given by name.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012  Gymnasium's way

    def __init__(
        self,
        name: Env,
        interval: str | float | Sequence[float] = "own",
        render_mode: str | None = None,
        **fields: Any,
    ) -> None:
        self.render_mode = render_mode
        self.instances = _Instances(name, 1, interval, render_mode, fields)
        self.observation_space = observation_space(self.instances.spec)
        self.action_space = action_space(self.instances.spec, self.instances.chosen_by_agent)
        self.ended = False
        self.history: list[dict[str, Any]] = []
        """Input of `render`: times, states and the actions that led there."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        obs = self.instances.reset([seed])
        self.ended = False
        self.history = []
        self._remember(0.0, None)
        return obs[0], {"dt": 0.0, "time": 0.0}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        if self.ended:
            raise KairodeError(
                f"the episode of '{self.instances.spec.name}' is over: call reset() before the next step."
            )
        obs, reward, terminated, truncated, tau, time = self.instances.step_one(action)
        self.ended = terminated or truncated
        if self.render_mode is not None:
            self._remember(time, np.asarray(action["action"] if isinstance(action, dict) else action))
        return obs, reward, terminated, truncated, {"dt": tau, "time": time}

    def render(self) -> Any:
        if self.render_mode is None:
            return None
        from kairode.envs.render import render_history

        vector_env = self.instances.vector_env
        if isinstance(vector_env, HostVectorEnv):
            return vector_env.simulations[0].render()
        return render_history(self.instances.env, self.history)

    def close(self) -> None:
        self.instances.vector_env.close()

    def _remember(self, time: float, action: Any) -> None:
        if self.render_mode is not None:
            states = self.instances.vector_env.states()
            self.history.append({"time": time, "state": None if states is None else states[0], "action": action})


class SemiMarkovVectorEnv(GymnasiumVectorEnv):
    """Vectorised environment; one compiled call per step. An instance whose episode ended is reset at the next step."""

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012  Gymnasium's way

    def __init__(
        self, name: Env, num_envs: Any = 1, interval: str | float | Sequence[float] = "own", **fields: Any
    ) -> None:
        if not (isinstance(num_envs, int) and num_envs >= 1):
            raise KairodeError(f"num_envs must be an integer of at least 1, got {num_envs}.")
        self.num_envs = num_envs
        self.instances = _Instances(name, num_envs, interval, None, fields)
        self.single_observation_space = observation_space(self.instances.spec)
        self.single_action_space = action_space(self.instances.spec, self.instances.chosen_by_agent)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.ended = np.zeros(num_envs, bool)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed if isinstance(seed, int) else None)
        seeds: list[int | None] = [None] * self.num_envs
        if isinstance(seed, int | np.integer):
            seeds = [int(seed) + i for i in range(self.num_envs)]
        elif seed is not None:
            seeds = [None if one is None else int(one) for one in seed]
        if len(seeds) != self.num_envs:
            raise KairodeError(f"expected {self.num_envs} seeds, one per instance, got {len(seeds)}.")
        obs = self.instances.reset(seeds)
        self.ended[:] = False
        zero = np.zeros(self.num_envs)
        return obs, {"dt": zero, "time": zero.copy()}

    def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        step = self.instances.step(actions, self.ended)
        self.ended = step.ended
        info = {"dt": step.tau, "time": step.time}
        return step.obs, step.reward.astype(np.float64), step.terminated, step.truncated, info

    def close_extras(self, **kwargs: Any) -> None:
        self.instances.vector_env.close()


def as_gymnasium(
    env: Environment | HostEnvironment,
    interval: str | float | Sequence[float] = "own",
    render_mode: str | None = None,
    num_envs: int | None = None,
) -> SemiMarkovEnv | SemiMarkovVectorEnv:
    """An environment as a Gymnasium environment, or as a vector environment of `num_envs` instances."""
    if num_envs is None:
        return SemiMarkovEnv(env, interval, render_mode)
    if render_mode is not None:
        raise KairodeError(f"a vector environment of '{env.task.spec.name}' is not drawn: leave out render_mode.")
    return SemiMarkovVectorEnv(env, num_envs, interval)

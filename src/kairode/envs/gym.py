"""The environments as Gymnasium knows them: `gymnasium.make("kairode/HIV-v0")`, and many at once by `make_vec`."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from kairode.envs.core import Discrete, Spec
from kairode.envs.fleet import Fleet, HostFleet, Step, launch
from kairode.envs.host import HostEnvironment
from kairode.envs.schedule import as_schedule, check_intervals
from kairode.envs.zoo import make
from kairode.errors import KairodeError

AGENT = "agent"


def observation_space(spec: Spec) -> spaces.Box:
    """The observed variables with their bounds."""
    low, high = np.array([(v.low, v.high) for v in spec.observations], np.float32).T
    return spaces.Box(low, high, dtype=np.float32)


def action_space(spec: Spec, interval: Any) -> spaces.Space:
    """The actions; where the agent chooses the interval, a dictionary of action and interval."""
    actions = spec.actions
    action: spaces.Space
    if isinstance(actions, Discrete):
        action = spaces.Discrete(actions.n)
    else:
        action = spaces.Box(actions.low, actions.high, (actions.n,), np.float32)
    return action if interval != AGENT else spaces.Dict({"action": action, "interval": interval_space(spec)})


def interval_space(spec: Spec) -> spaces.Space:
    """Whole numbers where the environment's intervals are; else any time in its range."""
    low, high, step = spec.intervals.low, spec.intervals.high, spec.intervals.step
    if step == 1:
        return spaces.Discrete(int(high - low) + 1, start=int(low))
    return spaces.Box(low, high, (), np.float32)


def check_action(spec: Spec, actions: Any, size: int) -> np.ndarray:
    """The actions of all instances as an array, or an error that names what is wrong with them."""
    kind = spec.actions
    values = np.asarray(actions)
    if isinstance(kind, Discrete):
        known = ", ".join(f"{i} {name}" for i, name in enumerate(kind.names))
        if values.shape != (size,) or not np.issubdtype(values.dtype, np.integer):
            raise KairodeError(f"an action of '{spec.name}' is one whole number ({known}), got {actions!r}.")
        outside = (values < 0) | (values >= kind.n)
        if outside.any():
            raise KairodeError(f"action {values[outside][0]} is outside the actions of '{spec.name}': {known}.")
        return values.astype(np.int32)
    if values.shape != (size, kind.n):
        raise KairodeError(
            f"an action of '{spec.name}' has {kind.n} numbers ({', '.join(kind.names)}), got {actions!r}."
        )
    if not np.all((values >= kind.low) & (values <= kind.high)):
        raise KairodeError(f"an action of '{spec.name}' lies within [{kind.low:g}, {kind.high:g}], got {actions!r}.")
    return values.astype(np.float32)


class _Instances:
    """What the single and the vector environment share: a fleet, its spaces, the checks on what comes in."""

    def __init__(self, name: str, size: int, interval: Any, render_mode: str | None, fields: dict[str, Any]) -> None:
        env = make(name, **fields)
        self.env, self.spec, self.size = env, env.task.spec, size
        self.chosen_by_agent = isinstance(interval, str) and interval == AGENT
        schedule = None if self.chosen_by_agent else as_schedule(interval, self.spec)
        options = {"render_mode": render_mode} if isinstance(env, HostEnvironment) else {}
        self.fleet: Fleet = launch(env, size, schedule, **options)

    def step(self, actions: Any, anew: np.ndarray | None = None) -> Step:
        """Check and step."""
        taus = None
        if self.chosen_by_agent:
            if not isinstance(actions, dict) or set(actions) != {"action", "interval"}:
                raise KairodeError(
                    f"'{self.spec.name}' was made with interval='agent': give {{'action': ..., 'interval': ...}}."
                )
            actions, taus = (
                actions["action"],
                np.reshape(np.asarray(actions["interval"], np.float64), self.size),
            )
            check_intervals(taus, self.spec)
        return self.fleet.step(check_action(self.spec, actions, self.size), taus, anew)


class SemiMarkovEnv(gymnasium.Env):
    """One instance. `info["dt"]` and `info["time"]` tell the time that passed and the time it is.

    Args:
        name: the environment, as `kairode.make` knows it (the Gymnasium ids set it).
        interval: "own" for the environment's schedule, a number to fix it, a list to be taken in order, or
            "agent" to let the agent choose: an action is then `{"action": ..., "interval": ...}`.
        render_mode: None or "rgb_array".
        fields: any field of the environment, such as `horizon=500`.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012  Gymnasium's way

    def __init__(
        self,
        name: str,
        interval: str | float | Sequence[float] = "own",
        render_mode: str | None = None,
        **fields: Any,
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise KairodeError(f"render_mode of '{name}' is None or 'rgb_array', got {render_mode!r}.")
        self.render_mode = render_mode
        self.instances = _Instances(name, 1, interval, render_mode, fields)
        self.observation_space = observation_space(self.instances.spec)
        self.action_space = action_space(self.instances.spec, interval)
        self.history: list[dict[str, Any]] = []
        """What `render` draws from: time, state and the action that led there."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Start an episode."""
        super().reset(seed=seed)
        obs = self.instances.fleet.reset([seed])
        self.history = []
        self._remember(0.0, None)
        return obs[0], {"dt": 0.0, "time": 0.0}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Hold the action for the interval."""
        one = action if isinstance(action, dict) else {"action": action}
        batched = {key: np.asarray(value)[None] for key, value in one.items()}
        step = self.instances.step(batched if isinstance(action, dict) else batched["action"])
        self._remember(float(step.time[0]), batched["action"][0])
        info = {"dt": _plain(step.tau[0]), "time": _plain(step.time[0])}
        return step.obs[0], float(step.reward[0]), bool(step.terminated[0]), bool(step.truncated[0]), info

    def render(self) -> Any:
        """The present state as an RGB array, if made with `render_mode="rgb_array"`."""
        if self.render_mode is None:
            return None
        from kairode.envs.render import picture

        fleet = self.instances.fleet
        if isinstance(fleet, HostFleet):
            return fleet.simulations[0].render()
        return picture(self.instances.env, self.history)

    def close(self) -> None:
        """Give back what the instance holds."""
        self.instances.fleet.close()

    def _remember(self, time: float, action: Any) -> None:
        if self.render_mode is not None:
            states = self.instances.fleet.states()
            state = None if states is None else states[0]
            self.history.append({"time": time, "state": state, "action": action})


class SemiMarkovVectorEnv(VectorEnv):
    """Many instances, one compiled call a step. An instance that ended starts anew at the next step."""

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012  Gymnasium's way

    def __init__(
        self, name: str, num_envs: int = 1, interval: str | float | Sequence[float] = "own", **fields: Any
    ) -> None:
        self.num_envs = num_envs
        self.instances = _Instances(name, num_envs, interval, None, fields)
        self.single_observation_space = observation_space(self.instances.spec)
        self.single_action_space = action_space(self.instances.spec, interval)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.ended = np.zeros(num_envs, bool)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        """Start all episodes; from one seed the instances take that, the next, and so on."""
        if seed is None or isinstance(seed, int):
            super().reset(seed=seed)
        seeds = (
            [None if seed is None else seed + i for i in range(self.num_envs)]
            if not isinstance(seed, Sequence)
            else seed
        )
        obs = self.instances.fleet.reset(seeds)
        self.ended[:] = False
        zero = np.zeros(self.num_envs)
        return obs, {"dt": zero, "time": zero.copy()}

    def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        """Hold an action in each instance; those that ended before start anew instead."""
        step = self.instances.step(actions, self.ended)
        self.ended = step.terminated | step.truncated
        info = {"dt": _plain(step.tau), "time": _plain(step.time)}
        return step.obs, step.reward.astype(np.float64), step.terminated, step.truncated, info

    def close_extras(self, **kwargs: Any) -> None:
        """Give back what the instances hold."""
        self.instances.fleet.close()


def _plain(value: Any) -> Any:
    """A float32 time as the decimal number it stands for: 0.2, not 0.20000000298."""
    rounded = np.round(np.asarray(value, np.float64), 5)
    return float(rounded) if rounded.ndim == 0 else rounded

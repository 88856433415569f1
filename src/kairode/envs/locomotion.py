"""Swimmer, hopper and half-cheetah: MuJoCo through Gymnasium, with actions repeated for a varying number of frames.

The interval depends on the velocities (the paper's appendix on MuJoCo). Observations are Gymnasium's plus the root
position x, so that the reward is a function of observations.
"""

import contextlib
import dataclasses
import functools
import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import equinox as eqx
import numpy as np

from kairode.envs.core import Continuous, Intervals, Spec, Task, Variable, settings_of
from kairode.envs.host import HostEnvironment, Simulation, SimulationGroup
from kairode.errors import KairodeError


@dataclasses.dataclass(frozen=True)
class Robot:
    """Properties of a robot."""

    gym_id: str
    plane: tuple[str, str]
    """Coordinates of the root in which it moves."""
    controls: tuple[str, ...]
    hidden: int
    """Number of the first positions that Gymnasium's observation leaves out."""
    frame: float
    """Seconds per physics frame."""
    control_cost: float
    alive_bonus: float = 0.0
    velocity_limit: float = math.inf
    """Velocities are observed clipped to this."""

    @property
    def joints(self) -> tuple[str, ...]:
        """Names of qpos."""
        return (*self.plane, "angle", *self.controls)


LIMBS = ("back thigh", "back shin", "back foot", "front thigh", "front shin", "front foot")
ROBOTS = {
    "swimmer": Robot("Swimmer-v5", ("x", "y"), ("joint1", "joint2"), 2, frame=0.01, control_cost=1e-4),
    "hopper": Robot(
        *("Hopper-v5", ("x", "z"), ("thigh", "leg", "foot"), 1),
        frame=0.002,
        control_cost=1e-3,
        alive_bonus=1.0,
        velocity_limit=10.0,
    ),
    "half-cheetah": Robot("HalfCheetah-v5", ("x", "z"), LIMBS, 1, frame=0.01, control_cost=0.1),
}


def column(obs: Any, i: int) -> Any:
    """One variable of an observation or of several; of one it is a NumPy scalar, much faster than an array `[..., i]`
    without axes."""
    return obs[i] if obs.ndim == 1 else obs[..., i]


def fallen(robot: Robot, obs: Any) -> Any:
    """Whether a robot is low, tilted or out of bounds, by Gymnasium's criteria for the hopper.

    Velocities are observed clipped to 10, so Gymnasium's limit of 100 rad/s cannot be checked.
    """
    height = column(obs, 0)
    if not robot.alive_bonus:
        return height != height
    angle, state = column(obs, 1), obs[..., 1:-1]
    return ~((height > 0.7) & (abs(angle) < 0.2) & (abs(state) < 100).all(-1))


class LocomotionTask(Task):
    """Forward velocity minus control cost, plus an alive bonus for the hopper.

    Plain operators on the last axis, so that it works for NumPy on the host (float64, all instances in one call) and
    for JAX in planners.
    """

    batched: ClassVar[bool] = True
    spec: Spec = eqx.field(static=True)
    robot: Robot = eqx.field(static=True)
    time_scale: float
    """Time units of the reward per frame: x' - x is divided by tau times this."""

    def reward(self, obs: Any, action: Any, next_obs: Any, tau: Any) -> Any:
        """R = (x' - x) / (tau in seconds) - cost |a|^2 + bonus [alive]."""
        robot = self.robot
        velocity = (column(next_obs, -1) - column(obs, -1)) / (tau * self.time_scale)
        reward = velocity - robot.control_cost * (action * action).sum(-1)
        return reward + robot.alive_bonus * (1.0 - fallen(robot, next_obs)) if robot.alive_bonus else reward

    def terminal(self, obs: Any) -> Any:
        """The hopper's episode terminates when it falls; the others' never do."""
        return fallen(self.robot, obs)


@dataclasses.dataclass(frozen=True)
class Locomotion(HostEnvironment):
    """Move a robot forward; times are counted in physics frames (hopper: 0.002 s, the others: 0.01 s)."""

    name: str
    intervals: tuple[int, int] | None = None
    """Minimum and maximum frames an action is held, c and d; None for 1 to 7 (half-cheetah: 1 to 9)."""
    timing: str = "all"
    """Velocities whose norm sets the interval: "all" of qvel (published run), or only the "angular" ones."""
    reward_time: str = "seconds"
    """Time unit of the forward velocity: "seconds" as in Gymnasium, or "frames" as in the paper's formula."""
    horizon: float = math.inf
    """Frames after which an episode is truncated."""
    max_decisions: int | None = 1000
    """Decisions after which an episode is truncated."""
    discount: float = 0.99
    """Gamma, per frame."""

    def __post_init__(self) -> None:
        if any(tau != round(tau) for tau in self.repeats):
            raise KairodeError(f"intervals of '{self.name}' must be whole frames, got {self.intervals}.")
        for field, known in (("timing", ("all", "angular")), ("reward_time", ("seconds", "frames"))):
            if getattr(self, field) not in known:
                raise KairodeError(f"{field} of '{self.name}' must be one of {known}, got {getattr(self, field)!r}.")

    @property
    def robot(self) -> Robot:
        return ROBOTS[self.name]

    @property
    def repeats(self) -> tuple[int, int]:
        return self.intervals or (1, 9 if self.name == "half-cheetah" else 7)

    @property
    def task(self) -> LocomotionTask:
        robot = self.robot
        angles = [name not in ("x", "y", "z") for name in robot.joints]
        positions = [Variable(n, "rad" if a else "m") for n, a in zip(robot.joints, angles, strict=True)]
        velocities = [Variable(f"d{n}", "rad/s" if a else "m/s") for n, a in zip(robot.joints, angles, strict=True)]
        spec = Spec(
            name=self.name,
            observations=(*positions[robot.hidden :], *velocities, dataclasses.replace(positions[0], relative=True)),
            actions=Continuous(robot.controls, (-1.0,) * len(robot.controls), (1.0,) * len(robot.controls)),
            intervals=Intervals(*self.repeats, step=1, divisible=False),
            time_unit="frame",
            horizon=self.horizon,
            max_decisions=self.max_decisions,
            discount=self.discount,
            settings=settings_of(self),
        )
        return LocomotionTask(spec, robot, robot.frame if self.reward_time == "seconds" else 1.0)

    def open(self, **options: Any) -> "LocomotionSimulation":
        return LocomotionSimulation(self, **options)

    def group(self, simulations: Sequence["LocomotionSimulation"]) -> "LocomotionGroup | None":
        """MuJoCo's batch, if the installed MuJoCo has one (3.17 does)."""
        try:
            from mujoco.batch import Batch
        except ImportError:
            return None
        return LocomotionGroup(simulations, Batch)


def observe(observed: tuple[np.ndarray, ...], limit: float) -> np.ndarray:
    """Gymnasium's observation (positions without the hidden ones, velocities) and the root position x, of one instance
    or several."""
    if limit < math.inf:  # np.clip takes three times as long on a few numbers
        positions, velocities, place = observed
        observed = positions, np.minimum(np.maximum(velocities, -limit), limit), place
    return np.concatenate(observed, -1)


def repeat_rule(velocity: np.ndarray, fewest: int, most: int) -> int:
    """tau = round((d - c) / 2 cos(20 pi |v|) + (c + d) / 2)."""
    phase = 20 * math.pi * math.sqrt(velocity.dot(velocity))
    return round((most - fewest) / 2 * math.cos(phase) + (fewest + most) / 2)


def whole_frames(env: Locomotion, tau: float) -> int:
    """An interval as a number of frames; physics cannot stop between two."""
    frames = round(tau) if 0.5 < tau < math.inf else 0
    if not frames or abs(tau - frames) > 1e-3:
        raise KairodeError(f"an interval of '{env.name}' must be an integer number of frames, got {tau:g}.")
    return frames


@contextlib.contextmanager
def quiet_loading(name: str) -> Iterator[None]:
    """Suppress MuJoCo's warnings about a deprecated attribute in Gymnasium's model files."""
    try:
        import mujoco
    except ImportError as error:
        raise KairodeError(
            f"the environment '{name}' needs MuJoCo, which is not installed: pip install 'kairode[mujoco]'."
        ) from error

    def warn(message: str) -> None:
        if "settotalmass" not in message:
            warnings.warn(message, stacklevel=2)

    mujoco.set_mju_user_warning(warn)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(None)


class LocomotionSimulation(Simulation):
    """A MuJoCo simulation: model, reset and pictures by Gymnasium, frames by MuJoCo itself.

    A frame takes microseconds, so what a step needs is looked up once. Unlike Gymnasium's, a step leaves out the forces
    (`mj_rnePostConstraint`), which neither the observation nor the next frame depends on.
    """

    def __init__(self, env: Locomotion, **options: Any) -> None:
        import gymnasium

        self.env, self.repeats, self.limit = env, env.repeats, env.robot.velocity_limit
        with quiet_loading(env.name):
            from mujoco import mj_step

            wrapped = gymnasium.make(env.robot.gym_id, frame_skip=1, disable_env_checker=True, **options)
        gym: Any = wrapped.unwrapped
        self.gym, data = gym, gym.data
        self.step = functools.partial(mj_step, gym.model, data)
        # Views of MuJoCo's memory
        self.ctrl, qpos, qvel = data.ctrl, data.qpos, data.qvel
        self.shape = self.ctrl.shape
        self.observed = qpos[env.robot.hidden :], qvel, qpos[:1]
        self.timed = qvel if env.timing == "all" else qvel[2:]

    def observation(self) -> np.ndarray:
        return observe(self.observed, self.limit)

    def reset(self, seed: int | None) -> np.ndarray:
        self.gym.reset(seed=seed)
        return self.observation()

    def interval(self, action: np.ndarray) -> float:
        return float(repeat_rule(self.timed, *self.repeats))

    def transition(self, action: np.ndarray, tau: float) -> np.ndarray:
        frames = whole_frames(self.env, tau)
        if action.shape != self.shape:
            raise KairodeError(f"an action of '{self.env.name}' must have shape {self.shape}, got {action.shape}.")
        self.ctrl[:] = action
        self.step(frames)
        return self.observation()

    def snapshot(self) -> np.ndarray:
        """The full integration state, including warm starts of the solver."""
        import mujoco

        kind = mujoco.mjtState.mjSTATE_INTEGRATION
        state = np.empty(mujoco.mj_stateSize(self.gym.model, kind))
        mujoco.mj_getState(self.gym.model, self.gym.data, state, kind)
        return state

    def restore(self, state: np.ndarray) -> np.ndarray:
        """Continues bit for bit the same."""
        import mujoco

        mujoco.mj_setState(self.gym.model, self.gym.data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
        mujoco.mj_forward(self.gym.model, self.gym.data)
        mujoco.mj_setState(self.gym.model, self.gym.data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
        return self.observation()

    def render(self) -> np.ndarray:
        """RGB image by MuJoCo; needs an OpenGL library."""
        try:
            return self.gym.render()
        except Exception as error:  # the type depends on the missing library
            raise KairodeError(
                f"MuJoCo cannot render '{self.env.name}' ({error}). Without a display, install EGL or OSMesa and set "
                "MUJOCO_GL=egl or MUJOCO_GL=osmesa."
            ) from error

    def pose(self) -> np.ndarray:
        """The limbs from the side (from above for the swimmer): x1, y1, x2, y2, radius."""
        import mujoco

        model, data = self.gym.model, self.gym.data
        mujoco.mj_kinematics(model, data)
        limbs = np.flatnonzero(model.geom_type == mujoco.mjtGeom.mjGEOM_CAPSULE)
        across = [0, 1] if self.env.name == "swimmer" else [0, 2]
        axis = data.geom_xmat[limbs].reshape(-1, 3, 3)[:, across, 2] * model.geom_size[limbs, 1][:, None]
        middle = data.geom_xpos[limbs][:, across]
        return np.concatenate([middle - axis, middle + axis, model.geom_size[limbs, :1]], axis=1)

    def close(self) -> None:
        self.gym.close()


class LocomotionGroup(SimulationGroup):
    """Robots in a `mujoco.batch.Batch`, which continues each from its whole integration state, warm start included, so
    that frames are bit for bit those of the simulations alone.

    (`mujoco.rollout` does not return the warm start, so a robot could not continue exactly after an interval.)
    """

    def __init__(self, simulations: Sequence[LocomotionSimulation], batch: Any) -> None:
        self.simulations, self.env = simulations, simulations[0].env
        self.repeats, self.limit = self.env.repeats, self.env.robot.velocity_limit
        self.batch = batch(simulations[0].gym.model, len(simulations), nthread=1)
        # Views of the batch's states
        self.ctrl, qpos, qvel = (self.batch.bind(name) for name in ("ctrl", "qpos", "qvel"))
        self.observed = qpos[:, self.env.robot.hidden :], qvel, qpos[:, :1]
        self.timed = qvel if self.env.timing == "all" else qvel[:, 2:]

    def load(self, index: int) -> None:
        self.batch.state[index] = self.simulations[index].snapshot()

    def intervals(self, actions: np.ndarray) -> list[float]:
        return [float(repeat_rule(velocity, *self.repeats)) for velocity in self.timed]

    def transition(self, actions: np.ndarray, taus: np.ndarray, going: np.ndarray) -> np.ndarray:
        """One call for all robots with the same number of frames."""
        together: dict[int, list[int]] = {}
        for i in np.flatnonzero(going).tolist():
            together.setdefault(whole_frames(self.env, float(taus[i])), []).append(i)
        self.ctrl[going] = actions[going]
        for frames, instances in together.items():
            self.batch.step(np.array(instances, np.int32), nstep=frames)
        return observe(self.observed, self.limit)

    def snapshot(self, index: int) -> np.ndarray:
        return self.batch.state[index].copy()

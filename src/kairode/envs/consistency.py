"""Checks of an environment: what its methods return, and whether states between decisions agree with its transitions.

Accrued rewards and schedules chosen by the true dynamics follow an interval step by step. That is the same system only
if two intervals of tau under one action equal one of 2 tau: a pill that `transition` gives at the start of every
interval would be given again at every step.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from kairode.envs.core import Discrete, Environment, Spec
from kairode.errors import KairodeError, unknown

TRIALS = 16
"""Number of states and actions tried."""
DRAWS = 128
"""Noise samples for each of them, if the system is stochastic."""
TOLERANCE = 0.02
"""Relative to a variable's change: integration with other substeps differs by less, a second dose by much more."""
ERRORS = 6.0
"""Standard errors by which two means may differ."""


def check_outputs(env: Environment) -> None:
    """Raise if a method of the environment or its task returns another shape than it should; nothing is computed."""
    try:
        _outputs_once(env)
    except TypeError:  # a field with an array is not hashable
        _outputs(env)


def _outputs(env: Environment) -> None:
    spec, key = env.task.spec, jax.eval_shape(lambda: jax.random.key(0))
    real = jnp.result_type(float)  # float64 if JAX's double precision is on
    obs, time = (jax.ShapeDtypeStruct(shape, real) for shape in ((len(spec.observations),), ()))
    discrete = isinstance(spec.actions, Discrete)
    action = jax.ShapeDtypeStruct(() if discrete else (spec.actions.n,), jnp.int32 if discrete else real)

    def shaped(owner: Any, method: str, wanted: tuple[int, ...] | None, *args: Any, **keys: Any) -> Any:
        name = f"{type(owner).__name__}.{method}"
        try:
            found = jax.eval_shape(getattr(owner, method), *args, **keys)
        except jax.errors.JAXTypeError as error:
            raise KairodeError(
                f"{name} cannot be compiled by JAX: use jnp.where instead of if, and jax.numpy instead of NumPy."
            ) from error
        if wanted is not None and getattr(found, "shape", None) != wanted:
            what = f"an array of shape {wanted}" if wanted else "a scalar"
            raise KairodeError(f"{name} must return {what}, got {_described(found)}.")
        return found

    state = shaped(env, "reset", None, key=key)
    shaped(env, "observe", obs.shape, state)
    shaped(env, "interval", (), state, action, key=key)
    after = shaped(env, "transition", None, state, action, time, key=key)
    if jax.tree.map(_described, after) != jax.tree.map(_described, state):
        raise KairodeError(
            f"{type(env).__name__}.transition must return a state like that of reset, {_described(state)}, got "
            f"{_described(after)}."
        )
    shaped(env.task, "reward", (), obs, action, obs, time)
    shaped(env.task, "terminal", (), obs)


def _described(found: Any) -> str:
    """Shapes of arrays as text: float32[3]."""
    return str(jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", found)).replace("'", "")


_outputs_once = functools.lru_cache(maxsize=256)(_outputs)


def check_course(env: Environment) -> None:
    """Raise if, with held actions, two intervals of tau do not equal one of 2 tau.

    Checked once per environment, in a few states near its start. With noise the means over many samples are compared,
    so only differences beyond their standard errors are found. Not checked if actions act once or the environment
    overrides `course`.
    """
    if env.action_mode not in ("held", "once"):
        raise unknown("action_mode", str(env.action_mode), ("held", "once"), where=f"of '{env.task.spec.name}'")
    if env.action_mode == "once" or type(env).course is not Environment.course:
        return
    try:
        _checked_once(env)
    except TypeError:  # a field with an array is not hashable
        _checked(env)


def _checked(env: Environment) -> None:
    spec = env.task.spec
    tau = _half(spec)
    start, one, two = _observed(env, tau, 2)
    if not (np.array_equal(one[:, 0], one[:, 1]) and np.array_equal(two[:, 0], two[:, 1])):
        start, one, two = _observed(env, tau, DRAWS)
    apart = np.abs(one.mean(1) - two.mean(1))
    error = np.sqrt((one.var(1) + two.var(1)) / one.shape[1])
    moved = np.abs(one - start).max((0, 1))
    rounding = 1e-4 * np.abs(one).max((0, 1))
    beyond = apart - (TOLERANCE * moved + rounding + ERRORS * error)
    trial, variable = np.unravel_index(np.argmax(beyond), beyond.shape)
    if beyond[trial, variable] > 0:
        after_one, after_two = (x[trial, :, variable].mean() for x in (one, two))
        mean = "on average " if error[trial, variable] else ""
        raise KairodeError(
            f"in '{spec.name}' an interval of {2 * tau:g} {spec.time_unit}s does not equal two of {tau:g} under the "
            f"same action: {spec.observations[variable].name} is {mean}{after_one:.4g} after one and {after_two:.4g} "
            "after two, so rewards between decisions would be those of another system. Set action_mode = "
            f'"once" in {type(env).__name__} if an action acts once, at the decision (a dose). If it is held, '
            "transition(state, action, 2 tau) must equal two transitions of tau."
        )


_checked_once = functools.lru_cache(maxsize=256)(_checked)


def _half(spec: Spec) -> float:
    """Half of the longest interval, rounded down to finest time steps if it has at least two."""
    steps = int(spec.intervals.high / spec.finest + 1e-6)
    return round(spec.finest * max(steps // 2, 1), 9) if steps else spec.intervals.high / 2


def _observed(env: Environment, tau: float, draws: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Observations [trials, draws, obs] at the start, after one interval of 2 tau, and after two of tau."""
    keys = jax.random.split(jax.random.key(0), 6)
    first, action = (jnp.repeat(actions, draws, axis=0) for actions in _actions(env.task.spec, keys[0]))
    count = TRIALS * draws
    # Compiled once for all intervals. The draws of a trial start in the same state.
    move = jax.jit(jax.vmap(lambda state, action, tau, key: env.transition(state, action, tau, key=key)))
    short = jnp.full(count, tau, jnp.float32)
    same = [jnp.repeat(jax.random.split(key, TRIALS), draws) for key in keys[1:3]]
    state = move(jax.vmap(lambda key: env.reset(key=key))(same[0]), first, short, same[1])
    one_key, half_key, rest_key = (jax.random.split(key, count) for key in keys[3:])
    one = move(state, action, 2 * short, one_key)
    two = move(move(state, action, short, half_key), action, short, rest_key)
    seen = (np.asarray(jax.vmap(env.observe)(x), np.float64) for x in (state, one, two))
    start, one, two = (x.reshape(TRIALS, draws, -1) for x in seen)
    return start, one, two


def _actions(spec: Spec, key: Key[Array, ""]) -> tuple[Array, Array]:
    """First and second action of each trial; the second ones cycle through all discrete actions."""
    if isinstance(spec.actions, Discrete):
        return jax.random.randint(key, (TRIALS,), 0, spec.actions.n), jnp.arange(TRIALS) % spec.actions.n
    low, high = jnp.array(spec.actions.low), jnp.array(spec.actions.high)
    first, second = jax.random.uniform(key, (2, TRIALS, spec.actions.n), minval=low, maxval=high)
    return first, second

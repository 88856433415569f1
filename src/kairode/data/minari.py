"""Experience as Minari datasets, the format of offline reinforcement learning around Gymnasium, in both directions.

Minari has no place for intervals: they are in `infos`, as `dt` (time since the last observation, 0 at the first) and
`time`, which is where our Gymnasium environments report them. The spec is in the dataset's metadata under "kairode".
"""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from kairode.data.describe import spec_from_dict, spec_to_dict
from kairode.data.trajectory import Trajectory
from kairode.envs.core import Continuous, Discrete, Intervals, Spec, Variable, decimal
from kairode.errors import MALFORMED, KairodeError

KEY = "kairode"
TYPES = ("observation", "action", "interval", "reward")
"""Arrays whose types are stored."""


def to_minari(data: Trajectory, dataset_id: str, **metadata: Any) -> Any:
    """Write episodes as a local Minari dataset and return it; nothing is lost (`from_minari` reads it back).

    Minari stores datasets in the folder of its environment variable MINARI_DATASETS_PATH.

    Args:
        data: episodes. Missing observations stay NaN.
        dataset_id: name of the new dataset: "kairode/hiv/random-v0".
        metadata: other arguments of `minari.create_dataset_from_buffers`: `author`, `description`, `algorithm_name`,
            `env` (a Gymnasium id, so that Minari can make the environment again), `data_format` ("hdf5" or "arrow").
    """
    minari = _minari()
    if np.ndim(data.length) == 0:
        data = data[None]
    lengths, spec = np.asarray(data.length), data.spec
    if not len(lengths) or lengths.min() < 1:
        raise KairodeError(f"'{dataset_id}': every episode of a Minari dataset must have a decision.")
    observation, action, interval, reward = (np.asarray(getattr(data, name)) for name in TYPES)
    seen, done = _spaces(spec, observation.dtype, action.dtype)
    time, ends = data.time, {name: np.asarray(getattr(data, name)) for name in ("terminated", "truncated")}
    episodes = []
    for i, length in enumerate(lengths.tolist()):
        last = np.arange(length) == length - 1
        episodes.append(
            minari.data_collector.EpisodeBuffer(
                id=i,
                observations=observation[i, : length + 1],
                actions=action[i, :length],
                rewards=reward[i, :length],
                terminations=last & ends["terminated"][i],
                truncations=last & ends["truncated"][i],
                # Lists: Minari's Arrow storage writes arrays of one axis, but cannot read them.
                infos={"dt": [0.0, *decimal(interval[i, :length]).tolist()], "time": time[i, : length + 1].tolist()},
            )
        )
    types = {name: str(np.asarray(getattr(data, name)).dtype) for name in TYPES}
    try:
        with warnings.catch_warnings():  # of descriptions that are recommended
            warnings.filterwarnings("ignore", message=".*is set to None|env_spec is None")
            dataset = minari.create_dataset_from_buffers(
                dataset_id, episodes, **{"observation_space": seen, "action_space": done, **metadata}
            )
    except (TypeError, ValueError, ImportError) as error:
        raise KairodeError(f"the Minari dataset '{dataset_id}' cannot be written: {_first_line(error)}") from error
    dataset.storage.update_metadata({KEY: json.dumps({"spec": spec_to_dict(spec), "types": types})})
    return dataset


def from_minari(dataset: Any, spec: Spec | None = None, download: bool = False) -> Trajectory:
    """Read episodes from a Minari dataset.

    A dataset of `to_minari` comes back as it was. In others, intervals are `infos["dt"]`, differences of
    `infos["time"]`, or one step where there is neither; observations must be vectors (a flat Box), and actions integers
    (Discrete) or vectors. An episode with neither end is truncated: its record ended.

    Args:
        dataset: a Minari dataset, or the id of one.
        spec: names, units, horizon and discount of a dataset of others, such as `env.task.spec`. By default, the
            variables are called obs0, obs1 .., and the discount is 1.
        download: fetch a dataset that is not there yet.
    """
    minari = _minari()
    if isinstance(dataset, str | Path):
        dataset = _loaded(minari, str(dataset), download)
    if not isinstance(dataset, minari.MinariDataset):
        raise KairodeError(f"{dataset!r} is not a Minari dataset: pass one, or the id of one.")
    name, described = dataset.spec.dataset_id, dataset.storage.metadata.get(KEY)
    types: dict[str, str] = {}
    if described is not None:
        try:
            described = json.loads(described)
            own, types = spec_from_dict(described["spec"]), described["types"]
        except (KairodeError, *MALFORMED) as error:
            raise KairodeError(f"Minari dataset '{name}': its metadata under '{KEY}' is invalid: {error}.") from error
        spec = spec or own
    episodes = list(dataset.iterate_episodes())
    if not episodes:
        raise KairodeError(f"Minari dataset '{name}' has no episodes.")
    if spec is None:
        spec = _inferred(name, dataset, episodes)
    start = int(getattr(dataset.action_space, "start", 0))
    return _padded(name, spec, episodes, start, types)


def _minari() -> Any:
    try:
        import minari
        import minari.data_collector
    except ImportError as error:
        raise KairodeError("Minari datasets need Minari: pip install 'kairode[minari]'.") from error
    return minari


def _loaded(minari: Any, name: str, download: bool) -> Any:
    try:
        return minari.load_dataset(name, download=download)
    except FileNotFoundError as error:
        raise KairodeError(
            f"there is no Minari dataset '{name}' on this machine: pass download=True to fetch it, or set "
            "MINARI_DATASETS_PATH to the folder that it is in."
        ) from error
    except (ValueError, OSError, ImportError) as error:
        raise KairodeError(f"the Minari dataset '{name}' cannot be read: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _spaces(spec: Spec, seen: np.dtype, done: np.dtype) -> tuple[spaces.Space, spaces.Space]:
    """Spaces of observations and actions, in the types of the data."""
    low, high = np.array([(v.low, v.high) for v in spec.observations], seen).T
    observations = spaces.Box(low, high, dtype=seen.type)
    if isinstance(spec.actions, Discrete):
        return observations, spaces.Discrete(spec.actions.n)
    low, high = np.array(spec.actions.low, done), np.array(spec.actions.high, done)
    return observations, spaces.Box(low, high, dtype=done.type)


def _inferred(name: str, dataset: Any, episodes: list[Any]) -> Spec:
    """Spec of a dataset of others: names from its spaces, ranges from its values."""
    seen, done = dataset.observation_space, dataset.action_space
    if not (isinstance(seen, spaces.Box) and len(seen.shape) == 1):
        raise KairodeError(
            f"Minari dataset '{name}': observations must be vectors, a flat Box, not {seen}. Flatten them, e.g. with "
            "gymnasium.spaces.flatten, into a dataset of your own."
        )
    variables = tuple(
        Variable(f"obs{i}", "as given", float(low), float(high))
        for i, (low, high) in enumerate(zip(seen.low, seen.high, strict=True))
    )
    actions: Discrete | Continuous
    if isinstance(done, spaces.Discrete):
        actions = Discrete(tuple(str(int(done.start) + i) for i in range(int(done.n))))
    elif isinstance(done, spaces.Box) and len(done.shape) == 1:
        taken = np.concatenate([np.asarray(episode.actions) for episode in episodes])
        low = np.where(np.isfinite(done.low), done.low, taken.min(0))
        high = np.where(np.isfinite(done.high), done.high, taken.max(0))
        names = tuple(f"action{i}" for i in range(len(low)))
        actions = Continuous(names, tuple(map(float, low)), tuple(map(float, high)))
    else:
        raise KairodeError(
            f"Minari dataset '{name}': actions must be integers (Discrete) or vectors (a flat Box), not {done}."
        )
    found = np.concatenate([_intervals(name, i, episode) for i, episode in enumerate(episodes)])
    timed = any("dt" in (episode.infos or {}) or "time" in (episode.infos or {}) for episode in episodes)
    whole = bool((found == np.round(found)).all())
    made_by = dataset.spec.env_spec
    return Spec(
        name=name,
        observations=variables,
        actions=actions,
        intervals=Intervals(float(found.min()), float(found.max()), step=1.0 if whole else 0.0),
        time_unit="time unit" if timed else "step",
        max_decisions=None if made_by is None else made_by.max_episode_steps,
    )


def _intervals(name: str, i: int, episode: Any) -> np.ndarray:
    """Intervals of an episode: reported ones, or one step each."""
    infos, steps = episode.infos or {}, len(episode.rewards)
    if "dt" in infos:
        found = np.asarray(infos["dt"], np.float64).reshape(-1)[-steps:]  # of the reset too, or of the steps alone
    elif "time" in infos and np.size(infos["time"]) == steps + 1:
        found = np.diff(np.asarray(infos["time"], np.float64).reshape(-1))
    else:
        found = np.ones(steps)
    if found.shape != (steps,) or not ((found > 0) & np.isfinite(found)).all():
        raise KairodeError(
            f"Minari dataset '{name}', episode {i}: infos['dt'] must hold a positive, finite time for each of the "
            f"{steps} steps."
        )
    return found


def _padded(name: str, spec: Spec, episodes: list[Any], start: int, types: dict[str, str]) -> Trajectory:
    """Episodes as one trajectory, padded to the longest."""
    length = np.array([len(episode.rewards) for episode in episodes], np.int32)
    shape, discrete = (len(length), int(length.max())), isinstance(spec.actions, Discrete)
    kinds = {"observation": "float32", "action": "int32" if discrete else "float32", "interval": "float32"}
    kinds = {**kinds, "reward": "float32", **types}
    observation = np.zeros((shape[0], shape[1] + 1, len(spec.observations)), kinds["observation"])
    action = np.zeros(shape if discrete else (*shape, spec.actions.n), kinds["action"])
    interval, reward = np.zeros(shape, kinds["interval"]), np.zeros(shape, kinds["reward"])
    terminated, truncated = np.zeros(len(length), bool), np.zeros(len(length), bool)
    for i, (episode, steps) in enumerate(zip(episodes, length.tolist(), strict=True)):
        seen, taken = np.asarray(episode.observations), np.asarray(episode.actions)
        if steps < 1 or seen.shape != (steps + 1, len(spec.observations)) or taken.shape != action[i, :steps].shape:
            raise KairodeError(
                f"Minari dataset '{name}', episode {i}: {steps} steps with observations of shape {seen.shape} and "
                f"actions of shape {taken.shape} do not fit the {len(spec.observations)} observations of '{spec.name}'."
            )
        taken = taken - start if discrete else taken
        if discrete and ((taken < 0) | (taken >= spec.actions.n)).any():
            raise KairodeError(f"Minari dataset '{name}', episode {i}: an action is not one of the {spec.actions.n}.")
        observation[i, : steps + 1], observation[i, steps + 1 :] = seen, seen[-1]
        action[i, :steps], reward[i, :steps] = taken, episode.rewards
        interval[i, :steps] = _intervals(name, i, episode)
        terminated[i], truncated[i] = episode.terminations[-1], episode.truncations[-1]
    if not types:  # of others: exactly one of them
        truncated = ~terminated
    return Trajectory(spec, observation, action, interval, reward, length, terminated, truncated)

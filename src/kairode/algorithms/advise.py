"""`kairode.Advisor`: what to do now and when to look next, for one episode or many at once."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from kairode.algorithms import advice as words
from kairode.algorithms.advice import Advice, ManyAdvice, PredictedCourse
from kairode.algorithms.advisor_files import save_advisor
from kairode.algorithms.setup_advisor import choose_schedule, members_of, plain_policy
from kairode.algorithms.visits import Visits, encode_named_action
from kairode.data.trajectory import Trajectory
from kairode.envs.core import Discrete, Task
from kairode.errors import KairodeError
from kairode.models.dynamics import DynamicsModel
from kairode.models.predict import check_same
from kairode.planning.histories import Histories, Outlook, Outlooks, current, padded_histories, size_to_compile
from kairode.planning.model_env import ensemble
from kairode.planning.reference import Reference, check_reference, likeness, make_reference
from kairode.text import listed

POINTS = 20
"""Times of a predicted course."""
CHUNK = 4096
"""Episodes that are advised at once, which bounds the memory."""


class Advisor:
    """Advice from models and a policy: `kairode.Advisor(models, policy, data=data)`.

    Tell it the visits of an episode with `observe`, then ask with `advise`:

        advisor.observe({"V": 5.1, "E": float("nan")}, time=0.0)
        print(advisor.advise())

    Args:
        models: fitted models, an ensemble (`kairode.fit(.., seeds=5)`) or one.
        policy: of `kairode.learn` or `kairode.learn_offline`; with continuous actions an actor
            (`policy.without_planning()`).
        data: what the models were fitted to: advice then says whether a state is unlike them.
        task: of `kairode.learn_task`, to be saved with the advisor.
        schedule: when the next visit is. None: after the interval that the models predict for this state and action,
            as the data were recorded; an interval; or a schedule of `kairode.optimize_schedule`.
        reference: what `data` would give, of an advisor that was loaded.
    """

    def __init__(
        self,
        models: DynamicsModel | Sequence[DynamicsModel],
        policy: Any,
        *,
        data: Trajectory | None = None,
        task: Task | None = None,
        schedule: Any = None,
        reference: Reference | None = None,
    ) -> None:
        self.models = members_of(models)
        self.spec = self.models[0].spec
        self.policy, self.task = plain_policy(policy, self.spec), task
        if data is not None and reference is None:
            check_same(self.spec, data.spec)
            reference = make_reference(self.models, data)
        if reference is not None:
            check_reference(reference, [variable.name for variable in self.spec.observations], self.spec.actions.names)
        self.reference = reference
        self.schedule = choose_schedule(schedule, self.policy, task, self.spec)
        intervals, discrete = self.spec.intervals, isinstance(self.spec.actions, Discrete)
        seen = (intervals.low, np.nan, intervals.high, intervals.high) if reference is None else reference.intervals
        shortest, usual, self._longest, longest = map(float, seen)
        controls = None if reference is None or discrete else jnp.asarray(reference.taken.mean(0), jnp.float32)
        self._outlooks = Outlooks(
            ensemble(self.models, self.spec),
            self.policy,
            self.schedule,
            shortest=jnp.asarray(shortest, jnp.float32),
            longest=jnp.asarray(longest, jnp.float32),
            usual_interval=jnp.asarray(usual, jnp.float32),
            usual_action=controls,
            static=None if reference is None else jnp.asarray(reference.static),
        )
        count = len(self.spec.observations)
        self._usual = np.array(self.models[0].scale.mean) if reference is None else reference.median
        self._static = np.zeros(count, bool) if reference is None else np.asarray(reference.static)
        self.reset()

    def reset(self) -> None:
        """Forget the visits: the next one is the first of another episode."""
        self._visits = Visits(self.spec)
        self._advised: Any = None
        self._assumed: list[float] = []

    def observe(self, values: Mapping[str, Any], time: float, action: Any = None) -> None:
        """Add a visit, which becomes the current one.

        Args:
            values: what was measured, by variable: `{"V": 5.1, "sex": "F"}`. Variables that are left out, None or NaN
                were not measured; what never changes needs to be given once.
            time: of the visit, in the unit of the data; visits are given in their order.
            action: what was done at this visit, a name or an index (of controls a dict or a list); None if it is not
                known yet. If `advise` was called for the visit before this one, and nothing else was recorded, the
                advice is taken to have been followed.
        """
        visits = self._visits
        assumed = bool(visits.actions) and visits.actions[-1] is None and self._advised is not None
        if assumed:
            visits.actions[-1] = self._advised
        try:
            visits.add(values, time, action)
        except KairodeError:
            if assumed:
                visits.actions[-1] = None
            raise
        if assumed:
            self._assumed.append(visits.times[-2])
        self._advised = None

    def record_action(self, action: Any) -> None:
        """What was done at the current visit, if it was not given with it and the advice was not followed."""
        if not self._visits.times:
            raise KairodeError("there is no visit yet: call advisor.observe({..}, time=..) first.")
        self._visits.actions[-1] = encode_named_action(self.spec, action)

    def observe_episode(self, data: Trajectory, start: float = 0.0) -> None:
        """Replace all visits by one episode, whose last observation is the current visit; `start` is its first time."""
        check_same(self.spec, data.spec)
        if np.ndim(data.length) != 0:
            raise KairodeError("pass one episode, such as data[0]; for many, use advisor.advise_many(data).")
        count = int(data.length)
        self.reset()
        self._visits.times = (start + data.time[: count + 1]).tolist()
        self._visits.observations = list(np.asarray(data.observation, np.float64)[: count + 1])
        self._visits.actions = [*np.asarray(data.action)[:count], None]

    def advise(self) -> Advice:
        """The advice at the current visit."""
        visits = self._visits
        if not visits.times:
            raise KairodeError("there is no visit yet: call advisor.observe({..}, time=..) first.")
        data = visits.trajectory()
        histories = padded_histories(data, self._usual, self._static)
        found = self._checked(_on_host(self._outlooks.of(histories)))
        action, tau, here = found.action[0], float(found.interval[0]), np.asarray(current(histories))[0]
        self._advised = action
        name: Any = self._named(action)
        said = self._warnings(data)
        unlike: tuple[bool | None, tuple[str, ...], dict[str, float]] = (None, (), {})
        if self.reference is not None:
            like, apart = likeness(self.reference, here[None], found.action, self.spec.actions), found.disagreement
            texts = words.reasons(
                self.reference, like, float(apart[0]), here, self.spec, f"'{name}'" if isinstance(name, str) else "this"
            )
            numbers = words.measures(self.reference, like, float(apart[0]))
            unlike = (bool(words.out_of_distribution(self.reference, like, apart)[0]), texts, numbers)
        time = visits.times[-1]
        return Advice(
            action=name,
            time=time,
            next_visit=tau,
            next_time=time + tau,
            values=self._values(found.values[0]),
            course=self._course(histories, action, time, tau),
            out_of_distribution=unlike[0],
            reasons=unlike[1],
            likeness=unlike[2],
            warnings=tuple(said),
            time_unit=self.spec.time_unit,
        )

    def advise_many(self, data: Trajectory) -> ManyAdvice:
        """The advice for many episodes, whose last observations are their current visits, in a few compiled calls."""
        if not isinstance(data, Trajectory) or np.ndim(data.length) != 1:
            raise KairodeError(f"data must be episodes, from kairode.load_table or kairode.read, got {data!r}.")
        check_same(self.spec, data.spec)
        order = np.argsort(np.asarray(data.length), kind="stable")  # episodes of one length together
        parts = [order[first : first + CHUNK] for first in range(0, len(order), CHUNK)]
        if not parts:
            raise KairodeError("there are no episodes to advise.")
        outlooks, flagged = [], []
        for part in parts:
            filled = np.resize(part, min(CHUNK, size_to_compile(len(part))))  # so that few programs are compiled
            histories = padded_histories(data[filled], self._usual, self._static)
            whole = self._checked(_on_host(self._outlooks.of(histories)))
            found = Outlook(*(x[: len(part)] for x in whole))
            outlooks.append(found)
            if self.reference is not None:
                seen = np.asarray(current(histories))[: len(part)]
                like = likeness(self.reference, seen, found.action, self.spec.actions)
                flagged.append(words.out_of_distribution(self.reference, like, found.disagreement))
        back = np.argsort(order, kind="stable")
        action, values, interval, apart = (np.concatenate(column)[back] for column in zip(*outlooks, strict=True))
        values = np.where(np.isfinite(values), values, np.nan)
        unlike = np.concatenate(flagged)[back] if flagged else None
        return ManyAdvice(action, interval, values, apart, unlike)

    def save(self, folder: str | Path) -> None:
        """Save models, policy, task, schedule and reference, for `kairode.load_advisor(folder)`."""
        save_advisor(folder, self.models, self.policy, self.task, self.schedule, self.reference)

    def _checked(self, found: Outlook) -> Outlook:
        if np.isnan(found.interval).any():
            raise KairodeError(
                "the models predict no intervals (timer 'none', or observations beyond what they can compute): pass "
                "schedule=.., an interval, to Advisor."
            )
        return found

    def _named(self, action: Any) -> Any:
        names = self.spec.actions.names
        if isinstance(self.spec.actions, Discrete):
            return names[int(action)]
        return {name: float(x) for name, x in zip(names, action, strict=True)}

    def _values(self, values: np.ndarray) -> dict[str, float]:
        names = self.spec.actions.names if isinstance(self.spec.actions, Discrete) else ("advised", "usual")
        found = np.where(np.isfinite(values), values, np.nan)
        return {name: float(x) for name, x in zip(names, found, strict=False)}

    def _course(self, histories: Histories, action: Any, time: float, tau: float) -> PredictedCourse:
        """Evenly spaced times, of which the nearest to that of the next visit is replaced by it."""
        end = max(tau, self._longest)
        taus = end * np.arange(1, POINTS + 1) / POINTS
        taus[np.argmin(np.abs(taus - tau))] = tau
        each = self._outlooks.course(histories, jnp.asarray(action)[None], jnp.asarray(taus[:, None], jnp.float32))
        seen = np.asarray(each, np.float64)[..., 0]
        here = np.asarray(current(histories), np.float64)[0]
        seen = np.where(self._static, here, seen)  # what never changes is known
        quantiles = np.quantile(seen, words.QUANTILES, axis=0)
        names = [variable.name for variable in self.spec.observations]
        return PredictedCourse(
            time + taus,
            {name: seen[..., i].mean(0) for i, name in enumerate(names)},
            {name: quantiles[..., i] for i, name in enumerate(names)},
        )

    def _warnings(self, data: Trajectory) -> list[str]:
        measured = ~np.isnan(data.observation[0])
        measured |= self._static & np.logical_or.accumulate(measured, axis=0)
        said = words.missing_words(self.spec, measured)
        if self._assumed:
            times = ", ".join(f"{time:g}" for time in self._assumed)
            said.append(f"no action was recorded at {times}: the advice is taken to have been followed")
        changed = _changed(np.asarray(data.observation)[0], self._static)
        if changed.any():
            names = [variable.name for variable, one in zip(self.spec.observations, changed, strict=True) if one]
            said.append(f"{listed(names)} never changed within an episode of the data, and changed in this one")
        longest = self.spec.intervals.high if self.reference is None else float(self.reference.intervals[-1])
        far = float(np.max(data.interval, initial=0.0))
        if far > longest * (1 + 1e-5):
            said.append(f"an interval of {far:g} {self.spec.time_unit}s is longer than any of the data, {longest:g}")
        if self.reference is None:
            said.append("there are no data to compare with, so whether this state is unlike them is not known")
        if len(self.models) == 1:
            said.append("there is a single model, so the quantiles of the course say nothing: fit several (seeds=5)")
        return said


def _changed(seen: np.ndarray, static: np.ndarray) -> np.ndarray:
    """Mask of the static variables of which an episode has several values."""
    known = ~np.isnan(seen)
    low, high = np.where(known, seen, np.inf).min(0), np.where(known, seen, -np.inf).max(0)
    return static & (low < high)


def _on_host(found: Outlook) -> Outlook:
    return Outlook(*(np.asarray(x) for x in found))

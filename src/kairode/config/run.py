"""What `kairode run` does with a system of named actions: its config, what belongs to an environment, the command."""

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Any

from kairode.agents.dqn import DQNConfig
from kairode.algorithms.dyna import DynaConfig, dyna_dqn
from kairode.algorithms.learn import imagined_episodes, policy_preset
from kairode.config.presets import preset
from kairode.envs import make
from kairode.envs.core import Environment
from kairode.errors import KairodeError
from kairode.paper.returns import IMAGINED, REAL
from kairode.planning.optimize_schedule import TOLERANCE

LEAST = {
    **dict.fromkeys(("episodes", "each", "iterations", "fits", "imagined"), 1),
    **dict.fromkeys(("rounds", "model_free", "visits", "revisits"), 0),
}


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """What to do."""

    env: str = "hiv"
    """Name of the environment."""
    model: str = "latent-ode"
    """Name of the dynamics model."""
    episodes: int = 1000
    """Real episodes under random actions."""
    rounds: int = 0
    """How often the policy then collects more, models are refitted and it learns on; 0 for never."""
    each: int = 5
    """Real episodes under the policy, in each round."""
    iterations: int = 12_000
    """Of fitting (half as many in later rounds)."""
    fits: int = 3
    """Models. Without rounds, from three on, one judges what the policy learns in the others."""
    imagined: int = 300
    """Episodes of practice in imagination, in each round."""
    model_free: int | None = None
    """Episodes of practice of the model-free policy, on the real system; None for as many as the other has seen."""
    visits: int = 300
    """Episodes of practice in imagination under the schedule that the policy chooses itself; 0 for no such schedule."""
    revisits: int = 0
    """How often real episodes are collected at the visits that the models choose, and the models refitted. After rounds
    alone."""
    prices: tuple[float, ...] = (0.0,)
    """Of a visit, in the unit of the reward: a schedule for each."""
    candidates: tuple[float, ...] = ()
    """Intervals that visits are chosen among; empty for all of the environment's own."""
    tolerance: float = TOLERANCE
    """Share of the rewards that may be lost in exchange for fewer visits; 0 for the best interval."""
    latent: bool = False
    """Whether the policy sees the model's latent state too."""
    schedule: float | None = None
    """Learn for this interval; None for the environment's own schedule."""
    seed: int = 0
    """Fixes everything random."""
    setting: str = "ours"
    """Of the environment: ours or paper."""
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the environment that differ from its setting."""
    paper: bool = False
    """Whether policies are learned as in the paper: raw rewards, one model, predictions fed back without bounds,
    the most likely interval in imagination."""

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            value = getattr(self, name)
            if name == "model_free" and value is None:
                continue
            if not (isinstance(value, int) and value >= least):
                raise KairodeError(f"{option(name)} must be a whole number of at least {least}, got {value}.")
        if not (isinstance(self.tolerance, int | float) and 0 <= self.tolerance <= 1):
            raise KairodeError(f"--tolerance must lie in [0, 1], got {self.tolerance}.")
        if self.revisits and not self.rounds:
            raise KairodeError(
                "--revisits goes with rounds, from whose experience and models it goes on: add --rounds 5."
            )
        if not self.rounds:
            return
        for name in ("latent", "schedule", "paper"):
            if getattr(self, name) not in (None, False):
                raise KairodeError(f"--{name} goes with models of random actions alone: add --rounds 0.")
        if self.episodes < 10:
            raise KairodeError(f"--episodes must be at least 10 where rounds follow, got {self.episodes}.")

    def make(self) -> Environment:
        """The environment."""
        return make(self.env, setting=self.setting, **self.fields)

    @property
    def in_turns(self) -> DynaConfig:
        """The rounds of it."""
        return DynaConfig(
            env=self.env,
            model=self.model,
            first=self.episodes,
            each=self.each,
            rounds=self.rounds,
            fits=self.fits,
            iterations=self.iterations,
            imagined=self.imagined,
            dqn=dyna_dqn(self.env),
            seed=self.seed,
            setting=self.setting,
            fields=self.fields,
        )

    @property
    def learning(self) -> dict[str, Any]:
        """How policies are learned, where that is not what belongs to the environment."""
        if not self.paper:
            return {}
        usual = DQNConfig()
        shown = ("reward_scale", "double", "target_every")
        return {
            **{name: getattr(usual, name) for name in shown},
            "margin": None,
            "branch": None,
            "sample_intervals": False,
        }


def option(name: str) -> str:
    """A field as an option of the command."""
    return f"--{name.replace('_', '-')}"


PRICES = {"hiv": (0.0, 1e8, 1e9), "gridworld": (0.0, 0.5, 2.0), "acrobot": (0.0, 0.5, 2.0)}
PRICES["hiv-partial"] = PRICES["hiv"]
"""Of a visit, in the unit of the reward: from none to one that counts."""
CANDIDATES = dict.fromkeys(("hiv", "hiv-partial"), tuple(float(day) for day in range(1, 8)))
"""Models see a week of a patient well enough, and a fortnight not (docs/results.md)."""

TOLERANCES = dict.fromkeys(("hiv", "hiv-partial"), 0.0)
"""The rewards of a sick patient are a millionth of a healthy one's, so they do not say what waiting may cost."""


def usual(
    env: str,
    *,
    latent: bool = False,
    schedule: float | None = None,
    paper: bool = False,
    rounds: int | None = None,
) -> RunConfig:
    """What belongs to an environment: the whole story in minutes; or the paper's protocol, which takes hours."""
    practice = policy_preset(env)
    imagined = imagined_episodes(practice, branching=not latent)
    run = RunConfig(
        env,
        imagined=imagined,
        visits=0 if schedule is not None else imagined,
        prices=PRICES.get(env, (0.0,)),
        candidates=CANDIDATES.get(env, ()),
        tolerance=TOLERANCES.get(env, TOLERANCE),
        latent=latent,
        schedule=schedule,
    )
    if paper:
        return dataclasses.replace(
            run,
            iterations=preset(env).settings.iterations,
            fits=1,
            imagined=IMAGINED.get(env, IMAGINED["hiv"]),
            model_free=REAL.get(env, REAL["hiv"]),
            setting="paper",
            paper=True,
        )
    if rounds is None:
        # Models of random treatment alone mislead a policy that treats well; a few patients under the policy mend that.
        rounds = 5 if env == "hiv" and not latent and schedule is None else 0
    if rounds:
        return dataclasses.replace(
            run,
            episodes=20,
            rounds=rounds,
            fits=4,
            iterations=3000,
            imagined=1500,
            visits=min(run.visits, 800),
            revisits=1 if run.visits else 0,
        )
    return run


def command(config: RunConfig, folder: Path | None = None) -> str:
    """The command that makes the run again."""
    kind: dict[str, Any] = {"latent": config.latent, "schedule": config.schedule, "paper": config.paper}
    plain = usual(config.env, rounds=config.rounds, **kind)
    said = {name: value not in (False, None) for name, value in kind.items()}
    said["rounds"] = config.rounds != usual(config.env, **kind).rounds
    words = ["kairode", "run", config.env]
    for name, value in dataclasses.asdict(config).items():
        if name in ("env", "fields") or not said.get(name, value != getattr(plain, name)):
            continue
        values = [] if value is True else list(map(str, value)) if isinstance(value, tuple) else [str(value)]
        words += ["--price" if name == "prices" else option(name), *values]
    if config.fields:
        words += ["--set", *(f"{name}={json.dumps(value)}" for name, value in config.fields.items())]
    return shlex.join([*words, *([] if folder is None else ["--out", str(folder)])])

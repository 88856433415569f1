"""What `kairode run` does with a system of controls: its config, what belongs to an environment, the command."""

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Any

from kairode.agents.actor_critic import ActorCriticConfig
from kairode.algorithms.mpc_agent import FREE, MPCSettings
from kairode.config.presets import preset
from kairode.envs import ENVIRONMENTS, make
from kairode.errors import KairodeError
from kairode.models.zoo import ModelConfig, check_model
from kairode.planning.mpc import PlanConfig
from kairode.training.step import TrainingConfig


@dataclasses.dataclass(frozen=True)
class MPCConfig:
    """What to do."""

    env: str = "hopper"
    """Name of the environment."""
    model: str = "latent-ode"
    """Name of the dynamics model to plan with; free for none."""
    decisions: int = 100_000
    """Real decisions of each seed, the random ones included."""
    seeds: int = 1
    """Seeds side by side."""
    seed: int = 0
    """The first of them."""
    epoch: int = 5000
    """Decisions between two fits of the model."""
    agent: ActorCriticConfig = dataclasses.field(default_factory=ActorCriticConfig)
    plan: PlanConfig = dataclasses.field(default_factory=PlanConfig)
    sizes: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    fit: TrainingConfig = dataclasses.field(default_factory=TrainingConfig)
    most_iterations: int = 1000
    """In one fit of the model, where early stopping does not end it before."""
    changes: bool = True
    """Whether agent and model see what the root's x changed by since the last decision, not where it is; the paper's
    see where it is."""
    test: int = 10
    """Episodes of the last test, of each seed."""
    setting: str = "ours"
    """Of the environment: ours or paper."""
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the environment that differ from its setting."""

    def __post_init__(self) -> None:
        for name in ("decisions", "seeds", "epoch", "most_iterations", "test"):
            value = getattr(self, name)
            if not (isinstance(value, int) and value >= 1):
                raise KairodeError(f"--{name.replace('_', '-')} must be a whole number of at least 1, got {value}.")
        if not (isinstance(self.seed, int) and self.seed >= 0):
            raise KairodeError(f"--seed must be a whole number, 0 or more, got {self.seed}.")
        if self.model != FREE:
            check_model(self.model)
        if self.decisions <= self.agent.warmup:
            raise KairodeError(
                f"--decisions must be more than the {self.agent.warmup:,} random ones that come first, got "
                f"{self.decisions:,}."
            )

    @property
    def config(self) -> MPCSettings:
        """How the crew learns."""
        return MPCSettings(self.model, self.agent, self.plan, self.sizes, self.fit, self.changes, self.most_iterations)


AGENTS = {
    "ddpg": ActorCriticConfig(),
    "td3": ActorCriticConfig(kind="td3", hidden=(256, 256), actor_rate=3e-4, critic_rate=3e-4, soft=5e-3),
    "sac": ActorCriticConfig(kind="sac", hidden=(256, 256), actor_rate=3e-4, critic_rate=3e-4, soft=5e-3),
}
"""DDPG as the paper has it; the others with the sizes and rates that are usual for them."""

QUICK = {
    "pendulum": {
        "agent": ActorCriticConfig(
            hidden=(128, 128), actor_rate=1e-3, critic_rate=1e-3, soft=5e-3, warmup=1000, reward_scale=0.1, noise=0.2
        ),
        "plan": PlanConfig(sequences=200, best=10, noise=0.3),
        "epoch": 1000,
        "decisions": 10_000,
    }
}
"""Where an environment wants other values than the paper's."""


def usual(env: str, model: str, **given: Any) -> MPCConfig:
    """The config that belongs to an environment, with what is given (None stands for what is usual)."""
    given = {name: value for name, value in given.items() if value is not None}
    own = dict(QUICK.get(env, {}))
    if model == FREE and env not in QUICK:
        own["decisions"] = 400_000
    fitted = preset(env)
    settings = dataclasses.replace(fitted.settings, pieces=10, patience=15)
    chosen = {"sizes": fitted.sizes, "fit": settings, **own, **given}
    return MPCConfig(env, model, **chosen)


def with_options(
    env: str,
    model: str,
    *,
    agent: str | None = None,
    sequences: int | None = None,
    rounds: int | None = None,
    noise: float | None = None,
    solver: str | None = None,
    places: bool | None = None,
    **given: Any,
) -> MPCConfig:
    """The usual config with what a command line changes of it."""

    planning = {"sequences": sequences, "rounds": rounds, "noise": noise, "solver": solver}
    for name, value in planning.items():
        if value is not None and (model == FREE or (name == "solver" and "ode" not in model)):
            why = "--model free plans nothing" if model == FREE else f"the model {model} solves no ODE"
            raise KairodeError(f"--{name} has no effect: {why}.")
    relative = env in ENVIRONMENTS and any(variable.relative for variable in make(env).task.spec.observations)
    if places and not relative:
        raise KairodeError(f"--places has no effect: '{env}' has no place of which changes could be seen.")

    def changed(part: Any, **values: Any) -> Any:
        return dataclasses.replace(part, **{name: value for name, value in values.items() if value is not None})

    before = usual(env, model, **{name: value for name, value in given.items() if name != "decisions"})
    chosen = before.agent
    if agent is not None:  # the robots' agents are told apart by more than their kind, the pendulum's are not
        chosen = dataclasses.replace(chosen, kind=agent) if env in QUICK or agent not in AGENTS else AGENTS[agent]
    best = None if sequences is None else max(1, min(before.plan.best, sequences // 20))
    return dataclasses.replace(
        before,
        decisions=before.decisions if given.get("decisions") is None else given["decisions"],
        agent=chosen,
        plan=changed(before.plan, sequences=sequences, best=best, rounds=rounds, noise=noise),
        sizes=changed(before.sizes, solver=solver),
        changes=not (places or (relative and given.get("setting") == "paper")),
    )


def command(config: MPCConfig, folder: Path | None = None) -> str:
    """The command that makes the run again."""
    base, now = dataclasses.asdict(usual(config.env, config.model)), dataclasses.asdict(config)
    words = ["kairode", "run", config.env, "--model", config.model]
    for name in ("decisions", "seeds", "seed", "test"):
        if now[name] != base[name]:
            words += [f"--{name}", str(now[name])]
    if config.agent.kind != "ddpg":
        words += ["--agent", config.agent.kind]
    if not config.changes and config.setting != "paper":
        words += ["--places"]
    for name in ("sequences", "rounds", "noise"):
        if now["plan"][name] != base["plan"][name]:
            words += [f"--{name}", str(now["plan"][name])]
    if config.sizes.solver != base["sizes"]["solver"]:
        words += ["--solver", config.sizes.solver]
    if config.setting != "ours":
        words += ["--setting", config.setting]
    if config.fields:
        words += ["--set", *(f"{name}={json.dumps(value)}" for name, value in config.fields.items())]
    return shlex.join([*words, *([] if folder is None else ["--out", str(folder)])])

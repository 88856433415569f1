"""`kairode evaluate`: evaluate the policy of a run on the real system."""

from pathlib import Path
from typing import Any

from kairode.agents.evaluate import evaluate
from kairode.agents.policy_files import describe_policy
from kairode.envs import make
from kairode.errors import KairodeError
from kairode.result import Result
from kairode.runs.mpc import evaluate_mpc_run, is_mpc_run
from kairode.runs.policies import load_policy
from kairode.runs.schedule import load_chosen


def evaluate_run(
    folder: Path, *, schedule: Any = None, episodes: int = 100, accrue: bool | None = None, seed: int = 0
) -> tuple[dict[str, Any], Result]:
    """Evaluate the policy of a run on the real system: on its own schedule, any other, or at chosen times."""
    if is_mpc_run(folder):
        if isinstance(schedule, str):
            load_chosen(folder)  # raises with the reason
        return evaluate_mpc_run(folder, schedule=schedule, episodes=episodes, accrue=accrue, seed=seed)
    if isinstance(schedule, str) and schedule == "chosen":
        system, policy, chosen = load_chosen(folder)
        found = evaluate(system.env, policy, episodes=episodes, schedule=chosen, seed=seed)
        return {**system.about, "schedule": "chosen", "time_unit": system.env.task.spec.time_unit}, found
    about = describe_policy(folder)
    if about["schedule"] == "chosen":
        raise KairodeError(
            f"{folder} holds the policy for chosen decision times: evaluate {folder.parent} with --schedule chosen."
        )
    env = make(about["env"], setting=about["setting"], **about["fields"])
    timing = about["schedule"] if schedule is None else schedule
    found = evaluate(env, load_policy(folder), episodes=episodes, schedule=timing, accrue=accrue, seed=seed)
    return {**about, "schedule": timing, "time_unit": env.task.spec.time_unit}, found

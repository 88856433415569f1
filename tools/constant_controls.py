"""Returns of constant and random actions on the robots: `python tools/constant_controls.py [EPISODES]`.

Writes results/constant-controls.json, what learned policies are to be compared with.
"""

import sys
import time
from pathlib import Path

import kairode
from kairode.data.policy import Constant
from kairode.envs.locomotion import ROBOTS
from kairode.files import save_json
from kairode.result import rounded
from kairode.runs.mpc import constant_controls
from kairode.runs.record import make_record

RECORD = Path(__file__).parents[1] / "results" / "constant-controls.json"


def main(episodes: int) -> None:
    """Test the policies on every robot, and write the record."""
    started, figures = time.perf_counter(), {}
    for name in ROBOTS:
        env = kairode.make(name)
        policies = {"random actions": None, **{key: Constant(x) for key, x in constant_controls(env).items()}}
        figures[name] = {
            key: kairode.evaluate(env, policy, episodes=episodes).figures() for key, policy in policies.items()
        }
    seconds, command = time.perf_counter() - started, "python tools/constant_controls.py"
    config = {"robots": list(ROBOTS), "episodes": episodes}
    save_json(RECORD, make_record("constant", config, rounded(figures), command=command, seconds=seconds))
    for name, tests in figures.items():
        print(name, {key: round(test["return"], 1) for key, test in tests.items()})


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)

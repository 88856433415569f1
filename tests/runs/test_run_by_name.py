"""Systems of the user's own by name: `kairode run gym:CartPole-v1` and `kairode run my_module:MyEnv`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Typed = Callable[..., tuple[int, str, str]]

SMALL = ("--rounds", "1", "--fit-iterations", "20", "--learn.episodes", "20", "--initial-decisions", "60")
SMALL += ("--decisions-per-round", "20", "--ensemble-size", "2", "--schedule-episodes", "10", "--model", "rnn")
OWN = '''
import gymnasium
import numpy as np

import kairode


class Drift(gymnasium.Env):
    """x moves by the action, with noise; the reward is -|x|."""

    def __init__(self, width=2.0):
        self.width = width
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.k = self.np_random.uniform(-self.width, self.width), 0
        return np.array([self.x]), {}

    def step(self, action):
        self.x += 0.3 * (action - 1) + 0.05 * self.np_random.normal()
        self.k += 1
        return np.array([self.x]), -abs(self.x), False, self.k >= 20, {}


def narrow():
    return Drift(0.5)


ready = kairode.from_gymnasium(Drift, horizon=20)
gymnasium.register("kairode-test/Drift-v0", Drift, max_episode_steps=20)
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "drift_module.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_run_of_cart_pole(tmp_path: Path, typed: Typed) -> None:
    folder = tmp_path / "run"
    code, out, err = typed("run", "gym:CartPole-v1", *SMALL, "--set", "intervals=[1,3]", "--out", str(folder))
    assert code == 0, err
    record = json.loads((folder / "record.json").read_text())
    assert record["config"]["env"] == "gym:CartPole-v1"
    assert record["config"]["env_fields"] == {"intervals": [1, 3]}
    tests = record["figures"]["tests"]
    # Each step that the pole stands is rewarded with 1, so that returns are whole numbers of steps.
    assert tests["random"]["return"] > 9
    assert "always left" in out
    assert "Report:" in out
    page = (folder / "report.html").read_text()
    assert "CartPole-v1" in page
    assert "real episodes" in page
    code, out, err = typed("evaluate", str(folder), "--schedule", "2", "--episodes", "4")
    assert code == 0, err
    assert "every 2 steps" in out
    code, out, err = typed("schedule", str(folder), "--test-episodes", "2", "--prices", "0", "1")
    assert code == 0, err


@pytest.mark.slow
def test_a_run_of_a_pendulum(tmp_path: Path, typed: Typed) -> None:
    folder = tmp_path / "run"
    small = ("--decisions", "300", "--agent.warmup", "150", "--max-fit-iterations", "10", "--plan.candidates", "10")
    small += ("--plan.elites", "2", "--plan.horizon", "2", "--test-episodes", "2", "--model", "rnn")
    code, out, err = typed("run", "gym:Pendulum-v1", *small, "--out", str(folder))
    assert code == 0, err
    assert "random actions" in out
    code, out, err = typed("evaluate", str(folder), "--episodes", "2")
    assert code == 0, err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Drift", "narrow", "ready", "kairode-test/Drift-v0"])
def test_a_module_of_the_users_own(module: Path, typed: Typed, name: str) -> None:
    out = module / "visits.parquet"
    words = ("--set", "horizon=20") if name in ("Drift", "narrow") else ()
    code, _, err = typed("collect", f"drift_module:{name}", "--episodes", "5", "--out", str(out), *words)
    assert code == 0, err
    assert out.exists()


@pytest.mark.slow
def test_a_run_of_a_module(module: Path, typed: Typed) -> None:
    words = ("drift_module:Drift", *SMALL, "--set", "horizon=20", "width=1.0")
    code, out, err = typed("run", *words, "--schedule-episodes", "0", "--schedule-refits", "0")
    assert code == 0, err
    assert next((module / "runs").iterdir()).name.startswith("drift_module-Drift")
    assert "Report:" in out
    code, _, err = typed("fit", "drift_module:Drift", "--episodes", "12", "--iterations", "10", "--set", "horizon=20")
    assert code == 0, err
    code, _, err = typed(
        "dyna",
        "drift_module:Drift",
        "--rounds",
        "0",
        "--fit-iterations",
        "10",
        "--set",
        "horizon=20",
        "--imagined-episodes",
        "5",
    )
    assert code == 0, err


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gym:Nothing-v0", "Gymnasium cannot make 'Nothing-v0'"),
        ("no_module:Env", "there is no module 'no_module'"),
        ("drift_module:Drifd", "Did you mean 'Drift'"),
        ("drift_module:OWN", "unknown name"),
    ],
)
def test_names_that_do_not_exist(module: Path, typed: Typed, name: str, said: str) -> None:
    code, _, err = typed("collect", name, "--out", str(module / "x.parquet"))
    assert code == 2
    assert said in err
    assert err.count("\n") == 1

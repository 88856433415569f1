"""Missing values: models of tables with 30 % of the measurements gone, on HIV and on a table of glucose and insulin.

    python tools/missing_study.py fits FOLDER hiv latent-ode    # three fits of three seeds; also glucose, rnn, ..
    python tools/missing_study.py record FOLDER                 # writes results/missing-values.json

A measurement is removed at random, each variable on its own. Models are fitted to the whole table, to the one with
missing values (`missing="keep"`: they are shown their own predictions and a mask), and to the one whose gaps are filled
with the last value (`missing="carry"`). Tested on other episodes, they are shown the whole history or one with 30 %
missing (in the first visit too; the third fit is shown it carried forward). The error is always that of the true values
of all variables, also those that were removed: one interval ahead, and open loop from the first visit. Glucose is a
CSV, read by `kairode.load_table`. Each step skips what is already in the folder.
"""

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import glucose
import numpy as np

import kairode
from kairode.data.trajectory import Trajectory, carried_forward
from kairode.files import save_json
from kairode.models.dynamics import DynamicsModel
from kairode.result import rounded
from kairode.runs.record import make_record

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "results" / "missing-values.json"
EPISODES, TEST_EPISODES, DECISIONS = 1000, 200, {"hiv": 50, "glucose": 30}
SHARE, SEEDS = 0.3, 3
ITERATIONS = {"hiv": 6000, "glucose": 4000}
TRAIN_SEED, TEST_SEED = 500_000, 600_000
FITS = {"whole": ("whole", "gone"), "keep": ("whole", "gone"), "carry": ("whole", "carried")}
"""Tables that models are fitted to, and the histories that they are shown in the test."""
GOAL_OF_WHOLE, GOAL_OF_CARRY = 1.3, 0.8


class Tables(NamedTuple):
    """The same episodes: whole, with missing values, and with these carried forward."""

    whole: Trajectory
    gone: Trajectory
    carried: Trajectory


def removed(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Mask of the measurements to remove."""
    return np.random.default_rng([seed, 1]).random(shape) < SHARE


def tables_of(folder: Path, system: str, part: str) -> Tables:
    """Training or test tables."""
    episodes, seed = (EPISODES, TRAIN_SEED) if part == "train" else (TEST_EPISODES, TEST_SEED)
    if system == "glucose":
        return glucose_tables(folder, part, episodes, seed)
    env = kairode.make(system, max_decisions=DECISIONS[system])
    whole = kairode.collect(env, episodes=episodes, seed=seed)
    observation = np.asarray(whole.observation)
    gone = dataclasses.replace(whole, observation=np.where(removed(observation.shape, seed), np.nan, observation))
    return Tables(whole, gone, carried_forward(gone))


def glucose_tables(folder: Path, part: str, episodes: int, seed: int) -> Tables:
    columns = glucose.visits(episodes, DECISIONS["glucose"], seed)
    lost = removed((*columns["when"].shape, len(glucose.OBSERVED)), seed)
    paths = {name: folder / f"glucose-{part}-{name}.csv" for name in ("whole", "gone")}
    glucose.write_csv(paths["whole"], columns)
    glucose.write_csv(paths["gone"], columns, lost)
    given = {"episode": "patient", "time": "when", "action": "given", "time_unit": "hour"}
    whole, gone = (kairode.load_table(paths[name], **given) for name in ("whole", "gone"))
    return Tables(whole, gone, kairode.load_table(paths["gone"], missing="carry", **given))


def errors(
    models: list[DynamicsModel], shown: Trajectory, truth: Trajectory, std: np.ndarray
) -> dict[str, list[float]]:
    """Mean squared errors of every seed against the true values, in units of `std`."""
    true = np.asarray(truth.observation, np.float64)[:, 1:]

    def error(model: DynamicsModel, seed: int, teacher_forcing: bool) -> float:
        predicted = kairode.predict(model, shown, teacher_forcing=teacher_forcing, seed=seed)
        return float(np.mean(((predicted - true) / std)[truth.mask] ** 2))

    return {
        "one_interval": [error(model, i, True) for i, model in enumerate(models)],
        "open_loop": [error(model, i, False) for i, model in enumerate(models)],
    }


def last_value(shown: Trajectory, truth: Trajectory, std: np.ndarray) -> float:
    """Error of predicting that nothing changes until the next visit."""
    before, after = (np.asarray(part.observation, np.float64) for part in (shown, truth))
    return float(np.mean(((before[:, :-1] - after[:, 1:]) / std)[truth.mask] ** 2))


def make_fits(folder: Path, system: str, model: str) -> None:
    """Fit the three tables, and save the errors."""
    train, test = (tables_of(folder, system, part) for part in ("train", "test"))
    std = None
    for name, shown in FITS.items():
        path = folder / f"{system}-{model}-{name}.json"
        data = {"whole": train.whole, "keep": train.gone, "carry": train.carried}[name]
        place = folder / f"{system}-{model}-{name}"
        began = time.process_time()
        models = kairode.fit(model, data, seeds=SEEDS, iterations=ITERATIONS[system], folder=place)
        if std is None:  # of the whole table, for all of them; 1 where the preset does not standardise (HIV)
            std = np.array(models[0].scale.std)
        if path.exists():
            continue
        found = {one: errors(models, getattr(test, one), test.whole, std) for one in shown}
        figures = {"errors": found, "seconds": time.process_time() - began}
        if name == "whole":
            figures["last_value"] = {
                one: last_value(getattr(test, one), test.whole, std) for one in ("whole", "carried")
            }
            figures["missing"] = float(np.isnan(np.asarray(train.gone.observation)).mean())
        save_json(path, rounded(figures))
        print(path.stem, json.dumps(rounded(figures, 4)), flush=True)


def compared(fits: dict[str, Any]) -> dict[str, Any]:
    """What is aimed at, by kind of prediction: the error with missing values, as a test table would have them, relative
    to that of the whole table and to that of values carried forward; means over seeds.

    `same_history` is of the whole table's models shown the history with missing values: what is lost to the gaps of the
    test alone.
    """
    found: dict[str, Any] = {}
    for kind in ("open_loop", "one_interval"):
        mean = {
            (fit, shown): float(np.mean(fits[fit]["errors"][shown][kind]))
            for fit, histories in FITS.items()
            for shown in histories
        }
        keep, whole, carry = mean["keep", "gone"], mean["whole", "whole"], mean["carry", "carried"]
        found[kind] = {
            "of_whole": keep / whole,
            "of_carry": keep / carry,
            "of_same_history": keep / mean["whole", "gone"],
            "of_whole_both_shown_whole": mean["keep", "whole"] / whole,
            "of_carry_both_shown_whole": mean["keep", "whole"] / mean["carry", "whole"],
            "reached": {"of_whole": keep <= GOAL_OF_WHOLE * whole, "of_carry": keep <= GOAL_OF_CARRY * carry},
        }
    return found


def make_the_record(folder: Path) -> None:
    figures: dict[str, Any] = {}
    for path in sorted(folder.glob("*-whole.json")):
        system, model = path.stem.removesuffix("-whole").split("-", 1)
        paths = {name: folder / f"{system}-{model}-{name}.json" for name in FITS}
        if all(one.exists() for one in paths.values()):
            fits = {name: json.loads(one.read_text()) for name, one in paths.items()}
            figures.setdefault(system, {})[model] = {**fits, "compared": compared(fits)}
            print(system, model, json.dumps(rounded(figures[system][model]["compared"], 3)))
    seconds = sum(fit["seconds"] for models in figures.values() for one in models.values() for fit in _fits(one))
    config = {
        "episodes": EPISODES,
        "test_episodes": TEST_EPISODES,
        "max_decisions": DECISIONS,
        "missing": SHARE,
        "seeds": SEEDS,
        "iterations": ITERATIONS,
        "goals": {"of_whole": GOAL_OF_WHOLE, "of_carry": GOAL_OF_CARRY},
    }
    command = "python tools/missing_study.py record FOLDER"
    save_json(RECORD, make_record("missing-values", config, rounded(figures), command=command, seconds=seconds))


def _fits(one: dict[str, Any]) -> list[dict[str, Any]]:
    return [one[name] for name in FITS]


def main() -> None:
    """One step of the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("fits", "record"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("system", nargs="?", choices=tuple(DECISIONS))
    parser.add_argument("model", nargs="?", default="latent-ode")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.step == "record":
        make_the_record(given.folder)
    else:
        make_fits(given.folder, given.system, given.model)


if __name__ == "__main__":
    main()

"""How much of a model's test error on acrobot is owed to angles that pass pi and jump to -pi.

`python tools/wraps.py RUN.. --save results/acrobot-wraps.json`, with the folders of runs that `kairode fit acrobot` or
`kairode reproduce table1 --rows acrobot-cooled` left.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

import kairode
from kairode.files import save_json
from kairode.runs.record import make_record


def errors(folder: Path, test: kairode.Trajectory) -> dict[str, Any]:
    [model] = kairode.load_models(folder)
    real = test.mask
    squares = ((kairode.predict(model, test) - test.observation[:, 1:]) ** 2).mean(-1) * real
    jumps = (np.abs(np.diff(test.observation[..., :2], axis=1)) > 4).any((1, 2))
    rng = np.random.default_rng(0)
    hundreds = [rng.integers(len(test), size=100) for _ in range(2000)]
    drawn = [squares[some].sum() / real[some].sum() for some in hundreds]
    return {
        "error": squares.sum() / real.sum(),
        "error_without_jumps": squares[~jumps].sum() / real[~jumps].sum(),
        "episodes_with_jumps": int(jumps.sum()),
        "of_100_episodes_5_to_95_percent": np.quantile(drawn, (0.05, 0.95)).round(4).tolist(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    started = time.perf_counter()
    test = kairode.collect(kairode.make("acrobot", setting="paper"), episodes=1000, seed=2)
    found = {folder.name: errors(folder, test) for folder in options.runs}
    for name, figures in found.items():
        print(
            name, {key: value if isinstance(value, list) else round(float(value), 4) for key, value in figures.items()}
        )
    if options.save:
        plain = {
            name: {k: v if isinstance(v, list) else round(float(v), 5) for k, v in f.items()}
            for name, f in found.items()
        }
        command = "kairode reproduce table1 --rows acrobot-cooled --models latent-ode && python tools/wraps.py RUNS"
        save_json(options.save, make_record("wraps", {}, plain, command=command, seconds=time.perf_counter() - started))


if __name__ == "__main__":
    main()

"""The figures of docs/dosing-example.md over several seeds: `python tools/dosing_table.py` writes results/dosing.json.

The page's own code is run for every seed: of the random episodes, the model and the policy.
"""

import time
from pathlib import Path
from typing import Any

from kairode.files import save_json
from kairode.result import rounded
from kairode.runs.record import make_record

ROOT = Path(__file__).parents[1]
PAGE, RECORD = ROOT / "docs" / "dosing-example.md", ROOT / "results" / "dosing.json"
SEEDS = (0, 1, 2)
SEEDED = {
    "seed=0)  # random doses": "seed=SEED)",
    "latent_size=8)": "latent_size=8, seed=SEED)",
    "**settings)": "seed=SEED, **settings)",
}
"""What the page leaves at seed 0."""


def figures_of(seed: int) -> dict[str, Any]:
    """Returns and visits of the best constant dose, the learned policy, and the policy at chosen times."""
    blocks = [part.split("```")[0] for part in PAGE.read_text().split("```python\n")[1:]]
    code = "\n".join(blocks)
    for old, new in SEEDED.items():
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    space: dict[str, Any] = {"__name__": "page", "SEED": seed}
    exec(compile(code, str(PAGE), "exec"), space)
    own, chosen = space["own"], space["chosen"]
    return {
        "constant": max(space["constant"].values()),
        "learned": {"return": own.score, "visits": own.decisions},
        "chosen": {"return": chosen.score, "visits": chosen.decisions},
    }


def main() -> None:
    """Run all seeds, and write the record."""
    started = time.perf_counter()
    figures = rounded({str(seed): figures_of(seed) for seed in SEEDS})
    seconds = time.perf_counter() - started
    config = {"page": PAGE.relative_to(ROOT).as_posix(), "seeds": list(SEEDS), "test_episodes": 100}
    save_json(RECORD, make_record("dosing", config, figures, command="python tools/dosing_table.py", seconds=seconds))


if __name__ == "__main__":
    main()

"""d3rlpy's learners on the tables of tools/offline_learning.py, in a virtual environment of its own.

    python tools/offline_peers.py FOLDER half DiscreteCQL --seed 0

Needs torch and d3rlpy, not kairode. Writes the layers of the Q-network, which `tools/offline_learning.py peers`
evaluates.
"""

import argparse
from pathlib import Path

import numpy as np

STEPS = 50_000
ALGORITHMS = {"DiscreteCQL": "DiscreteCQLConfig", "DiscreteBCQ": "DiscreteBCQConfig", "DoubleDQN": "DoubleDQNConfig"}


def main() -> None:
    """Train one algorithm on one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("table")
    parser.add_argument("algorithm", choices=tuple(ALGORITHMS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS)
    given = parser.parse_args()
    target = given.folder / f"peer-{given.table}-{given.algorithm}-{given.seed}.npz"
    if target.exists():
        return

    import d3rlpy
    import torch

    torch.set_num_threads(1)
    d3rlpy.seed(given.seed)
    found = np.load(given.folder / f"{given.table}.npz")
    dataset = d3rlpy.dataset.MDPDataset(
        observations=found["observations"],
        actions=found["actions"].reshape(-1, 1),
        rewards=found["rewards"].reshape(-1, 1),
        terminals=np.zeros(len(found["actions"])),
        timeouts=found["timeouts"].astype(float),
        action_space=d3rlpy.constants.ActionSpace.DISCRETE,
        action_size=int(found["actions"].max()) + 1,
    )
    config = getattr(d3rlpy.algos, ALGORITHMS[given.algorithm])(gamma=float(found["gamma"]))
    algorithm = config.create(device="cpu:0")
    algorithm.fit(dataset, n_steps=given.steps, n_steps_per_epoch=given.steps // 5, show_progress=False)
    parts = {"q": algorithm.impl.q_function[0]}
    if given.algorithm == "DiscreteBCQ":  # its actions are those that the imitator finds likely enough
        parts["imitator"] = algorithm.impl.modules.imitator
    arrays = {}
    for name, part in parts.items():
        layers = [module for module in part.modules() if isinstance(module, torch.nn.Linear)]
        for i, layer in enumerate(layers):
            arrays[f"{name}-weight{i}"] = layer.weight.detach().numpy()
            arrays[f"{name}-bias{i}"] = layer.bias.detach().numpy()
    np.savez(target, **arrays)


if __name__ == "__main__":
    main()

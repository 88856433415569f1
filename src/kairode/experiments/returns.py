"""The studies behind the paper's tables of returns, in two settings: the paper's, and ours."""

import dataclasses

from kairode.agents.dqn import DQNSettings
from kairode.experiments.studies import ORACLE, Study
from kairode.models.zoo import PAPER_MODELS

REGULAR: dict[str, tuple[float, ...]] = {
    "gridworld": (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0),
    "acrobot": (0.2, 0.4, 0.6, 0.8, 1.0),
    "hiv": (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0),
}
"""The regular schedules of the paper's table 4."""
TRANSFER = {"gridworld": 7.0, "acrobot": 0.2, "hiv": 5.0}
"""Those of its table 2b."""
IMAGINED = {"gridworld": 1000, "acrobot": 200, "hiv": 1500}
REAL = {"gridworld": 1000, "acrobot": 1000, "hiv": 3500}
"""Episodes of practice, in imagination and on the real system."""
SCALES = {"gridworld": 0.1, "acrobot": 0.1, "hiv": 1e-6}
"""Our scale of rewards: values of about one to a hundred."""
OURS = {env: DQNSettings(reward_scale=scale, double=True) for env, scale in SCALES.items()}

_published = {"gridworld": "paper", "acrobot": "paper", "hiv": "ours"}
"""The setting of the environment in the published runs; HIV has one only."""

STUDIES: dict[str, Study] = {}
for _env, _taus in REGULAR.items():
    _setting = _published[_env]
    # On HIV short intervals make episodes many times as long: they go into studies of their own.
    _parts = {"": (0.0, *_taus)} if _env != "hiv" else {"": (0.0, *_taus[2:]), "-2": _taus[1:2], "-1": _taus[:1]}
    for _part, _schedules in _parts.items():
        STUDIES[f"paper-{_env}{_part}"] = Study(_env, _setting, _env, PAPER_MODELS, _schedules, IMAGINED[_env])
        STUDIES[f"paper-{_env}-oracle{_part}"] = Study(_env, _setting, _env, (ORACLE,), _schedules, REAL[_env])
    STUDIES[f"ours-{_env}-oracle"] = Study(
        _env, _setting, _env, (ORACLE,), (0.0, TRANSFER[_env]), REAL[_env], OURS[_env]
    )
    STUDIES[f"ours-{_env}"] = Study(
        _env, _setting, _env, ("latent-ode",), (0.0, TRANSFER[_env]), IMAGINED[_env], OURS[_env], ensemble=True
    )
STUDIES["ours-hiv"] = dataclasses.replace(STUDIES["ours-hiv"], fits="hiv-whole-cooled")
_partial = Study("hiv-partial", "ours", "hiv-partial", ("latent-ode",), (0.0,), IMAGINED["hiv"])
STUDIES["paper-hiv-partial"] = _partial
STUDIES["paper-hiv-partial-latent"] = dataclasses.replace(_partial, latent=True)
STUDIES["paper-hiv-partial-oracle"] = dataclasses.replace(_partial, models=(ORACLE,), episodes=REAL["hiv"])
for _name in ("hiv-partial", "hiv-partial-latent", "hiv-partial-oracle"):
    _was = STUDIES[f"paper-{_name}"]
    STUDIES[f"ours-{_name}"] = dataclasses.replace(_was, dqn=OURS["hiv"], ensemble=_was.models != (ORACLE,))

"""Calibration of an ensemble: the spread of its members' predictions against the errors on held-out episodes."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kairode.data.trajectory import Trajectory
from kairode.errors import KairodeError
from kairode.models.dynamics import DynamicsModel
from kairode.models.predict import predict
from kairode.result import rounded
from kairode.training.evaluate_model import changing_variables
from kairode.training.spread import BINS, LEVELS, Errors, SpreadCheck, Widths, check_spread, spread_and_error


@dataclasses.dataclass(frozen=True)
class EnsembleCalibration:
    """Spread of an ensemble against its errors on test episodes, open loop and one interval ahead."""

    members: int
    open_loop: SpreadCheck
    """Predictions from the first observation of each episode."""
    one_interval: SpreadCheck
    """Predictions from each decision to the next, given the true observations."""
    widths: Mapping[str, Widths] | None = dataclasses.field(default=None, compare=False, repr=False)
    """Of calibrated intervals, by the two names above; None without validation episodes."""

    def figures(self) -> dict[str, Any]:
        """For a record."""
        checks = {"open_loop": self.open_loop, "one_interval": self.one_interval}
        each = {name: {"ratio": check.ratio, **dataclasses.asdict(check)} for name, check in checks.items()}
        return {"members": self.members, "levels": list(LEVELS), **rounded(each)}

    def __str__(self) -> str:
        return f"{self.members} models\nopen loop: {self.open_loop}\none interval ahead: {self.one_interval}"


def evaluate_ensemble(
    models: Sequence[DynamicsModel], test: Trajectory, *, valid: Trajectory | None = None, seed: int = 0
) -> EnsembleCalibration:
    """Compare the spread of an ensemble with its errors: `kairode.evaluate_ensemble(models, test)`.

    Args:
        models: at least two models of the same variables, such as those of `kairode.fit(.., seeds=5)`.
        test: episodes that the models were not fitted to. Missing values do not count.
        valid: other such episodes, to calibrate intervals on; without them, those of the spread alone are evaluated.
        seed: of the initial latent states, where these are drawn (each member draws its own).
    """
    members = list(models) if isinstance(models, Sequence) else []
    if len(members) < 2:
        raise KairodeError("a spread needs at least two models: fit them together, with seeds=2 or more.")
    names = [v.name for v in test.spec.observations]
    checks, widths = {}, {}
    for kind, bins in (("open_loop", BINS), ("one_interval", 1)):
        if valid is not None:
            widths[kind] = Widths.fit(_predicted(members, valid, kind, seed), bins)
        checks[kind] = check_spread(_predicted(members, test, kind, seed), names, widths.get(kind))
    return EnsembleCalibration(len(members), **checks, widths=widths or None)


def _predicted(members: Sequence[DynamicsModel], data: Trajectory, kind: str, seed: int) -> Errors:
    """Standardised by the first member's scale; what a robust scale clips counts as missing, and so does what never
    changes within an episode."""
    scale, mask = members[0].scale, np.asarray(data.mask)
    teacher_forcing = kind == "one_interval"
    predictions = np.stack(
        [
            scale.apply(predict(model, data, teacher_forcing=teacher_forcing, seed=seed + i)[mask])
            for i, model in enumerate(members)
        ]
    )
    if not np.isfinite(predictions).all():
        member = int(np.argmin(np.isfinite(predictions).all((1, 2))))
        raise KairodeError(f"the predictions of model {member} are not finite: fit it longer, or leave it out.")
    truth = scale.apply(np.asarray(data.observation, np.float32)[:, 1:][mask])
    counts = scale.usable(truth) & changing_variables(data)
    return spread_and_error(predictions, np.where(counts, truth, np.nan), data.time[:, 1:][mask])

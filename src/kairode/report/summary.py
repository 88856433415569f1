"""What a run found, in sentences."""

from typing import Any

from kairode.data.describe import spec_from_dict
from kairode.envs.core import Spec
from kairode.runs.findings import CONSTANT, best_constant


def spec_of(made: dict[str, Any]) -> Spec:
    """The spec of a run's environment."""
    return spec_from_dict(made["figures"]["spec"])


def summary_sentences(made: dict[str, Any]) -> list[str]:
    """How good the policy is, what it means for health, what the visits are worth."""
    figures = made["figures"]
    tests = figures["tests"]
    said = [policy_sentence(made)]
    mine = tests["imagination"]["healthy"]
    if mine is not None:
        chance, held = tests["random"]["healthy"], best_constant(tests)
        said.append(
            f"The patient is healthy for {100 * mine:.0f} % of the time; under random treatment for "
            f"{100 * chance:.0f} %, under {held.removeprefix(CONSTANT)} alone for {100 * tests[held]['healthy']:.0f} %."
        )
    if "visits" in figures:
        said.append(schedule_sentence(figures["visits"], spec_of(made)))
    return said


def policy_sentence(made: dict[str, Any]) -> str:
    """One sentence on the tests."""
    figures, spec = made["figures"], spec_of(made)
    tests, real = figures["tests"], figures["real_episodes"]
    mine, held = tests["imagination"], best_constant(tests)
    rivals = {"random actions": tests["random"], f"the best constant policy, {held}": tests[held]}
    if "model-free" in tests:
        rivals[f"the model-free policy of {real['model-free']:,} real episodes"] = tests["model-free"]
    parts = []
    for name, test in rivals.items():
        order = "above" if mine["return_low"] > test["return_high"] else "about level with"
        order = "below" if mine["return_high"] < test["return_low"] else order
        parts.append(f"{order} {name} ({test['return']:.4g})")
    at = f" at a decision {every(made['config']['schedule'], spec.time_unit)}" if made["config"]["schedule"] else ""
    return (
        f"Learned from {real['imagination']:,} real episodes and tested on {mine['episodes']} new ones{at}, the policy "
        f"has a mean {kind_of_return(spec)} of {mine['return']:.4g}: {', '.join(parts)}."
    )


def schedule_sentence(found: dict[str, Any], spec: Spec) -> str:
    """What the visits chosen at the lowest price are worth, beside fixed intervals."""
    label = next(iter(found["intervals"]))
    chosen, kind, unit = found["rows"][label], judged_by(spec), spec.time_unit
    rivals = fixed_rivals(found, spec)
    name, best = best_fixed(rivals, spec)
    price = "" if label == "price 0" else f" at a {label}"
    known = f"; chosen by models of {found['real_episodes']:,} real episodes" if "real_episodes" in found else ""
    said = (
        f"Looking again when the model says so{price} takes {chosen['visits']:.0f} visits in {chosen['time']:.4g} "
        f"{unit}s and returns {chosen[kind]:.4g} (counted {every(spec.finest, unit)}, not at visits alone{known}); "
    )
    rarer = {other: row for other, row in rivals.items() if row["visits"] <= chosen["visits"]}
    if rarer:
        other, row = best_fixed(rarer, spec)
        order = "above" if chosen["low"] > row[kind] else "below" if chosen["high"] < row[kind] else "about level with"
        said += (
            f"{order} the run's policies at fixed intervals with as few visits ({row[kind]:.4g} at most, "
            f"{every(other, unit)}); "
        )
    return (
        f"{said}at their best fixed interval ({every(name, unit)}, {best['visits']:.0f} visits) they return "
        f"{best[kind]:.4g}."
    )


def kind_of_return(spec: Spec) -> str:
    """In words."""
    return "discounted return" if spec.judged_discounted else "return"


def judged_by(spec: Spec) -> str:
    """The figure of a row of visits that counts."""
    return "return" if spec.judged_discounted else "plain"


def every(interval: str | float, unit: str) -> str:
    """An interval in words: every day, every 5 days."""
    number = float(str(interval).removeprefix("every "))
    return f"every {unit}" if number == 1 else f"every {number:g} {unit}s"


def fixed_rivals(found: dict[str, Any], spec: Spec) -> dict[str, Any]:
    """For each fixed interval the better of two policies: the one for chosen intervals, and the run's own."""
    kind = judged_by(spec)
    return {
        name: max((found["rows"][name], found["usual"][name]), key=lambda row: float(row[kind]))
        for name in found["usual"]
        if name.startswith("every")
    }


def best_fixed(rivals: dict[str, Any], spec: Spec) -> tuple[str, dict[str, Any]]:
    """The fixed interval that returns most."""
    label = max(rivals, key=lambda name: float(rivals[name][judged_by(spec)]))
    return label, rivals[label]

"""What a run found, in sentences."""

from typing import Any

from kairode.data.describe import spec_from_dict
from kairode.envs.core import Spec
from kairode.result import objective_of
from kairode.runs.labels import best_constant, of_kind

ENOUGH_MODELS = 5
"""From so many on, more are not recommended."""
PER_UNIT = {"hour": "hourly", "day": "daily", "week": "weekly"}


def spec_of(made: dict[str, Any]) -> Spec:
    """The spec of a run's environment."""
    return spec_from_dict(made["figures"]["spec"])


def summary_sentences(made: dict[str, Any]) -> list[str]:
    """Whether the policy is of no use; how good it is, its measures, what chosen times are worth."""
    figures = made["figures"]
    tests = figures["tests"]
    said = [*filter(None, [no_better_said(made)]), policy_sentence(made)]
    spec, held = spec_of(made), tests[best_constant(tests)]
    for name in measured(tests):
        mine, chance, always = (100 * test["measures"][name] for test in (tests["imagination"], tests["random"], held))
        said.append(
            f"The {spec.subject} is {name} for {mine:.0f} % of the time; under random actions for {chance:.0f} %, "
            f"under {held['action']} alone for {always:.0f} %."
        )
    if "visits" in figures:
        said.append(schedule_sentence(figures["visits"], spec))
    return said


def no_better_said(made: dict[str, Any]) -> str | None:
    """That the learned policy is not above the better of random and constant actions, and what to try; or None."""
    tests = made["figures"]["tests"]
    mine, others = tests["imagination"], [tests["random"], tests[best_constant(tests)]]
    rival = max(others, key=lambda test: float(objective_of(test)))
    if mine["low"] > rival["high"]:
        return None
    name = "random actions" if rival["kind"] == "random" else f"always {rival['action']}"
    return (
        f"The learned policy is no better than {name}: {kind_of_return(spec_of(made))} {objective_of(mine):.4g} (95 % "
        f"{mine['low']:.4g} to {mine['high']:.4g}), {name} {objective_of(rival):.4g} "
        f"({rival['low']:.4g} to {rival['high']:.4g}). What to try next: {'; '.join(remedies(made))}."
    )


def remedies(made: dict[str, Any]) -> list[str]:
    """What may help a policy that has learned nothing, as options of the command where there are some."""
    config, test = made["config"], made["figures"]["tests"]["random"]
    found = [f"more real episodes (--episodes {2 * config['episodes']})"]
    if config["rounds"]:
        found.append(f"more Dyna rounds (--rounds {2 * config['rounds']})")
    elif not (config["latent_policy"] or config["schedule"] or config["paper"]):
        found.append("Dyna rounds, in which the policy collects and the models are refitted (--rounds 5)")
    found.append(f"more imagined episodes (--learn.episodes {2 * config['learn']['episodes']})")
    if config["ensemble_size"] < ENOUGH_MODELS:
        found.append(f"more models (--ensemble-size {ENOUGH_MODELS})")
    if not (config["latent_policy"] or config["rounds"]):
        found.append("the model's latent state for the policy, if the state is only partly observed (--latent-policy)")
    size = abs(objective_of(test)) / max(test["decisions"], 1) * config["learn"]["dqn"]["reward_scale"]
    if not 0.01 <= size <= 100:
        found.append(
            f"another reward scale (--learn.dqn.reward-scale; scaled rewards are of size {size:.1g}, and learning works "
            "best near 1)"
        )
    return found


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
        order = "above" if mine["low"] > test["high"] else "about level with"
        order = "below" if mine["high"] < test["low"] else order
        parts.append(f"{order} {name} ({objective_of(test):.4g})")
    at = f" at a decision {every(made['config']['schedule'], spec.time_unit)}" if made["config"]["schedule"] else ""
    return (
        f"Learned from {real['imagination']:,} real episodes and tested on {mine['episodes']} new ones{at}, the policy "
        f"has a mean {kind_of_return(spec)} of {objective_of(mine):.4g}: {', '.join(parts)}."
    )


def schedule_sentence(found: dict[str, Any], spec: Spec) -> str:
    """What the times chosen at the lowest price are worth beside fixed intervals, and what was gained by them."""
    mine, best, rarer = compared(found)
    many = f"{spec.decision_name}s"
    known = f" (models of {found['real_episodes']:,} real episodes)" if "real_episodes" in found else ""
    price = f" at a price of {mine['price']:g} each" if mine["price"] else ""
    rivals = [
        f"{every(best['interval'], spec.time_unit)} {number(objective_of(best))} with {best['decisions']:.0f} {many}"
    ]
    if rarer is not None and rarer is not best:
        rivals.append(
            f"best fixed interval with as few {many} {number(objective_of(rarer))}, "
            f"{every(rarer['interval'], spec.time_unit)}"
        )
    what = (
        f"{mine['decisions']:.0f} {many}{price} in {mine['time']:.4g} {spec.time_unit}s, {accrued(spec)} "
        f"{number(objective_of(mine))} ({'; '.join(rivals)})"
    )
    gains = gained(mine, best, rarer, spec)
    if not gains:
        return f"Choosing {spec.decision_name} times gained nothing here{known}: {what}."
    return f"Model-chosen {spec.decision_name} times{known}: {what}. Gained: {' and '.join(gains)}."


def compared(found: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None]:
    """The row chosen at the lowest price, the best fixed interval, and the best with no more decisions, if any."""
    mine, rivals = found["rows"][next(iter(found["intervals"]))], list(fixed_rivals(found).values())
    rarer = [row for row in rivals if row["decisions"] <= mine["decisions"]]
    return mine, max(rivals, key=objective_of), max(rarer, key=objective_of) if rarer else None


def gained(mine: dict[str, Any], best: dict[str, Any], rarer: dict[str, Any] | None, spec: Spec) -> list[str]:
    """In words: more return, or fewer decisions at the same return, by the 95 % interval of the chosen times."""
    many, most = f"{spec.decision_name}s", objective_of(best)
    if mine["low"] > most:
        return ["more return than at any fixed interval"]
    found = []
    if mine["high"] >= most and round(mine["decisions"]) < round(best["decisions"]):
        fewer = best["decisions"] - mine["decisions"]
        found.append(f"{fewer:.0f} fewer {many} at the return of the best fixed interval")
    if rarer is not None and mine["low"] > objective_of(rarer):
        found.append(f"more return than at any fixed interval with as few {many}")
    return found


def accrued(spec: Spec) -> str:
    """The return that schedules are compared by."""
    if spec.finest == 1 and spec.time_unit in PER_UNIT:
        return f"{PER_UNIT[spec.time_unit]}-accrued return"
    return f"return accrued {every(spec.finest, spec.time_unit)}"


def number(value: float) -> str:
    """Three digits; large numbers in powers of ten."""
    if abs(value) < 1e5:
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return f"{value:.2e}".replace("e+0", "e").replace("e+", "e")


def kind_of_return(spec: Spec) -> str:
    """In words."""
    return "discounted return" if spec.discounted_objective else "return"


def measured(results: dict[str, Any]) -> list[str]:
    """Names of what the task measures besides the return."""
    return list(dict.fromkeys(name for result in results.values() for name in result["measures"]))


def every(interval: float, unit: str) -> str:
    """An interval in words: every day, every 5 days."""
    return f"every {unit}" if interval == 1 else f"every {interval:g} {unit}s"


def fixed_rivals(found: dict[str, Any]) -> dict[str, Any]:
    """For each fixed interval the better of two policies: the one for chosen intervals, and the run's own."""
    return {
        name: max((found["rows"][name], found["usual"][name]), key=objective_of)
        for name in of_kind(found["usual"], "fixed")
    }

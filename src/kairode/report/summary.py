"""Results of a run in sentences."""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kairode.data.describe import spec_from_dict
from kairode.envs.core import Spec
from kairode.errors import MALFORMED, KairodeError
from kairode.result import objective_of, short_number
from kairode.runs.labels import best_constant, of_kind
from kairode.text import short_name

ENOUGH_MODELS = 5
"""Ensemble size above which more models are not recommended."""
PER_UNIT = {"hour": "hourly", "day": "daily", "week": "weekly"}


@contextlib.contextmanager
def using_record(path: Path | str) -> Iterator[None]:
    """Name the record, or the folder of records, if something in it is missing or of another kind than expected."""
    try:
        yield
    except KairodeError:
        raise
    except MALFORMED as error:
        what = short_name(f"{type(error).__name__}: {error}")
        raise KairodeError(
            f"{path} is incomplete or was edited ({what}): restore it, or run its command again."
        ) from error


def spec_of(record: dict[str, Any]) -> Spec:
    return spec_from_dict(record["figures"]["spec"])


def summary_sentences(record: dict[str, Any]) -> list[str]:
    """A warning if the policy is no better than simple ones; its return, its measures, the gain of chosen times."""
    figures = record["figures"]
    tests = figures["tests"]
    warnings = [no_better_sentence(record), _as_warning(interval_warning(figures.get("intervals")))]
    sentences = [*filter(None, warnings), policy_sentence(record)]
    spec, constant = spec_of(record), tests[best_constant(tests)]
    for name in measured(tests):
        mine, chance, always = (
            percentages(test, [name])[0] for test in (tests["imagination"], tests["random"], constant)
        )
        sentences.append(
            f"The {spec.subject} is {name} {mine} of the time (random actions {chance}, constant "
            f"{constant['action']} {always})."
        )
    if "visits" in figures:
        sentences.append(schedule_sentence(figures["visits"], spec))
    return sentences


def no_better_sentence(record: dict[str, Any]) -> str | None:
    """A warning with suggestions if the policy is not better than random and constant actions; otherwise None."""
    tests = record["figures"]["tests"]
    rivals = {"random actions": tests["random"], (constant := best_constant(tests)): tests[constant]}
    return no_better(tests["imagination"], rivals, suggestions(record), kind_of_return(spec_of(record)))


def no_better(
    mine: dict[str, Any], rivals: dict[str, dict[str, Any]], suggested: list[str], kind: str = "return"
) -> str | None:
    """A warning with suggestions if a result is not clearly better than the best of its rivals; otherwise None."""
    name, rival = max(rivals.items(), key=lambda item: float(objective_of(item[1])))
    if mine["low"] > rival["high"]:
        return None
    return (
        f"The learned policy is no better than {name}: {kind} {with_interval(mine, '95 % CI ')}, {name} "
        f"{with_interval(rival)}. Suggestions: {'; '.join(suggested)}."
    )


def dyna_warnings(record: dict[str, Any]) -> list[str]:
    """Warnings about a run of `kairode dyna`; those of older versions were not compared with simple policies."""
    figures = record["figures"]
    failed = None
    if tests := figures.get("tests"):
        rivals = {"random actions": tests["random"], (constant := best_constant(tests)): tests[constant]}
        kind = tests["random"]["objective"].replace("_", " ")
        failed = no_better(tests["imagination"], rivals, dyna_suggestions(record), kind)
    return [*filter(None, [failed, _as_warning(interval_warning(figures.get("intervals")))])]


def _as_warning(text: str | None) -> str | None:
    return None if text is None else f"Warning: {text}."


def interval_warning(
    checks: list[dict[str, Any]] | None,
    remedy: str = "fit longer, or increase the timer's weight (`kairode fit --weights.timer`)",
) -> str | None:
    """What to warn of if the intervals sampled from the models' timers differ from the data's (`IntervalCheck`)."""
    far = [check for check in checks or () if check["far"]]
    if not far:
        return None
    return (
        f"the intervals that the models sample (mean {short_number(far[0]['drawn_mean'], 3)}) differ from the "
        f"data's (mean {short_number(far[0]['mean'], 3)}; distance above {far[0]['threshold']:g} beyond chance), so a "
        f"policy learned in imagination is trained on other intervals than the system's: {remedy}"
    )


def suggestions(record: dict[str, Any]) -> list[str]:
    """What may help a policy that has not learned, as options of the command."""
    config, test = record["config"], record["figures"]["tests"]["random"]
    found = [f"more real episodes (--episodes {2 * config['episodes']})"]
    if config["rounds"]:
        found.append(f"more Dyna rounds (--rounds {2 * config['rounds']})")
    elif not (config["latent_policy"] or config["schedule"] or config["paper"]):
        found.append("Dyna rounds (--rounds 5)")
    found.append(f"more imagined episodes (--learn.episodes {2 * config['learn']['episodes']})")
    if config["ensemble_size"] < ENOUGH_MODELS:
        found.append(f"more models (--ensemble-size {ENOUGH_MODELS})")
    if not (config["latent_policy"] or config["rounds"]):
        found.append("a policy conditioned on the latent state, for partially observed systems (--latent-policy)")
    return found + scale_suggestion(test, config["learn"]["dqn"]["reward_scale"], "--learn.dqn.reward-scale")


def dyna_suggestions(record: dict[str, Any]) -> list[str]:
    """The same for `kairode dyna`."""
    config, test = record["config"], record["figures"]["tests"]["random"]
    found = [
        f"more real episodes (--initial-episodes {2 * config['initial_episodes']})",
        f"more rounds (--rounds {2 * config['rounds'] or 5})",
        f"more imagined episodes (--imagined-episodes {2 * config['imagined_episodes']})",
    ]
    return found + scale_suggestion(test, config["dqn"]["reward_scale"], "--dqn.reward-scale")


def scale_suggestion(test: dict[str, Any], scale: float, option: str) -> list[str]:
    size = abs(objective_of(test)) / max(test["decisions"], 1) * scale
    if 0.01 <= size <= 100:
        return []
    return [f"another reward scale ({option}; scaled rewards are about {size:.1g}, learning works best near 1)"]


def policy_sentence(record: dict[str, Any]) -> str:
    figures, spec = record["figures"], spec_of(record)
    tests, real = figures["tests"], figures["real_episodes"]
    mine, constant = tests["imagination"], best_constant(tests)
    same = len({objective_of(test) for test in of_kind(tests, "constant").values()}) == 1
    always = "every constant policy" if same else f"the best constant policy, {constant}"
    rivals = {"random actions": tests["random"], always: tests[constant]}
    if "model-free" in tests:
        rivals[f"the model-free policy of {real['model-free']:,} real episodes"] = tests["model-free"]
    parts = []
    for name, test in rivals.items():
        order = "above" if mine["low"] > test["high"] else "similar to"
        order = "below" if mine["high"] < test["low"] else order
        parts.append(f"{order} {name} ({short_number(objective_of(test))})")
    interval = record["config"]["schedule"]
    at = f" with a decision {every_interval(interval, spec.time_unit)}" if interval else ""
    return (
        f"Learned from {real['imagination']:,} real episodes and tested on {mine['episodes']} new ones{at}, the policy "
        f"has a mean {kind_of_return(spec)} of {short_number(objective_of(mine))}: {', '.join(parts)}."
    )


def schedule_sentence(found: dict[str, Any], spec: Spec) -> str:
    """Results of the schedule chosen at the lowest price compared with fixed intervals, and its gains."""
    mine, best, rarer = compare_with_fixed(found)
    many = f"{spec.decision_name}s"
    models = f"; models of {found['real_episodes']:,} real episodes" if "real_episodes" in found else ""
    known = f" (a second policy, learned for them{models})"
    price = f" at a price of {mine['price']:g} each" if mine["price"] else ""
    rivals = [
        f"{every_interval(best['interval'], spec.time_unit)} {compact_number(objective_of(best))} "
        f"with {best['decisions']:.0f} {many}"
    ]
    if rarer is not None and rarer is not best:
        rivals.append(
            f"best fixed interval with as few {many} {compact_number(objective_of(rarer))}, "
            f"{every_interval(rarer['interval'], spec.time_unit)}"
        )
    what = (
        f"{mine['decisions']:.0f} {many}{price} in {mine['time']:.4g} {spec.time_unit}s, {accrued_return_name(spec)} "
        f"{compact_number(objective_of(mine))} ({'; '.join(rivals)})"
    )
    gains = gained(mine, best, rarer, spec)
    if not gains:
        return f"Choosing {spec.decision_name} times gained nothing here{known}: {what}."
    return f"Model-chosen {spec.decision_name} times{known}: {what}. Gained: {' and '.join(gains)}."


def compare_with_fixed(found: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None]:
    """The schedule chosen at the lowest price, the best fixed interval, and the best with as few decisions, if any."""
    mine, rivals = found["rows"][next(iter(found["intervals"]))], list(fixed_rivals(found).values())
    rarer = [row for row in rivals if row["decisions"] <= mine["decisions"]]
    return mine, max(rivals, key=objective_of), max(rarer, key=objective_of) if rarer else None


def gained(mine: dict[str, Any], best: dict[str, Any], rarer: dict[str, Any] | None, spec: Spec) -> list[str]:
    """A higher return, or fewer decisions at the same return, by the 95 % interval of the chosen times."""
    many, most = f"{spec.decision_name}s", objective_of(best)
    if mine["low"] > most:
        return ["a higher return than any fixed interval"]
    found = []
    if mine["high"] >= most and round(mine["decisions"]) < round(best["decisions"]):
        fewer = best["decisions"] - mine["decisions"]
        found.append(f"{fewer:.0f} fewer {many} at the return of the best fixed interval")
    if rarer is not None and mine["low"] > objective_of(rarer):
        found.append(f"a higher return than any fixed interval with as few {many}")
    return found


def accrued_return_name(spec: Spec) -> str:
    """Name of the return that schedules are compared by."""
    if spec.finest == 1 and spec.time_unit in PER_UNIT:
        return f"{PER_UNIT[spec.time_unit]}-accrued return"
    return f"return accrued {every_interval(spec.finest, spec.time_unit)}"


def compact_number(value: float) -> str:
    """Three digits; large numbers in powers of ten."""
    if abs(value) >= 1e5:
        return f"{value:.2e}".replace("e+0", "e").replace("e+", "e")
    return f"{value:.0f}" if abs(value) >= 100 or abs(value) < 1e-6 else f"{value:.3g}"


def kind_of_return(spec: Spec) -> str:
    return "discounted return" if spec.discounted_objective else "return"


def measured(results: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(name for result in results.values() for name in result["measures"]))


def percentages(result: dict[str, Any], measures: Iterable[str]) -> list[str]:
    return [f"{100 * result['measures'][name]:.0f} %" for name in measures]


def with_interval(result: dict[str, Any], label: str = "") -> str:
    """The objective with its 95 % interval, under a label where the context has none."""
    low, high = (short_number(result[name], 3) for name in ("low", "high"))
    return f"{short_number(objective_of(result))} ({label}{low} to {high})"


def every_interval(interval: float, unit: str) -> str:
    """An interval as text: every day, every 5 days."""
    return f"every {unit}" if interval == 1 else f"every {interval:g} {unit}s"


def fixed_rivals(found: dict[str, Any]) -> dict[str, Any]:
    """For each fixed interval the better of two policies: the schedule policy and the run's main policy."""
    return {
        name: max((found["rows"][name], found["usual"][name]), key=objective_of)
        for name in of_kind(found["usual"], "fixed")
    }

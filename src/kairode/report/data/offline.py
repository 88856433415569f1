"""A run on a table: what it found in sentences, as JSON, and as a page."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from kairode.config.offline import ESTIMATORS
from kairode.report import page
from kairode.report.data.advice import advice_figure
from kairode.report.data.inspect import inspection_figure, summary
from kairode.report.data.inspect import tables as inspection_tables
from kairode.report.figures import DECISION, FIXED, LINE, finish_axes, panel
from kairode.report.fits import NO_BETTER, calibration_figure, calibration_sentence, calibration_warning, fit_table
from kairode.report.summary import interval_warning, spec_of
from kairode.report.table import Column, Row, Table, print_table, to_html
from kairode.result import short_number
from kairode.text import MOST, listed, say, short_name


def summary_json(record: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What `kairode learn --json` prints."""
    estimates, figures = record["figures"]["estimates"], record["figures"]
    return {
        "policy": estimates["policy"],
        "behaviour": estimates["behaviour"],
        "lower_bound": estimates["lower_bound"],
        "gain": estimates.get("gain"),
        "chosen": figures["candidates"][0]["name"],
        "episodes": figures["episodes"],
        "warnings": known_warnings(record),
        "run": str(folder),
    }


LONGER = "fit longer (--fit-iterations)"
CANDIDATES = (
    "Estimates from the episodes that the policy was chosen by; the first one was chosen. The estimates from the "
    "records rule out what is clearly worse; among the others, the best has the highest lower end of the return in the "
    "models."
)


def sentences(record: dict[str, Any]) -> list[str]:
    """What was learned, and how sure that is."""
    figures = record["figures"]
    estimates, spec = figures["estimates"], spec_of(record)
    behaviour, bound = estimates["behaviour"], estimates["lower_bound"]
    kind = "discounted return" if spec.discount < 1 else "return"
    known = {name: one for name, one in estimates["policy"].items() if one["mean"] is not None}
    means = [one["mean"] for one in known.values()]
    found = [
        f"Learned from {figures['episodes']['learn']:,} episodes of {short_name(record['config']['source'])} by "
        f"'{figures['candidates'][0]['name'].split()[0]}', chosen by {figures['episodes']['choose']:,} others."
    ]
    if not means:
        return [*found, "No estimator has a value for this policy: the records do not show what it does."]
    ends = list(dict.fromkeys(short_number(one) for one in (min(means), max(means))))
    spread = ends[0] if len(ends) == 1 else f"between {ends[0]} and {ends[1]}"
    by = listed(ESTIMATORS[name] for name in known)
    found.append(
        f"On {figures['episodes']['test']:,} test episodes, what was done has a mean {kind} of "
        f"{_interval(behaviour)}; estimates of the policy's are {spread} ({by})."
    )
    if bound is None:
        verdict = "There is no lower bound: the records do not show what the policy does."
    elif bound > behaviour["high"]:
        verdict = f"Even the lowest of the intervals, from {short_number(bound)}, is above what was done."
    else:
        verdict = (
            f"The lowest of the policy's intervals begins at {short_number(bound)}, which is not above the upper end "
            f"of the interval of what was done, {short_number(behaviour['high'])}."
        )
    return [*found, verdict, *_gain_sentence(estimates.get("gain"))]


def _gain_sentence(gain: dict[str, Any] | None) -> list[str]:
    """Whether the policy is better, by the estimate that is compared on the same episodes."""
    if gain is None or gain["low"] is None:
        return []
    better = (
        "so that the policy is better if that estimate can be trusted"
        if gain["low"] > 0
        else "so that the records do not show that the policy is better"
    )
    return [f"The doubly robust estimate differs from what was done by {_interval(gain)}, {better}."]


def _interval(one: dict[str, Any]) -> str:
    if one["low"] is None:
        return "unknown" if one["mean"] is None else short_number(one["mean"])
    return f"{short_number(one['mean'])} ({short_number(one['low'])} to {short_number(one['high'])})"


def print_offline(record: dict[str, Any]) -> None:
    say(*sentences(record))
    print_table(estimate_table(record))
    found = record["figures"]["differences"]
    if found is not None:
        if "agreement" in found:
            say(f"The policy chooses what was done in {found['agreement']:.0%} of the decisions:")
        print_table(difference_table(found))


def estimate_table(record: dict[str, Any]) -> Table:
    """Estimates of the policy, and the return of what was done."""
    estimates = record["figures"]["estimates"]
    rows = [Row.of([ESTIMATORS.get(name, name), *_cells(one)]) for name, one in estimates["policy"].items()]
    rows.append(Row.of(["what was done", *_cells(estimates["behaviour"])], marked=True))
    return Table.of(["return on test episodes", "mean", "95 % from", "to"], rows)


def _cells(one: dict[str, Any]) -> list[str | None]:
    return [None if one[name] is None else short_number(one[name]) for name in ("mean", "low", "high")]


def difference_table(found: dict[str, Any]) -> Table:
    """Shares of the actions, and the states in which the policy chooses each of them."""
    if "controls" in found:
        return _control_table(found["controls"])
    actions = found["actions"]
    often = sorted(actions, key=lambda name: -actions[name]["policy"])[:MOST]
    rows = []
    for name in often:
        one = actions[name]
        states = (
            f"{short_name(variable)} {_level(state['apart'])} ({short_number(state['mean'], 3)})"
            for variable, state in one["states"].items()
            if abs(state["apart"]) > 0.2
        )
        done = "; ".join(f"{short_name(other)} ({count:,})" for other, count in list(one["done_instead"].items())[:3])
        rows.append([short_name(name), f"{one['records']:.1%}", f"{one['policy']:.1%}", "; ".join(states), done])
    wide = [Column(head, wrap=True) for head in ("where the policy chooses it", "done there instead")]
    return Table.of(["action", "records", "policy", *wide], rows)


def _control_table(controls: dict[str, Any]) -> Table:
    """Means of continuous actions, and what their change goes with."""
    rows = []
    for name, one in list(controls.items())[:MOST]:
        states = (
            f"{short_name(variable)} {'high' if size > 0 else 'low'} (correlation {size:.2f})"
            for variable, size in one["states"].items()
            if abs(size) > 0.2
        )
        means = (short_number(one[key], 3) for key in ("records", "policy", "change"))
        rows.append([short_name(name), *means, f"{one['raised']:.0%}", "; ".join(states)])
    where = Column("raised most where", wrap=True)
    return Table.of(["action", "records, mean", "policy, mean", "mean change", "raised in", where], rows)


def _level(apart: float) -> str:
    size = "much " if abs(apart) > 1 else ""
    return f"{size}{'above' if apart > 0 else 'below'} its mean"


def estimate_figure(record: dict[str, Any]) -> Figure:
    """Estimates with their intervals, beside the return of what was done."""
    estimates = record["figures"]["estimates"]
    known = {ESTIMATORS.get(name, name): one for name, one in estimates["policy"].items() if one["low"] is not None}
    figure, axes = panel(8, 1.2 + 0.42 * (len(known) + 1))
    done = estimates["behaviour"]
    axes.axvspan(done["low"], done["high"], color=FIXED, alpha=0.25, lw=0)
    for y, (name, one) in enumerate([*known.items(), ("what was done", done)]):
        color = FIXED if name == "what was done" else LINE
        axes.plot([one["low"], one["high"]], [y, y], color=color, lw=2.5, solid_capstyle="round")
        axes.plot(one["mean"], y, "o", color=color, ms=6)
    if estimates["lower_bound"] is not None:
        axes.axvline(estimates["lower_bound"], color=DECISION, lw=1, ls="--", label="lower bound of the policy")
    axes.set_yticks(range(len(known) + 1), [*known, "what was done"])
    axes.invert_yaxis()
    spec = spec_of(record)
    finish_axes(axes, "mean discounted return" if spec.discount < 1 else "mean return", "")
    return figure


def candidate_table(record: dict[str, Any]) -> Table:
    """All candidates with the estimates that they were chosen by."""
    found = record["figures"]["candidates"]
    names = [*found[0].get("policy", {})]
    rows = []
    for i, one in enumerate(found):
        bound = one.get("lower_bound")
        means = [_cells(one["policy"][name])[0] for name in names]
        rows.append(Row.of([one["name"], None if bound is None else short_number(bound), *means], marked=i == 0))
    heads = ["candidate", "lower bound", *(ESTIMATORS.get(name, name) for name in names)]
    return Table.of(heads, rows, CANDIDATES)


def page_parts(record: dict[str, Any]) -> list[str]:
    """The sections of the page, without that of its reproduction."""
    figures = record["figures"]
    lead = sentences(record)
    parts = [
        *(page.paragraph(text, "lead") for text in lead),
        page.facts(_facts(record)),
        _data_section(figures["table"]),
        _model_section(record),
        page.section(
            "Policy",
            page.picture(
                estimate_figure(record),
                "estimates",
                "Off-policy estimates of the policy's return with 95 % intervals, beside the return of what was done.",
                "Estimates are from test episodes that nothing was learned from or chosen by. Each estimator errs in "
                "its own way; trust them where they agree.",
            ),
            to_html(estimate_table(record)),
            page.folded("All candidates", to_html(candidate_table(record))),
        ),
        _difference_section(record),
        _advice_section(record),
        page.section("What is not known", *_list(_unknown(record))),
    ]
    return [*filter(None, parts)]


def _facts(record: dict[str, Any]) -> list[tuple[str, str]]:
    figures = record["figures"]
    estimates, found = figures["estimates"], figures["table"]
    bound = estimates["lower_bound"]
    return [
        (f"{found['episodes']:,} episodes", f"with {found['decisions']:,} decisions"),
        (_cells(estimates["behaviour"])[0] or "unknown", "mean return of what was done, on test episodes"),
        ("none" if bound is None else short_number(bound), "lower bound of the policy's return"),
        (f"{len(_unknown(record)):,}", "things to know before it is used"),
    ]


def _data_section(found: dict[str, Any]) -> str:
    words = "Histograms of lengths, intervals, rewards and returns; missing values by variable; shares of the actions."
    return page.section(
        "Data",
        page.paragraph(summary(found)),
        *_list(found["notes"]),
        page.picture(inspection_figure(found), "distributions", words),
        page.folded("Tables", "".join(map(to_html, inspection_tables(found)))),
    )


def _model_section(record: dict[str, Any]) -> str:
    fit, config = record["figures"]["fit"], record["config"]
    table = fit_table({"figures": fit, "config": {**config, "seeds": config["ensemble_size"]}}, spec_of(record))
    share = fit["mean"] / fit["variance"] if fit.get("variance") else None
    text = (
        f"{config['ensemble_size']} {config['model']} models predict whole test episodes from their first observation "
        f"with a mean squared error of {fit['mean']:.3g} (standardised variables)"
    )
    text += "." if share is None else f": {share:.0%} of that of predicting the mean of each variable."
    how = record["figures"]["reward"]
    reward = f"The reward is the expression {how}." if how != "learned" else "The reward was learned from the records."
    parts = [page.paragraph(text), page.paragraph(reward, "soft"), to_html(table)]
    if fit.get("calibration"):
        words = "Errors of the ensemble against the spread of its members, and the coverage of its intervals."
        drawn = calibration_figure(fit["calibration"], "The ensemble on test episodes")
        parts += [page.paragraph(calibration_sentence(fit["calibration"])), page.picture(drawn, "calibration", words)]
    return page.section("Models", *parts)


def _difference_section(record: dict[str, Any]) -> str:
    found = record["figures"]["differences"]
    if found is None:
        return ""
    text = (
        "How the policy's continuous actions differ from those of the records in the same states: their means, the "
        "mean size of the change, the share of the decisions in which it is an increase, and the variables that the "
        "change is correlated with. These are correlations, not causes."
        if "controls" in found
        else _agreement(found)
    )
    return page.section("Where it differs from what was done", page.paragraph(text), to_html(difference_table(found)))


def _agreement(found: dict[str, Any]) -> str:
    return (
        f"The policy chooses what was done in {found['agreement']:.0%} of the decisions. The table lists how often "
        "each action is in the records and in the policy's choices, how the states in which the policy chooses it "
        "differ from those of all decisions, and what was done there instead. These are differences of means, not "
        "causes."
    )


def _advice_section(record: dict[str, Any]) -> str:
    found = record["figures"]["advice"]
    if found is None:
        return ""
    words = "The history of a test episode, and the course that the models predict under the advised action."
    return page.section(
        "Advice for one episode",
        *_list(found["text"].splitlines()),
        page.picture(advice_figure(found), "advice", words),
    )


def _unknown(record: dict[str, Any]) -> list[str]:
    return [*(f"{text[0].upper()}{text[1:]}." for text in known_warnings(record)), *ALWAYS]


def known_warnings(record: dict[str, Any]) -> list[str]:
    """All warnings of the run, each once, without full stops."""
    figures = record["figures"]
    said = (*figures["estimates"]["warnings"], *figures["warnings"], *model_warnings(record))
    return _distinct(said)


def _distinct(texts: Iterable[str]) -> list[str]:
    """Each once, without full stops, whether or not it begins with a capital letter."""
    found: dict[str, str] = {}
    for text in texts:
        found.setdefault(text[:1].lower() + text[1:].rstrip("."), text.rstrip("."))
    return [*found.values()]


def model_warnings(record: dict[str, Any]) -> list[str]:
    """What to warn of in the fit of the models, by which the policy was learned and chosen."""
    fit, found = record["figures"]["fit"], []
    share = fit["mean"] / fit["variance"] if fit.get("variance") and fit["mean"] is not None else 0.0
    if share >= NO_BETTER:
        found.append(
            f"the models predict whole test episodes hardly better than the mean of each variable ({share:.0%} of its "
            f"error), and the policy was learned in their imagination and chosen by their estimates: {LONGER}, or look "
            "for the variables that matter"
        )
    return [
        *found,
        *filter(None, [interval_warning(fit.get("intervals"), LONGER), calibration_warning(fit.get("calibration"))]),
    ]


ALWAYS = (
    "Whether all that the actions were chosen by is in the table. If something else was known to those who chose them, "
    "and it matters for the outcome, every figure on this page may be wrong; no method can tell from the table.",
    "What happens in states and under actions that the records do not show.",
)
"""What is never known from records."""


def _list(texts: Iterable[str]) -> list[str]:
    return [page.paragraph(text) for text in texts]

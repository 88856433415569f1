"""The page of a run, made from its record alone."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from kairode.envs.core import Spec
from kairode.errors import KairodeError
from kairode.report import page
from kairode.report.course import course_figure
from kairode.report.mpc import control_said, control_table, mean_and_std, mpc_learning_figure
from kairode.report.runs import learning_figure, map_figure, policy_table, tradeoff_figure
from kairode.report.summary import (
    compared,
    every,
    gained,
    kind_of_return,
    measured,
    spec_of,
    summary_sentences,
)
from kairode.report.table import Row, Table, to_html
from kairode.result import objective_of
from kairode.runs.labels import best_constant, exact_number, of_kind
from kairode.runs.record import read_record


def write_run_page(folder: Path) -> Path:
    """Write report.html beside the record of a run."""
    path = folder / "record.json"
    if not path.exists():
        raise KairodeError(f"there is no record in {folder}: give a folder that `kairode run` finished.")
    made = read_record(path)
    if made.get("kind") == "control":
        return write_control_page(folder, made)
    if made.get("kind") != "run" or "spec" not in made["figures"]:
        raise KairodeError(f"{folder / 'record.json'} is of kind '{made.get('kind')}': there is no page for it.")
    if not isinstance(made["figures"].get("real_episodes"), dict):
        raise KairodeError(f"{folder / 'record.json'} is of an older version: run its command again in a new folder.")
    config, spec = made["config"], spec_of(made)
    title = f"{spec.name}: a policy learned in the imagination of {config['model']} models"
    parts = [
        *(page.paragraph(sentence, "lead") for sentence in summary_sentences(made)),
        page.facts(headline(made)),
        what_was_run(made),
        tests(made),
        predictions(made),
        learning(made),
        policy(made),
        visits(made),
        again(made),
    ]
    return page.write_page(folder / "report.html", title, filter(None, parts))


def write_control_page(folder: Path, made: dict[str, Any]) -> Path:
    """The page of a run with controls."""
    config, (middle, _) = made["config"], mean_and_std(made)
    chance = objective_of(made["figures"]["random"])
    words = "Return of the episodes lived through while learning, by decisions: mean and spread over the seeds."
    drawn = mpc_learning_figure({f"{config['env']}, {config['model']}": made})
    parts = [
        page.paragraph(control_said(made), "lead"),
        page.facts(
            [
                (f"{middle:.4g}", f"mean return of a test episode; {chance:.4g} of random actions"),
                (f"{config['decisions']:,}", f"real decisions of each seed; seeds: {config['seeds']}"),
            ]
        ),
        page.section("How good it is", to_html(control_table(made, caption="Test episodes of each seed."))),
        page.section("Learning", page.picture(drawn, "learning", words)),
        again(made),
    ]
    return page.write_page(folder / "report.html", f"{config['env']}: steered by {config['model']}", parts)


def headline(made: dict[str, Any]) -> list[tuple[str, str]]:
    """A few numbers: what was gained, how many visits are saved."""
    figures, spec = made["figures"], spec_of(made)
    all_tests = figures["tests"]
    mine, held = all_tests["imagination"], best_constant(all_tests)
    found = []
    for name in measured(all_tests):
        share, chance, always = (
            f"{100 * test['measures'][name]:.0f}\u00a0%" for test in (mine, all_tests["random"], all_tests[held])
        )
        words = f"of the time, against {chance} under random actions and {always} under the best constant policy"
        found.append((f"{share} {name}", words))
    kind = kind_of_return(spec)
    score, rival = objective_of(mine), objective_of(all_tests[held])
    if min(score, rival) > 0 and score > rival:
        found.append((f"{score / rival:.3g} times", f"the {kind} of {held}, the best constant policy"))
    else:
        found.append((f"{score:.3g}", f"{kind}, against {rival:.3g} of {held}, the best constant policy"))
    seen = figures["real_episodes"]["imagination"]
    found.append((f"{seen:,} real episodes", "are what models and policy learned from"))
    if "visits" in figures:
        mine, best, rarer = compared(figures["visits"])
        gains = gained(mine, best, rarer, spec)
        words = f"chosen by the model: {' and '.join(gains)}" if gains else "chosen by the model: nothing was gained"
        fixed = f"{every(best['interval'], spec.time_unit)}, {best['decisions']:.0f} {spec.decision_name}s"
        found.append((f"{mine['decisions']:.0f} {spec.decision_name}s", f"{words} (best fixed interval: {fixed})"))
    return found


def what_was_run(made: dict[str, Any]) -> str:
    """The stages of the run, in words."""
    config, figures, spec = made["config"], made["figures"], spec_of(made)
    size, per_round = config["ensemble_size"], config["episodes_per_round"]
    said = [f"{config['episodes']:,} real episodes of '{spec.name}' were collected with random actions."]
    if config["rounds"]:
        said.append(
            f"{size} {config['model']} models were fitted to them and a policy was learned in their imagination. Then, in "
            f"each of {config['rounds']} Dyna rounds, the policy collected {per_round} more episodes, the models were "
            f"refitted and the policy learned on: {figures['real_episodes']['imagination']} real episodes in all."
        )
    else:
        said.append(
            f"{size} {config['model']} model{'s' * (size > 1)} were fitted to them (open-loop test error "
            f"{figures['fit']['mean']:.3g}), and a policy was learned in {config['learn']['episodes']:,} imagined episodes."
        )
    if "visits" in figures and config["schedule_refits"]:
        said.append(
            f"For {spec.decision_name} times, another policy was learned under the schedule that it chooses itself; with "
            f"it, {config['schedule_refits'] * per_round} more real episodes were collected, and the models, refitted to "
            f"all {figures['visits']['real_episodes']}, chose the {spec.decision_name} times that are tested."
        )
    said.append("All tests are on the real system, on episodes that nothing was learned from.")
    if config["schedule"]:
        said.append(
            f"Policies were learned for, and tested at, a decision {every(config['schedule'], spec.time_unit)}."
        )
    variables = ", ".join(variable.name for variable in spec.observations)
    last = f"Observed: {variables}. Actions: {', '.join(figures['spec']['actions']['names'])}."
    return page.section("What was run", page.paragraph(" ".join(said)), page.paragraph(last, "soft"))


def tests(made: dict[str, Any]) -> str:
    """Every policy on the same episodes."""
    table = policy_table(made)
    number = made["figures"]["tests"]["imagination"]["episodes"]
    sentences = (sentence for name, sentence in spec_of(made).measures if name in table.headers)
    caption = (
        f"{number} test episodes each; 95 % bootstrap intervals of the mean. 'always' holds one action throughout; "
        f"learned policies draw one action in twenty at random. {' '.join(sentences)}"
    )
    return page.section("How good it is", to_html(dataclasses.replace(table, caption=caption)))


def predictions(made: dict[str, Any]) -> str:
    """What a model foretells of courses it has not seen."""
    courses = made["figures"]["courses"]
    parts = []
    for key, who in (("random", "random actions"), ("policy", "the learned policy")):
        steps = len(courses[key]["actions"])
        words = (
            f"Predicted and true course of one new episode under {who}: for each observed variable a line of what "
            f"happened and a dashed line of what the model foretold from the first observation, over {steps} decisions."
        )
        drawn = course_figure(courses[key], f"Under {who}")
        parts.append(page.picture(drawn, f"predicted-{key}", words))
    note = (
        "Each course is foretold from its first observation alone, with the actions and intervals that really "
        "followed; the policy itself looks at the system at every decision."
    )
    return page.section("What the model foretells", page.paragraph(note), *parts)


def learning(made: dict[str, Any]) -> str:
    """Learning curves, and the rounds as a table."""
    figures = made["figures"]
    words = "Return on the real system as learning goes on, beside model-free practice, a constant policy and chance."
    rounds = figures.get("rounds")
    listed = ""
    if rounds:
        rows = [
            (
                one["number"],
                one["real_episodes"],
                f"{one['model_error']:.3g}",
                f"{one['collected']:.3g}",
                f"{objective_of(one):.3g} ({one['low']:.3g} to {one['high']:.3g})",
            )
            for one in rounds
        ]
        heads = ("round", "real episodes", "model error", "return while collecting", "return after it (95 %)")
        listed = page.folded(
            "Every round in numbers", to_html(Table.of(heads, rows, "20 look episodes after each round."))
        )
    return page.section("Learning", page.picture(learning_figure(made), "learning", words), listed)


def policy(made: dict[str, Any]) -> str:
    """A map of what the policy does, and one whole episode under it."""
    figures, parts = made["figures"], []
    if found := figures["map"]:
        x, y = (axis["name"] for axis in found["axes"])
        words = f"Two maps over {x} and {y}: the action that the policy takes, and the return that it expects."
        more = len(figures["spec"]["observations"]) > len(found["axes"])
        caption = f"All other variables at {found['others']}." if more else ""
        parts.append(page.picture(map_figure(found), "map", words, caption))
    words = "The course of one new episode under the policy: every variable, and the actions."
    drawn = course_figure(figures["courses"]["episode"], "One new episode under the policy")
    parts.append(page.picture(drawn, "episode", words))
    return page.section("What the policy does", *parts)


def visits(made: dict[str, Any]) -> str:
    """Return against visits, and an episode at chosen times."""
    if "visits" not in made["figures"]:
        return ""
    found, spec = made["figures"]["visits"], spec_of(made)
    chosen, measures = list(found["intervals"]), measured(found["rows"])
    rows = []
    for label in (*chosen, "own", *of_kind(found["usual"], "fixed")):
        row, usual = found["rows"][label], found["usual"].get(label)
        cells = [_schedule(row, spec), f"{row['decisions']:.0f}", _cell(row), "" if usual is None else _cell(usual)]
        cells += [f"{100 * row['measures'][name]:.0f} %" for name in measures]
        rows.append(Row.of(cells, marked=label in chosen))
    heads = ["schedule", f"{spec.decision_name}s", "policy for chosen times (95 %)", "policy of the run (95 %)"]
    heads += [f"{name}, for chosen times" for name in measures]
    caption = (
        f"Rewards are counted {every(spec.finest, spec.time_unit)}, whatever the schedule, where the tests above count "
        "them at decisions; 20 test episodes each. At fixed intervals both policies of the run are tested, neither of "
        "them learned for that interval."
    )
    words = (
        f"Return against the number of {spec.decision_name}s: a curve of fixed intervals, and points for what the "
        f"model chose at each price of a {spec.decision_name}."
    )
    course = course_figure(found["course"], "One episode at chosen times")
    told = (
        f"One new episode at {spec.decision_name} times that the model chose: what happened, and what it expected "
        f"between {spec.decision_name}s."
    )
    return page.section(
        "When to look again",
        page.picture(tradeoff_figure(made), "tradeoff", words, "Numbers at the curve: the fixed interval. " + caption),
        page.picture(course, "chosen", told),
        page.folded("Every schedule in numbers", to_html(Table.of(heads, rows, caption))),
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _schedule(row: dict[str, Any], spec: Spec) -> str:
    if row["kind"] == "own":
        return "the environment's own"
    if row["kind"] == "fixed":
        return every(row["interval"], spec.time_unit)
    return f"chosen, price {exact_number(row['price'])} of a {spec.decision_name}"


def _cell(row: dict[str, Any]) -> str:
    return f"{objective_of(row):.4g} ({row['low']:.3g} to {row['high']:.3g})"


def again(made: dict[str, Any]) -> str:
    """How to make it again: command, code, machine, versions, config."""
    machine, versions = made["machine"], made["versions"]
    where = f"{machine['processor']}, {machine['cores']} cores, device {machine['device']}, {machine['system']}"
    spent = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in made.get("stages", {}).items())
    rows = [
        ("made", made["made"]),
        ("commit", made["commit"] or "not in a repository"),
        ("machine", where),
        ("time", f"{made['seconds']:.0f} s{f' ({spent})' if spent else ''}"),
        ("seed", made["seed"]),
        *((f"{name}", version) for name, version in versions.items()),
    ]
    return page.section(
        "How to make it again",
        page.code(made["command"]),
        to_html(Table.of(("what", ""), rows)),
        page.folded("The config", page.code(json.dumps(made["config"], indent=1))),
    )

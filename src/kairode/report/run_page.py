"""The page of a run, from its record."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from kairode.envs.core import Spec
from kairode.errors import KairodeError
from kairode.report import page
from kairode.report.course import course_figure
from kairode.report.data.offline import page_parts
from kairode.report.mpc import control_table, mpc_learning_figure, mpc_sentence, mpc_warning, return_over_seeds
from kairode.report.runs import learning_figure, left_out_constants, map_figure, policy_table, tradeoff_figure
from kairode.report.summary import (
    compare_with_fixed,
    every_interval,
    gained,
    kind_of_return,
    measured,
    percentages,
    spec_of,
    summary_sentences,
    using_record,
    with_interval,
)
from kairode.report.table import Column, Row, Table, to_html
from kairode.result import objective_of, short_number
from kairode.runs.folder import RunFolder
from kairode.runs.labels import best_constant, exact_number, of_kind
from kairode.runs.record import read_record
from kairode.text import MOST, listed


def write_run_page(folder: Path) -> Path:
    path = folder / "record.json"
    if not path.exists():
        raise KairodeError(f"there is no record in {folder}: give the folder of a finished `kairode run`.")
    RunFolder(folder).check()
    with using_record(path):
        return _write_run_page(folder, path)


def _write_run_page(folder: Path, path: Path) -> Path:
    record = read_record(path)
    if record.get("kind") == "control":
        return write_control_page(folder, record)
    if record.get("kind") == "offline":
        title = f"{Path(record['config']['source']).name}: a policy from records"
        return page.write_page(folder / "report.html", title, [*page_parts(record), reproduction_section(record)])
    if record.get("kind") != "run" or "spec" not in record["figures"]:
        raise KairodeError(f"{path} has kind '{record.get('kind')}', for which there is no page.")
    if not isinstance(record["figures"].get("real_episodes"), dict):
        raise KairodeError(f"{path} was written by an older version: run its command again in a new folder.")
    config, spec = record["config"], spec_of(record)
    title = f"{spec.name}: policy learned in {config['model']} models"
    parts = [
        *(page.paragraph(sentence, "lead") for sentence in summary_sentences(record)),
        page.facts(headline(record)),
        run_section(record),
        evaluation_section(record),
        predictions_section(record),
        learning_section(record),
        policy_section(record),
        decision_times_section(record),
        reproduction_section(record),
    ]
    return page.write_page(folder / "report.html", title, filter(None, parts))


def write_control_page(folder: Path, record: dict[str, Any]) -> Path:
    config, (middle, _) = record["config"], return_over_seeds(record)
    chance = objective_of(record["figures"]["random"])
    seeds = f"{config['seeds']} seed{'s' * (config['seeds'] != 1)}"
    facts = [
        (short_number(middle), f"mean test return (random actions: {short_number(chance)})"),
        (f"{config['decisions']:,}", f"real decisions per seed; {seeds}"),
    ]
    words = "Return of the training episodes by decisions: mean and standard deviation over the seeds."
    drawn = mpc_learning_figure({f"{config['env']}, {config['model']}": record})
    parts = [
        *(page.paragraph(text, "lead") for text in (mpc_warning(record), mpc_sentence(record)) if text),
        page.facts(facts),
        page.section("Evaluation", to_html(control_table(record, caption="Test episodes of each seed."))),
        page.section("Learning", page.picture(drawn, "learning", words)),
        reproduction_section(record),
    ]
    return page.write_page(folder / "report.html", f"{config['env']}: MPC with {config['model']}", parts)


def headline(record: dict[str, Any]) -> list[tuple[str, str]]:
    figures, spec = record["figures"], spec_of(record)
    all_tests = figures["tests"]
    mine, constant = all_tests["imagination"], best_constant(all_tests)
    found = []
    for name in measured(all_tests):
        share, chance, always = (
            f"{100 * test['measures'][name]:.0f}\u00a0%" for test in (mine, all_tests["random"], all_tests[constant])
        )
        found.append((f"{share} {name}", f"of the time (random actions {chance}, best constant policy {always})"))
    kind = kind_of_return(spec)
    score, rival = objective_of(mine), objective_of(all_tests[constant])
    if min(score, rival) > 0 and score > rival:
        found.append((f"{short_number(score / rival, 3)} times", f"the {kind} of {constant}, the best constant policy"))
    else:
        found.append(
            (short_number(score, 3), f"{kind} ({short_number(rival, 3)} for {constant}, the best constant policy)")
        )
    found.append((f"{figures['real_episodes']['imagination']:,} real episodes", "used by models and policy"))
    if "visits" in figures:
        mine, best, rarer = compare_with_fixed(figures["visits"])
        words = f"chosen by the model: {' and '.join(gained(mine, best, rarer, spec)) or 'no gain'}"
        fixed = f"{every_interval(best['interval'], spec.time_unit)}, {best['decisions']:.0f} {spec.decision_name}s"
        found.append((f"{mine['decisions']:.0f} {spec.decision_name}s", f"{words} (best fixed interval: {fixed})"))
    return found


def run_section(record: dict[str, Any]) -> str:
    config, figures, spec = record["config"], record["figures"], spec_of(record)
    size, per_round = config["ensemble_size"], config["episodes_per_round"]
    # With a number of decisions, more episodes may have been collected than the config says.
    first = figures["rounds"][0]["real_episodes"] if config["rounds"] else config["episodes"]
    sentences = [f"{first:,} real episodes of '{spec.name}' were collected with random actions."]
    more = f"{per_round} more episodes"
    if config.get("decisions_per_round"):
        more = f"episodes of together {config['decisions_per_round']:,} decisions or more"
    if config["rounds"]:
        sentences.append(
            f"{size} {config['model']} models were fitted to them and a policy was learned in their imagination. "
            f"Then, in each of {config['rounds']} Dyna rounds, the policy collected {more}, "
            "the models were refitted and the policy was trained further: "
            f"{figures['real_episodes']['imagination']} real episodes in total."
        )
    else:
        sentences.append(
            f"{size} {config['model']} model{'s' * (size > 1)} were fitted to them (open-loop test "
            f"error {figures['fit']['mean']:.3g}), and a policy was learned in "
            f"{config['learn']['episodes']:,} imagined episodes."
        )
    if "visits" in figures and config["schedule_refits"]:
        sentences.append(
            f"To choose {spec.decision_name} times, a second policy was learned together with its schedule; it "
            f"collected {figures['visits']['real_episodes'] - figures['real_episodes']['imagination']} more real "
            "episodes, and the models were refitted "
            f"to all {figures['visits']['real_episodes']}."
        )
    sentences.append("All policies are tested on new episodes of the real system.")
    if config["schedule"]:
        sentences.append(
            f"Policies were learned and tested with a decision {every_interval(config['schedule'], spec.time_unit)}."
        )
    variables = listed(variable.name for variable in spec.observations)
    last = f"Observed: {variables}. Actions: {listed(figures['spec']['actions']['names'])}."
    return page.section("Run", page.paragraph(" ".join(sentences)), page.paragraph(last, "soft"))


def evaluation_section(record: dict[str, Any]) -> str:
    table = policy_table(record)
    number = record["figures"]["tests"]["imagination"]["episodes"]
    sentences = (sentence for name, sentence in spec_of(record).measures if name in table.headers)
    dqn = record["config"].get("learn", {}).get("dqn", {})
    share = dqn.get("test_epsilon")
    share = dqn.get("final_epsilon", 0.05) if share is None else share
    caption = (
        f"{number} test episodes each; 95 % bootstrap intervals of the mean. 'always' is a constant policy; "
        f"learned policies take random actions with probability {share:g}. {' '.join(sentences)}"
    )
    if left_out := left_out_constants(record["figures"]["tests"]):
        caption += f" Only the {MOST} best constant policies are listed; {len(left_out):,} are left out."
    return page.section("Evaluation", to_html(dataclasses.replace(table, caption=caption)))


def predictions_section(record: dict[str, Any]) -> str:
    courses = record["figures"]["courses"]
    parts = []
    for key, who in (("random", "random actions"), ("policy", "the learned policy")):
        steps = len(courses[key]["actions"])
        words = (
            f"Predicted and true trajectory of a new episode under {who}, {steps} decisions: for each observed "
            "variable a solid line (true) and a dashed line (predicted from the first observation)."
        )
        parts.append(page.picture(course_figure(courses[key], f"Under {who}"), f"predicted-{key}", words))
    note = (
        "Open-loop predictions from the first observation, given the true actions and intervals. (The policy "
        "itself observes the system at every decision.)"
    )
    return page.section("Predictions", page.paragraph(note), *parts)


def learning_section(record: dict[str, Any]) -> str:
    figures = record["figures"]
    words = (
        "Return on the real system during learning, compared with model-free learning, the best constant "
        "policy and random actions."
    )
    listed = ""
    if rounds := figures.get("rounds"):
        rows = []
        for one in rounds:
            errors = [f"{one['model_error']:.3g}", short_number(one["collected"], 3)]
            rows.append([one["number"], one["real_episodes"], *errors, with_interval(one)])
        heads = ["round", "real episodes", "model error", "return of the collected episodes"]
        table = Table.of([*heads, "return after the round (95 %)"], rows, "20 validation episodes after each round.")
        listed = page.folded("All rounds", to_html(table))
    return page.section("Learning", page.picture(learning_figure(record), "learning", words), listed)


def policy_section(record: dict[str, Any]) -> str:
    figures, parts = record["figures"], []
    if found := figures["map"]:
        x, y = (axis["name"] for axis in found["axes"])
        words = f"Two maps over {x} and {y}: the policy's action and its value."
        more = len(figures["spec"]["observations"]) > len(found["axes"])
        caption = f"All other variables at {found['others']}." if more else ""
        parts.append(page.picture(map_figure(found), "map", words, caption))
    words = "A new episode under the policy: all variables and the actions."
    drawn = course_figure(figures["courses"]["episode"], "A new episode under the policy")
    parts.append(page.picture(drawn, "episode", words))
    return page.section("Policy", *parts)


def decision_times_section(record: dict[str, Any]) -> str:
    if "visits" not in record["figures"]:
        return ""
    found, spec = record["figures"]["visits"], spec_of(record)
    chosen, measures = list(found["intervals"]), measured(found["rows"])
    rows = []
    for label in (*chosen, "own", *of_kind(found["usual"], "fixed")):
        row, usual = found["rows"][label], found["usual"].get(label)
        returns = [with_interval(row), "" if usual is None else with_interval(usual)]
        cells = [_schedule(row, spec), f"{row['decisions']:.0f}", *returns, *percentages(row, measures)]
        rows.append(Row.of(cells, marked=label in chosen))
    heads = ["schedule", f"{spec.decision_name}s", "schedule policy (95 %)", "main policy (95 %)"]
    heads += [f"{name} (schedule policy)" for name in measures]
    caption = (
        f"Accrued returns: rewards are counted {every_interval(spec.finest, spec.time_unit)}, not only at decisions as "
        "in the evaluation above; 20 test episodes each. Fixed intervals are tested with both policies of "
        "the run, neither of which was learned for that interval."
    )
    words = (
        f"Return against the number of {spec.decision_name}s: a curve for fixed intervals, and points for the "
        f"schedules chosen at each price per {spec.decision_name}."
    )
    course = course_figure(found["course"], "An episode at chosen times")
    description = (
        f"A new episode at {spec.decision_name} times chosen by the model: true trajectory, and predictions "
        f"from each {spec.decision_name}."
    )
    return page.section(
        "Decision times",
        page.picture(tradeoff_figure(record), "tradeoff", words, "Labels of the curve are fixed intervals. " + caption),
        page.picture(course, "chosen", description),
        page.folded("All schedules", to_html(Table.of(heads, rows, caption))),
    )


def _schedule(row: dict[str, Any], spec: Spec) -> str:
    if row["kind"] == "own":
        return "the environment's own"
    if row["kind"] == "fixed":
        return every_interval(row["interval"], spec.time_unit)
    return f"chosen, price {exact_number(row['price'])} per {spec.decision_name}"


def reproduction_section(record: dict[str, Any]) -> str:
    machine = record["machine"]
    where = f"{machine['processor']}, {machine['cores']} cores, device {machine['device']}, {machine['system']}"
    spent = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in record.get("stages", {}).items())
    rows = [
        ("date", record["made"]),
        ("commit", record["commit"] or "not in a repository"),
        ("machine", where),
        ("time", f"{record['seconds']:.0f} s{f' ({spent})' if spent else ''}"),
        ("seed", record["seed"]),
        *record["versions"].items(),
    ]
    return page.section(
        "Reproduction",
        page.code(record["command"]),
        to_html(Table.of(("what", Column(wrap=True)), rows)),
        page.folded("Config", page.code(json.dumps(record["config"], indent=1))),
    )

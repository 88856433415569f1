"""`kairode run`: collect, fit, learn in imagination, test beside other policies, choose visit times.

Every stage leaves what it came to in the run's folder, so that the same command goes on where it was; the record is
made of these alone.
"""

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from kairode.agents.policy import SoftGreedy
from kairode.agents.store import save_policy
from kairode.data import Trajectory, write
from kairode.data.describe import spec_to_dict
from kairode.data.files import check_target
from kairode.envs.core import Environment, Spec
from kairode.envs.schedule import as_schedule
from kairode.errors import Stopped
from kairode.experiments.courses import course
from kairode.experiments.findings import best_constant, on_the_system, policy_map, shown_courses
from kairode.experiments.fitting import plan, run_fit, same_config
from kairode.experiments.learning import learn_more
from kairode.experiments.presets import preset
from kairode.experiments.record import record, save
from kairode.experiments.rounds import load_rounds, run_rounds, standing_policy
from kairode.experiments.runs import Run, command
from kairode.experiments.scheduling import Wish, fixed_rows, run_schedule
from kairode.experiments.watch import Watch
from kairode.models.dynamics import DynamicsModel


class Gained(NamedTuple):
    """What experience came to."""

    models: list[DynamicsModel]
    data: Trajectory
    """What the models were fitted to."""
    policy: SoftGreedy
    figures: dict[str, Any]
    """How it was come by."""


def run(config: Run, folder: Path, watch: Watch | None = None) -> dict[str, Any]:
    """Do what the config says in a folder of its own, or go on with what is there; the record."""
    watch = watch or Watch()
    env = config.make()
    as_schedule(config.schedule, env.task.spec)
    check_target(folder / "config.json")
    same_config(config, folder)
    path = folder / "record.json"
    if path.exists():
        watch.said(f"All of this is done already, and is in {folder}: remove it to begin anew.")
        return dict(json.loads(path.read_text()))
    save(folder / "config.json", dataclasses.asdict(config))
    spent: dict[str, float] = {}
    try:
        figures = _stages(config, env, folder, watch, spent)
    except Stopped as stopped:
        said = str(stopped).split(" The same")[0].split(" the same")[0].rstrip(";") or "interrupted."
        raise Stopped(f"{said} The same command goes on from there: {command(config, folder)}") from None
    made = record("run", config, figures, command=command(config, folder), seconds=sum(spent.values()))
    save(path, {**made, "stages": {name: round(seconds, 1) for name, seconds in spent.items()}})
    return made


def _stages(config: Run, env: Environment, folder: Path, watch: Watch, spent: dict[str, float]) -> dict[str, Any]:
    """One after the other; what each came to."""
    gain = in_rounds if config.rounds else at_once
    gained = _timed(spent, "experience, models and policy", lambda: gain(config, env, folder, watch))
    about = {"env": config.env, "setting": config.setting, "fields": config.fields, "schedule": config.schedule}
    save_policy(folder, gained.policy, about)
    write(folder / "experience.parquet", gained.data)
    figures: dict[str, Any] = {"spec": spec_to_dict(env.task.spec), "real_episodes": len(gained.data), **gained.figures}
    policies: dict[str, Any] = {"imagination": gained.policy}
    if config.model_free != 0:
        free, curve = _timed(spent, "model-free", lambda: _model_free(config, env, folder, gained, watch))
        policies["model-free"], figures["free_curve"] = free, curve
    figures |= _timed(
        spent, "tests", lambda: kept(folder / "tests.json", lambda: _tests(config, env, gained, policies))
    )
    number = figures["tests"]["imagination"]["episodes"]
    watch.said(f"Tested {len(figures['tests'])} policies on {number} new real episodes each.")
    if config.visits:
        figures["visits"] = _timed(spent, "visits", lambda: _visits(config, folder, gained, watch))
    return figures


def _timed(spent: dict[str, float], name: str, work: Callable[[], Any]) -> Any:
    started = time.perf_counter()
    found = work()
    spent[name] = time.perf_counter() - started
    return found


def kept(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a file holds; made and written first where it is not there."""
    if not path.exists():
        save(path, make())
    return dict(json.loads(path.read_text()))


def at_once(config: Run, env: Environment, folder: Path, watch: Watch) -> Gained:
    """Models of random actions alone, and a policy learned in their imagination."""
    chosen = preset(config.env)
    settings = dataclasses.replace(chosen.settings, iterations=config.iterations)
    fit = plan(
        config.env,
        config.model,
        dataclasses.replace(chosen, settings=settings, episodes=config.episodes),
        seeds=config.fits,
        seed=100 * config.seed,  # so that runs of neighbouring seeds share no model
        data_seed=config.seed,
        setting=config.setting,
        fields=config.fields,
    )
    fitted, data, made = run_fit(fit, folder / "fit", tell=watch.fitting, collected=watch.collecting)
    figures = {name: made["figures"][name] for name in ("test_error", "mean", "std", "by_dimension")}
    watch.said(
        f"Collected {len(data.train):,} episodes under random actions ({data.train.decisions:,} decisions), and fitted "
        f"{config.fits} {config.model} model{'s' * (config.fits > 1)} to them: a mean squared error of "
        f"{figures['mean']:.3g} on episodes they have not seen, from the first observation alone."
    )
    learned = learn_more(
        fitted.models,
        env,
        data=data.train,
        schedule=config.schedule,
        episodes=config.imagined,
        seed=config.seed,
        latent=config.latent,
        folder=folder / "imagination",
        tell=lambda report: watch.practice("learning in imagination", report),
        watch=env,
        **config.learning,
    )
    watch.said(f"Learned a policy in {config.imagined:,} imagined episodes.")
    curve = learned.practised.curve
    return Gained(fitted.models, data.train, learned.policy, {"fit": figures, "curve": curve})


def in_rounds(config: Run, env: Environment, folder: Path, watch: Watch) -> Gained:
    """Taking turns: collect (first at random, then with the policy), refit, learn on in imagination."""
    place, unit = folder / "rounds", "discounted return" if env.task.spec.judged_discounted else "return"

    def tell(found: Any) -> None:
        watch.said(
            f"{'Random actions' if found.number == 0 else f'Round {found.number}'}: {found.real_episodes} real "
            f"episodes so far; {config.fits} models refitted, the policy learned on in imagination: {unit} "
            f"{found.tested.mean:.3g} on the real system."
        )

    made = run_rounds(config.in_turns, place, tell, watch)
    standing = load_rounds(place)
    policy = standing_policy(config.in_turns, env, standing)
    return Gained(standing.members, standing.data, policy, {"rounds": made["figures"]["rounds"]})


def _model_free(
    config: Run, env: Environment, folder: Path, gained: Gained, watch: Watch
) -> tuple[SoftGreedy, list[dict[str, Any]]]:
    """A policy that practised on the real system, for as many episodes as the other has seen."""
    count = len(gained.data) if config.model_free is None else config.model_free
    found = learn_more(
        None,
        env,
        schedule=config.schedule,
        episodes=count,
        seed=config.seed,
        folder=folder / "model-free",
        tell=lambda report: watch.practice("practising without a model", report),
        watch=env,
        **{name: value for name, value in config.learning.items() if name not in ("margin", "branch")},
    )
    save_policy(folder / "model-free", found.policy)
    watch.said(f"Beside it, a policy without a model practised for {count:,} real episodes.")
    return found.policy, found.practised.curve


def _tests(config: Run, env: Environment, gained: Gained, policies: dict[str, Any]) -> dict[str, Any]:
    """Tests on episodes that nothing was learned from, and what there is to look at."""
    return {
        "tests": on_the_system(env, policies, config.schedule),
        "courses": shown_courses(env, gained.policy, gained.models[0], config.schedule),
        "map": policy_map(env, gained.policy, gained.data),
    }


def tests_said(figures: dict[str, Any], discounted: bool) -> str:
    """One sentence on the tests."""
    tests = figures["tests"]
    mine, chance, held = tests["imagination"], tests["random"], best_constant(tests)
    rivals = {"random actions": chance, f"{held} held throughout": tests[held]}
    if "model-free" in tests:
        rivals["the model-free policy of as many real episodes"] = tests["model-free"]
    kind = "discounted return" if discounted else "return"
    said = f"On {mine['episodes']} new real episodes the policy has a mean {kind} of {mine['return']:.4g}; "
    parts = []
    for name, test in rivals.items():
        order = "above" if mine["return_low"] > test["return_high"] else None
        order = order or ("below" if mine["return_high"] < test["return_low"] else "about level with")
        parts.append(f"{order} {name} ({test['return']:.4g})")
    return said + ", ".join(parts) + "."


def _visits(config: Run, folder: Path, gained: Gained, watch: Watch) -> dict[str, Any]:
    """Visit times chosen by the models, beside fixed ones."""
    wish = Wish(prices=config.prices, taus=config.candidates, imagined=config.visits)

    def make() -> dict[str, Any]:
        made, source, episodes = run_schedule(
            folder, wish, tell=lambda report: watch.practice("learning when to look", report)
        )
        shown = course(source.env, next(iter(episodes.values()))[0], source.models[0], points=3)
        return {**made["figures"], "usual": fixed_rows(source, gained.policy, wish), "course": shown}

    found = kept(folder / "visits.json", make)
    watch.said(
        f"Let the models choose visit times ({', '.join(found['intervals'])}), and tested them beside "
        f"{len(found['usual']) - 1} fixed intervals."
    )
    return found


def visits_said(found: dict[str, Any], spec: Spec) -> str:
    """What the visits chosen without a price are worth, beside fixed intervals."""
    chosen, kind, unit = found["rows"][_first(found)], judged_by(spec), spec.time_unit
    rivals = fixed_rivals(found, spec)
    label, best = best_fixed(rivals, spec)
    said = (
        f"Looking again when the model says so takes {chosen['visits']:.0f} visits in {spec.horizon:g} {unit}s and "
        f"returns {chosen[kind]:.4g} ({every(spec.finest, unit)} counted); "
    )
    rarer = {name: row for name, row in rivals.items() if row["visits"] <= chosen["visits"]}
    if rarer:
        other, row = best_fixed(rarer, spec)
        said += f"at fixed intervals as few visits return {row[kind]:.4g} at most ({every(other, unit)}), and "
    return (
        f"{said}the best fixed interval ({every(label, unit)}, {best['visits']:.0f} visits) returns {best[kind]:.4g}."
    )


def every(interval: str | float, unit: str) -> str:
    """An interval in words: every day, every 5 days."""
    number = float(str(interval).removeprefix("every "))
    return f"every {unit}" if number == 1 else f"every {number:g} {unit}s"


def _first(found: dict[str, Any]) -> str:
    """The label of the first choice: that of the lowest price."""
    return next(iter(found["intervals"]))


def judged_by(spec: Spec) -> str:
    """The figure of a row that counts."""
    return "return" if spec.judged_discounted else "plain"


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

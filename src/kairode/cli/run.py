"""`kairode run`: the main job, from a system to a policy, its evaluation and a page."""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from kairode.cli.common import Command, config_command, first_word, loading, parse_fields
from kairode.cli.learn import offline_command
from kairode.config.algorithms import MPCConfig, is_file, is_import
from kairode.config.presets import RUN_MODES, mpc_preset, run_preset
from kairode.config.run import RunConfig
from kairode.errors import KairodeError
from kairode.text import file_name, say

CONTROLS = ("pendulum", "swimmer", "hopper", "half-cheetah")
"""Our environments with continuous actions; the others have discrete ones."""


def run_command(words: Sequence[str]) -> tuple[Command, list[str]]:
    """Run the main job: learn a policy for a system, evaluate it, choose decision times, write a page.

    ENV with discrete actions (gridworld, acrobot, hiv, hiv-partial; default: hiv): collect data, fit models and learn a
    policy in their imagination (on HIV then in Dyna rounds: the policy collects more episodes, the models are refitted,
    the policy is trained further); evaluate it on the real system beside random, constant and model-free policies;
    choose decision times.

    ENV with continuous actions (pendulum, swimmer, hopper, half-cheetah): MPC with an actor-critic; the model is
    refitted as data grow.

    gym:ID (any environment of Gymnasium, such as gym:CartPole-v1) or MODULE:NAME (a class of your own, a function that
    makes an environment, or a registered id; the module may be a file in this folder): as ENV. `--set
    intervals=[1,5]` and other arguments of `kairode.from_gymnasium` say how long actions are held.

    TABLE (a CSV or Parquet file of records): inspect it, fit models, learn a policy from the records alone, estimate
    what it is worth, show where it differs from what was done, and advise for an example: as `kairode learn TABLE`,
    with a page.

    Safe to interrupt: run the same command again to resume. The defaults below are those of the environment (`kairode
    run ENV --help`) and depend on --rounds, --latent-policy, --schedule, --paper, --model and --agent.kind.

    Example: kairode run hiv

    Example: kairode run hiv-partial --latent-policy

    Example: kairode run acrobot --schedule 0.4 --seed 1

    Example: kairode run pendulum

    Example: kairode run hopper --model free --seeds 3

    Example: kairode run gym:CartPole-v1 --set intervals=[1,5]

    Example: kairode run visits.csv --episode subject --time when --action dose --reward gain
    """
    env, rest = first_word(words, default="hiv")
    if is_file(env):
        return offline_command(words, run_command.__doc__ or "", page=True)
    default = _default(env, rest)
    if isinstance(default, RunConfig) and any(word.partition("=")[0] == "--seeds" for word in rest):
        raise KairodeError(
            "--seeds is for continuous actions; with discrete actions, run once per seed (--seed 0, --seed 1), then "
            "`kairode report RUN RUN`."
        )
    if isinstance(default, MPCConfig) and any(word.partition("=")[0] == "--devices" for word in rest):
        raise KairodeError(
            "--devices is for discrete actions: MPC runs on one device. Run one seed per device (--seed 0, --seed 1), "
            "each with its own CUDA_VISIBLE_DEVICES."
        )
    about = f"""{run_command.__doc__}
    Args:
        set: fields of the environment, such as horizon=500.
        out: run folder; by default runs/ENV-MODEL-seedS.
        devices: spread the fits of the models over this many devices (discrete actions only).
        quiet: print nothing but warnings and errors.
    """
    return config_command(default, _run_named if isinstance(default, RunConfig) else _run_mpc, about), rest


def _default(env: str, words: Sequence[str]) -> RunConfig | MPCConfig:
    """The environment's config, by the options that other defaults depend on."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--model", default="latent-ode")
    parser.add_argument("--agent.kind", dest="agent")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--latent-policy", action="store_true")
    parser.add_argument("--schedule", type=float)
    parser.add_argument("--paper", action="store_true")
    parser.add_argument("--set", nargs="*", default=[])
    try:
        given, _ = parser.parse_known_args([word for word in words if word not in ("-h", "--help")])
    except (argparse.ArgumentError, SystemExit):  # no value, or a wrong one: the parser of all options says so
        return mpc_preset(env) if has_controls(env, ()) else run_preset(env)
    if has_controls(env, given.set):
        return mpc_preset(env, given.model, given.agent)
    modes = {name: getattr(given, name) for name in RUN_MODES}
    # Flags stay options, whatever the other defaults depend on.
    return dataclasses.replace(run_preset(env, **modes), latent_policy=False, paper=False)


def has_controls(env: str, fields: Sequence[str]) -> bool:
    """Whether an environment has continuous actions; one of the user's own is made to find out."""
    if not is_import(env):
        return env in CONTROLS
    from kairode.envs.core import Continuous
    from kairode.envs.zoo import make

    return isinstance(make(env, **parse_fields(fields)).task.spec.actions, Continuous)


def _run_named(config: RunConfig, out: Path | None, quiet: bool) -> None:
    with loading(quiet):
        from kairode.callbacks import Progress
        from kairode.envs.zoo import make
        from kairode.report.progress import display
        from kairode.report.run_page import write_run_page
        from kairode.report.runs import print_run
        from kairode.runs.film import film_of_run
        from kairode.runs.pipeline import run_pipeline
        from kairode.runs.policies import load_policy

    folder = out or default_folder(config)
    with display(quiet) as show:
        record = run_pipeline(config, folder, show)
        show(Progress("writing the page"))
        page = write_run_page(folder)
        env = make(config.env, setting=config.setting, **config.env_fields)
        film = film_of_run(env, load_policy(folder), folder)
    if not quiet:
        print_run(record)
        if film:
            say(film)
        say(f"Report: {page}")


def default_folder(config: RunConfig | MPCConfig) -> Path:
    """Of a run: named for what tells it from others on the same environment."""
    if isinstance(config, RunConfig):
        kinds = [f"every{config.schedule:g}" if config.schedule else "", "latent-policy" * config.latent_policy]
        many = ""
    else:
        kinds = [config.agent.kind * (config.agent.kind != "ddpg")]
        many = str(config.seeds) * (config.seeds > 1)
    kinds.append("paper" * (config.setting == "paper"))
    return Path("runs") / "-".join(
        filter(None, (file_name(config.env), config.model, *kinds, f"seed{config.seed}", many))
    )


def _run_mpc(config: MPCConfig, out: Path | None, quiet: bool) -> None:
    with loading(quiet):
        from kairode.callbacks import Progress
        from kairode.report.figures import save_figure
        from kairode.report.mpc import mpc_learning_figure, print_control
        from kairode.report.progress import display
        from kairode.report.run_page import write_run_page
        from kairode.report.video import save_gait
        from kairode.runs.film import film_of_run
        from kairode.runs.mpc import best_seed, load_policies, make_env, run_mpc
        from kairode.runs.video import record_gait

    folder = out or default_folder(config)
    with display(quiet) as show:
        record = run_mpc(config, folder, show)
        show(Progress("drawing the learning curve and a video"))
        save_figure(mpc_learning_figure({f"{config.env}, {config.model}": record}), folder / "learning.svg")
        page = write_run_page(folder)
        env = make_env(config)
        policies = load_policies(folder)
        shown = save_gait(record_gait(env, policies, record, folder), folder)
        film = film_of_run(env, policies[best_seed(record)], folder)
    if not quiet:
        print_control(record, env.task.spec)
        say(f"Policies and record: {folder}. Learning curve: {folder / 'learning.svg'}.{shown}")
        if film:
            say(film)
        say(f"Evaluate it again: kairode evaluate {folder} --episodes 20")
        say(f"Report: {page}")

"""Milliseconds of a plan (1,000 sequences of 10) and of a training iteration: ours beside PyTorch + torchdiffeq.

The same Latent-ODE with the same weights and, for the check, the same noise: hopper with 128 latent dimensions,
half-cheetah with 400. Then hopper's whole loop with four seeds: decisions a second, and where the time goes. The
peer needs the extra `peers`. Run it while nothing else runs: `kairode bench mpc`, with `--json` for the figures alone.
"""

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _common import best_seconds, has_peer, print_rows, run, torch_layer, torch_net, torch_tanh_net

import kairode
from kairode.agents.actor_critic import init_actor_critic
from kairode.agents.obs_normalizer import ObsNormalizer
from kairode.algorithms.mpc_loop import MPCLoop
from kairode.config.agents import ActorCriticConfig
from kairode.config.algorithms import MPCConfig
from kairode.config.models import MIDPOINT, SOLVER
from kairode.config.planning import PlanConfig
from kairode.config.presets import fit_preset, mpc_preset
from kairode.config.training import TrainingConfig
from kairode.data.normalize import RunningStatistics
from kairode.models.ode import METHODS, FixedSteps, parse_solver
from kairode.models.predict import Episodes
from kairode.models.zoo import build
from kairode.planning.mpc import LearnedDynamics, Planner
from kairode.training.step import init_fit_state, run_iterations
from kairode.trees import stack

CASES = ("hopper", "half-cheetah")
RTOL, ATOL = 1e-5, 1e-6
TIGHT = f"dopri5:{RTOL},{ATOL}"
PLAN, LEARNING = PlanConfig(), ActorCriticConfig()
SEEDS = 4
ON_GPU = jax.default_backend() == "gpu"
PLANS = 100 if ON_GPU else 2
"""In one round."""
ITERATIONS = 100 if ON_GPU else 5
STEPS = 1000 if ON_GPU else 40
"""Decisions of every seed in the loop; a fit is shared out over the 5,000 that follow it."""
LOOP = "hopper"


# Ours.


def planner(case: str, solver: str, seed: int = 0) -> Planner:
    """With random weights, and statistics as of a robot that moves."""
    env = kairode.make(case)
    spec, sizes = env.task.spec, dataclasses.replace(fit_preset(case).sizes, solver=solver)
    size = len(spec.observations)
    statistics = RunningStatistics(jnp.asarray(1e4), 0.1 * jnp.ones(size), 1e4 * jnp.ones(size))
    normalizer = ObsNormalizer(statistics, ObsNormalizer.new(spec).places)
    model_key, agent_key = jax.random.split(jax.random.key(seed))
    model = build("latent-ode", spec, sizes, key=model_key)
    networks = init_actor_critic(size, spec.actions.n, LEARNING, key=agent_key).networks
    return Planner(LearnedDynamics(model, normalizer), env.task, networks, normalizer, LEARNING, PLAN)


def seen_obs(case: str, count: int) -> jax.Array:
    """What robots see that stand upright."""
    size = len(kairode.make(case).task.spec.observations)
    return jnp.tile(jnp.array([1.25, *[0.0] * (size - 1)]), (count, 1))


def our_plan(case: str, solver: str, count: int) -> Callable[[], None]:
    """Plans for some environments, each with its own model, as in the loop: the host waits for each."""
    arrays, rest = eqx.partition(stack([planner(case, solver, seed) for seed in range(count)]), eqx.is_array)
    seen = seen_obs(case, count)
    z = jax.random.normal(jax.random.key(1), (count, fit_preset(case).sizes.latent_size))

    @jax.jit
    def plan(arrays: Any, keys: Any) -> Any:
        one = jax.vmap(lambda a, seen, z, key: eqx.combine(a, rest).plan(seen, z, key=jax.random.wrap_key_data(key)))
        return one(arrays, seen, z, keys)

    keys = np.random.default_rng(0).integers(2**32, size=(PLANS, count, 2), dtype=np.uint32)

    def call() -> None:
        for key in keys:
            np.asarray(plan(arrays, key))

    return call


def flops(case: str) -> float:
    """Multiplications and additions of the matrix products in a plan of ours: the least that must be computed."""
    spec, sizes = kairode.make(case).task.spec, fit_preset(case).sizes
    d, a, z, h = len(spec.observations), spec.actions.n, sizes.latent_size, sizes.field_hidden
    solver = parse_solver(SOLVER, 1.0)
    assert isinstance(solver, FixedSteps)
    stages = solver.steps * (int(METHODS[solver.method].b_sol.nonzero()[0][-1]) + 1)
    field = z * h + stages * 2 * h * h + h * z  # in hidden coordinates
    timer = (d + a + z) * sizes.timer_hidden + sizes.timer_hidden * (spec.intervals.classes or 1)
    actor = d * 64 + 64 * 64 + 64 * a
    step = actor + timer + (d + a + z) * z + field + z * d
    return 2.0 * PLAN.candidates * (PLAN.horizon * step + actor + d * 64 + (64 + a) * 64 + 64)


def peak() -> float:
    """Floating-point operations a second of one large product on this device, in its usual precision."""
    n, times = (8192, 20) if ON_GPU else (2048, 4)
    x = jnp.ones((n, n))
    product = jax.jit(lambda x: jax.lax.fori_loop(0, times, lambda _, y: 1e-4 * (x @ y), x))
    return times * 2.0 * n**3 / best_seconds({"product": lambda: jax.block_until_ready(product(x))})["product"]


def episodes(case: str) -> Episodes:
    """A batch of random pieces."""
    spec, settings = kairode.make(case).task.spec, fit_preset(case).training
    rng, n, h = np.random.default_rng(0), settings.batch_size, settings.chunk_length or 10
    return Episodes(
        jnp.asarray(rng.normal(size=(n, h + 1, len(spec.observations))), jnp.float32),
        jnp.asarray(rng.uniform(-1, 1, size=(n, h, spec.actions.n)), jnp.float32),
        jnp.asarray(rng.integers(1, 8, size=(n, h)), jnp.float32),
        jnp.ones((n, h), bool),
    )


def our_iterations(case: str, solver: str) -> Callable[[], None]:
    """Training iterations of one seed."""
    env, usually = kairode.make(case), fit_preset(case)
    sizes = dataclasses.replace(usually.sizes, solver=solver)
    models = eqx.filter_vmap(lambda key: build("latent-ode", env.task.spec, sizes, key=key))(jax.random.key(0)[None])
    settings: TrainingConfig = dataclasses.replace(usually.training, patience=None)
    if solver == MIDPOINT:
        weights = dataclasses.replace(settings.weights, consistency=0.0)
        settings = dataclasses.replace(settings, weights=weights)
    static, fit_state = eqx.filter(models, eqx.is_array, inverse=True), init_fit_state(models, settings, [0])
    data, order = episodes(case), jnp.tile(jnp.arange(settings.batch_size), (ITERATIONS, 1, 1))

    def call() -> None:
        jax.block_until_ready(run_iterations(fit_state, data, order, static, settings))

    return call


def loop() -> dict[str, float]:
    """Milliseconds of a decision of four seeds together, and where they go; the host waits for every part."""
    warmup = 5000 if ON_GPU else 3000
    config: MPCConfig = mpc_preset(LOOP, "latent-ode", agent=ActorCriticConfig(warmup=warmup))
    loop = MPCLoop(kairode.make(LOOP), config, list(range(SEEDS)), warmup + 5000)
    loop.warm_up()
    loop.begin_epoch()  # compiles
    for _ in range(2):
        loop.step(wait=True)
    loop.stage_seconds = dict.fromkeys(loop.stage_seconds, 0.0)
    loop.begin_epoch()
    fitting = loop.stage_seconds["fitting"]
    for _ in range(STEPS):
        loop.step(wait=True)
    loop.close()
    parts = {name: 1e3 * seconds / STEPS for name, seconds in loop.stage_seconds.items()}
    parts["fitting"] = 1e3 * fitting / 5000
    total = sum(parts.values())
    return {**parts, "total": total, "decisions_a_second": 1e3 * SEEDS / total}


# The peer: what one would write without this package, compact and in the manner of PyTorch.


def torch_parts(case: str) -> Any:
    """The planner's networks with our weights, and the statistics."""
    import torch
    from torch import nn

    ours: Any = planner(case, TIGHT)
    device = "cuda" if ON_GPU else "cpu"

    def relu_net(network: Any) -> Any:
        return torch_net(network.weights, network.biases, nn.ReLU, device)

    flow, model, networks = ours.dynamics.model.transition, ours.dynamics.model, ours.networks
    critic = jax.tree.map(lambda x: x[0], networks.critics)
    return {
        "field": torch_tanh_net(flow.field, device),
        "jump": torch_layer(np.concatenate([flow.drive.weight, flow.mix.weight], 1), flow.mix.bias, device),
        "decoder": torch_layer(model.decoder.weight, model.decoder.bias, device),
        "timer": torch_tanh_net(model.timer.net, device),
        "actor": relu_net(networks.actor),
        "first": relu_net(critic.first),
        "rest": relu_net(critic.rest),
        "mean": torch.tensor(np.array(ours.normalizer.statistics.mean), device=device),
        "std": torch.tensor(np.array(ours.normalizer.statistics.std), device=device),
        "low": model.timer.low,
        "device": device,
    }


def torch_flow(field: Any, z: Any, tau: Any) -> Any:
    """One solve for the batch, read off at each sample's own time."""
    import torch
    from torchdiffeq import odeint

    times, index = torch.unique(tau, return_inverse=True)
    start = torch.zeros(1, device=z.device)
    path = odeint(lambda t, z: field(z), z, torch.cat([start, times]), rtol=RTOL, atol=ATOL, method="dopri5")
    return path[index + 1, torch.arange(len(z), device=z.device)]


def torch_plan(case: str) -> Callable[..., Any]:
    """The same plan: a function of what is seen, z and the noise."""
    import torch

    p, task = torch_parts(case), kairode.make(case).task
    robot, gamma, frame = task.robot, task.spec.discount, task.time_scale

    def plan(seen: Any, z: Any, noise: Any) -> Any:
        obs, z = seen.expand(PLAN.candidates, -1), z.expand(PLAN.candidates, -1)
        earned = torch.zeros(PLAN.candidates, device=p["device"])
        discount, alive = torch.ones_like(earned), torch.ones_like(earned, dtype=torch.bool)
        first: Any = None
        for h in range(PLAN.horizon):
            features = (obs - p["mean"]) / p["std"]
            action = (torch.tanh(p["actor"](features)) + PLAN.noise * noise[h]).clamp(-1, 1)
            first = action if first is None else first
            x = torch.cat([features, action, z], -1)
            tau = p["low"] + p["timer"](x).argmax(-1).float()
            z = torch_flow(p["field"], p["jump"](x), tau)
            obs = p["decoder"](z) * p["std"] + p["mean"]
            reward = obs[:, -1] / (tau * frame) - robot.control_cost * (action**2).sum(-1)
            fell = torch.zeros_like(alive)
            if robot.alive_bonus:
                fine = (obs[:, 0] > 0.7) & (obs[:, 1].abs() < 0.2) & (obs[:, 1:-1].abs() < 100).all(-1)
                fell, reward = ~fine, reward + robot.alive_bonus * fine
            earned = earned + torch.where(alive, discount * reward, 0.0)
            discount, alive = discount * gamma**tau, alive & ~fell
        features = (obs - p["mean"]) / p["std"]
        seen_by_critic = torch.relu(p["first"](features))
        tail = p["rest"](torch.cat([seen_by_critic, torch.tanh(p["actor"](features))], -1))[:, 0]
        returns = earned + torch.where(alive, discount * tail, 0.0)
        return first[returns.topk(PLAN.elites).indices].mean(0)

    without_gradients: Callable[..., Any] = torch.no_grad()(plan)
    return without_gradients


def torch_calls(case: str) -> dict[str, Callable[[], None]]:
    """A plan, and a training iteration, each waited for."""
    import torch
    from torch import nn

    plan, p = torch_plan(case), torch_parts(case)
    latent, controls = fit_preset(case).sizes.latent_size, kairode.make(case).task.spec.actions.n
    seen, z = torch.tensor(np.array(seen_obs(case, 1)), device=p["device"]), torch.zeros(1, latent, device=p["device"])

    def one_plan() -> None:
        noise = torch.randn(PLAN.horizon, PLAN.candidates, controls, device=p["device"])
        plan(seen, z, noise).cpu()

    data = episodes(case)
    obs, action, tau = (torch.tensor(np.array(x), device=p["device"]) for x in (data.obs, data.action, data.tau))
    inputs = obs.shape[-1] + controls
    encoder = nn.GRU(inputs, latent, batch_first=True, device=p["device"])
    head = nn.Sequential(nn.Linear(latent, 20), nn.Tanh(), nn.Linear(20, 2 * latent)).to(p["device"])
    parts = [encoder, head, p["jump"], p["field"], p["decoder"], p["timer"]]
    adam = torch.optim.Adam([w for part in parts for w in part.parameters()], lr=1e-3, weight_decay=1e-3)
    x = torch.cat([obs[:, :-1], action], -1)

    def iteration() -> None:
        mean, log_variance = head(encoder(x)[1][0]).chunk(2, -1)
        z = mean + torch.exp(log_variance / 2) * torch.randn_like(mean)
        states, before = [], []
        for k in range(x.shape[1]):
            before.append(z)
            z = torch_flow(p["field"], p["jump"](torch.cat([x[:, k], z], -1)), tau[:, k])
            states.append(z)
        logits = p["timer"](torch.cat([x, torch.stack(before, 1)], -1)).flatten(0, 1)
        timing = nn.functional.cross_entropy(logits, (tau - p["low"]).long().flatten())
        kl = 0.5 * (log_variance.exp() + mean**2 - 1 - log_variance).mean()
        adam.zero_grad()
        (((p["decoder"](torch.stack(states, 1)) - obs[:, 1:]) ** 2).mean() + kl + 0.01 * timing).backward()
        adam.step()
        if ON_GPU:
            torch.cuda.synchronize()

    return {"torchdiffeq_plan": one_plan, "torchdiffeq_iteration": iteration}


def same_decision(case: str) -> float:
    """How far the controls of the two lie apart, with the same noise (in units of the noise)."""
    import torch

    ours = planner(case, TIGHT)
    shape = (PLAN.horizon, ours.task.spec.actions.n, PLAN.candidates)
    noise = np.array(jax.random.normal(jax.random.key(2), shape))
    z = np.array(jax.random.normal(jax.random.key(3), (fit_preset(case).sizes.latent_size,)))
    with jax.default_matmul_precision("highest"):
        tried, returns = eqx.filter_jit(ours.evaluate_sequences)(
            seen_obs(case, 1)[0], jnp.asarray(z), jnp.asarray(noise)
        )
    best = np.asarray(returns).argsort()[-PLAN.elites :]
    mine = np.asarray(tried)[0][:, best].mean(-1)
    p = torch_parts(case)
    seen = torch.tensor(np.array(seen_obs(case, 1)), device=p["device"])
    given = torch.tensor(np.moveaxis(noise, 1, 2).copy(), device=p["device"])
    theirs = torch_plan(case)(seen, torch.tensor(z[None], device=p["device"]), given).cpu().numpy()
    return float(np.abs(mine - theirs).max() / PLAN.noise)


def measure() -> dict[str, Any]:
    with_peer = has_peer("torchdiffeq")
    at_most = peak()
    figures: dict[str, Any] = {"flops_a_second": at_most}
    for case in CASES:
        calls = {
            "plan": our_plan(case, SOLVER, 1),
            "plan_midpoint2": our_plan(case, MIDPOINT, 1),
            "plan_dopri5": our_plan(case, TIGHT, 1),
            "four_plans": our_plan(case, SOLVER, SEEDS),
            "iteration": our_iterations(case, SOLVER),
            "iteration_midpoint2": our_iterations(case, MIDPOINT),
        }
        with ThreadPoolExecutor() as pool:  # compiled side by side, measured one after the other
            list(pool.map(lambda call: call(), calls.values()))
        seconds = best_seconds(calls, 3)
        found = {name: 1e3 * s / (ITERATIONS if name.startswith("iteration") else PLANS) for name, s in seconds.items()}
        if with_peer:
            found |= {name: 1e3 * s for name, s in best_seconds(torch_calls(case), 3).items()}
            found["controls_apart"] = same_decision(case)
        found["limit"] = 1e3 * flops(case) / at_most
        figures[case] = found
    return {**figures, "loop": loop()}


NAMES = {
    "plan": f"a plan ({SOLVER})",
    "plan_midpoint2": f"a plan ({MIDPOINT})",
    "plan_dopri5": f"a plan ({TIGHT})",
    "four_plans": "four plans, each with its own model",
    "limit": "the plan's products at the speed of one large product",
    "iteration": f"a training iteration ({SOLVER}; batch 128, 10 decisions)",
    "iteration_midpoint2": f"a training iteration ({MIDPOINT})",
    "torchdiffeq_plan": "PyTorch + torchdiffeq: a plan",
    "torchdiffeq_iteration": "PyTorch + torchdiffeq: a training iteration",
}


def show(figures: dict[str, Any]) -> None:
    known = {name: words for name, words in NAMES.items() if name in figures[CASES[0]]}
    rows = [[words, *(f"{figures[case][name]:.3g}" for case in CASES)] for name, words in known.items()]
    print_rows([f"milliseconds, Latent-ODE, K = {PLAN.candidates}, H = {PLAN.horizon}", *CASES], rows)
    parts = [[name.replace("_", " "), f"{value:.3g}"] for name, value in figures["loop"].items()]
    print_rows([f"the loop on {LOOP}, {SEEDS} seeds", "milliseconds a decision"], parts)
    for case in CASES:
        found = figures[case]
        if "torchdiffeq_plan" in found:
            ratio = {name: found["torchdiffeq_plan"] / found[name] for name in ("plan", "plan_dopri5")}
            print(
                f"{case}: a plan takes 1/{ratio['plan']:.0f} of PyTorch's time ({SOLVER}), with dopri5 1/"
                f"{ratio['plan_dopri5']:.1f}, a training iteration 1/"
                f"{found['torchdiffeq_iteration'] / found['iteration']:.0f}. With dopri5 and the same noise the two's "
                f"controls lie {found['controls_apart']:.2g} of its width apart."
            )


if __name__ == "__main__":
    settings = {"cases": CASES, "solver": SOLVER, "rtol": RTOL, "atol": ATOL, **dataclasses.asdict(PLAN)}
    run("mpc", measure, settings, show, __doc__)

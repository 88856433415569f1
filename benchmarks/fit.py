"""Milliseconds per training iteration: our models beside PyTorch with torchdiffeq, and beside plain diffrax.

Same sizes, same data, batch 32, one seed and five. Needs the extra `peers`; without it ours alone are measured,
and on a GPU ours with five seeds. Run it while nothing else runs: `kairode bench fit`, with `--json` for the figures
alone.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _common import has_peer, print_rows, run, seconds_a_call

import kairode
from kairode.config.models import MIDPOINT, PAPER_MODELS, SOLVER, ModelConfig
from kairode.config.presets import fit_preset
from kairode.config.training import TrainingConfig
from kairode.data import Trajectory
from kairode.models.predict import Episodes, prepare
from kairode.models.zoo import build
from kairode.training.batches import pad
from kairode.training.step import batch_indices, init_fit_state
from kairode.training.threads import run_on_cores

BATCH, LATENT, HIDDEN = 32, 10, 20
RTOL, ATOL = 1e-3, 1e-4
CASES = {"hiv": 50, "acrobot": 100}
"""Environment and decisions in an episode."""


def experience(case: str) -> Trajectory:
    """Episodes that all have the full number of decisions."""
    env = kairode.make(case, max_decisions=CASES[case])
    found = kairode.collect(env, episodes=128, seed=0)
    return found[np.flatnonzero(np.asarray(found.length) == CASES[case])[: 2 * BATCH]]


# Ours.


def ours(case: str, model: str, solver: str, seeds: int, iterations: int = 20) -> float:
    """With the environment's settings; midpoint as it was the default, without the consistency term."""
    data = experience(case)
    sizes = dataclasses.replace(fit_preset(case).sizes, solver=solver)
    keys = jax.random.split(jax.random.key(0), seeds)
    models = eqx.filter_vmap(lambda key: build(model, data.spec, sizes, key=key))(keys)
    settings: TrainingConfig = fit_preset(case).training
    if solver == MIDPOINT:
        weights = dataclasses.replace(settings.weights, consistency=0.0)
        settings = dataclasses.replace(settings, weights=weights)
    static = eqx.filter(models, eqx.is_array, inverse=True)
    episodes = jax.tree.map(jnp.asarray, pad(prepare(models, data)))
    fit_state = init_fit_state(models, settings, range(seeds))
    batches = jnp.asarray(batch_indices(settings, range(seeds), len(data), 0, iterations))

    def call() -> None:
        jax.block_until_ready(run_on_cores(fit_state, episodes, batches, static, settings))

    return 1e3 * seconds_a_call(call, 1.0) / iterations


# Peers: what one would write without this package. Each is compact and in the manner of its library.


def arrays(case: str) -> Episodes:
    data = experience(case)
    model = build("rnn", data.spec, ModelConfig(), key=jax.random.key(0))
    return jax.tree.map(lambda x: np.asarray(x)[:BATCH], prepare(model, data))


def torch_step(case: str, ode: bool, seeds: int) -> Callable[[], None]:
    """A Latent-ODE (encoder GRU, linear jump, torchdiffeq's dopri5) or a GRU, with Adam."""
    import torch
    from torch import nn
    from torchdiffeq import odeint

    data = arrays(case)
    obs, action, tau = (torch.tensor(np.asarray(x)) for x in (data.obs, data.action, data.tau))
    size, inputs = obs.shape[-1], obs.shape[-1] + action.shape[-1]

    class Field(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            hidden = (nn.Linear(LATENT, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh())
            self.net = nn.Sequential(*hidden, nn.Linear(HIDDEN, LATENT))

        def forward(self, t: Any, z: Any) -> Any:
            return self.net(z)

    class LatentODE(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.GRU(inputs, LATENT, batch_first=True)
            self.head = nn.Sequential(nn.Linear(LATENT, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 2 * LATENT))
            self.jump, self.field = nn.Linear(inputs + LATENT, LATENT), Field()
            self.decoder = nn.Linear(LATENT, size)

        def forward(self, x: Any) -> tuple[Any, Any]:
            mean, log_variance = self.head(self.encoder(x)[1][0]).chunk(2, -1)
            z = mean + torch.exp(log_variance / 2) * torch.randn_like(mean)
            states = []
            for k in range(x.shape[1]):
                z = self.jump(torch.cat([x[:, k], z], -1))
                # one solve for the batch, read off at each sample's own time
                times, index = torch.unique(tau[:, k], return_inverse=True)
                path = odeint(self.field, z, torch.cat([torch.zeros(1), times]), rtol=RTOL, atol=ATOL, method="dopri5")
                z = path[index + 1, torch.arange(len(z))]
                states.append(z)
            kl = 0.5 * (log_variance.exp() + mean**2 - 1 - log_variance).mean()
            return self.decoder(torch.stack(states, 1)), kl

    class RNN(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.decoder = nn.GRU(inputs, LATENT, batch_first=True), nn.Linear(LATENT, size)

        def forward(self, x: Any) -> tuple[Any, Any]:
            return self.decoder(self.gru(x)[0]), 0.0

    models = [LatentODE() if ode else RNN() for _ in range(seeds)]
    optimisers = [torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-3) for model in models]
    x = torch.cat([obs[:, :-1], action], -1)

    def step() -> None:
        for model, optimizer in zip(models, optimisers, strict=True):
            optimizer.zero_grad()
            predicted, kl = model(x)
            (((predicted - obs[:, 1:]) ** 2).mean() + kl).backward()
            optimizer.step()

    return step


def diffrax_step(case: str, seeds: int) -> Callable[[], None]:
    """The same Latent-ODE with Equinox's and diffrax's own parts, one example under `vmap`, jitted."""
    import diffrax
    import optax

    data = jax.tree.map(jnp.asarray, arrays(case))
    size, inputs = data.obs.shape[-1], data.obs.shape[-1] + data.action.shape[-1]

    class LatentODE(eqx.Module):
        encoder: eqx.nn.GRUCell
        head: eqx.nn.MLP
        jump: eqx.nn.Linear
        field: eqx.nn.MLP
        decoder: eqx.nn.Linear

        def __init__(self, key: Any) -> None:
            a, b, c, d, e = jax.random.split(key, 5)
            self.encoder = eqx.nn.GRUCell(inputs, LATENT, key=a)
            self.head = eqx.nn.MLP(LATENT, 2 * LATENT, HIDDEN, 1, jnp.tanh, key=b)
            self.jump = eqx.nn.Linear(inputs + LATENT, LATENT, key=c)
            self.field = eqx.nn.MLP(LATENT, LATENT, HIDDEN, 2, jnp.tanh, key=d)
            self.decoder = eqx.nn.Linear(LATENT, size, key=e)

        def __call__(self, x: Any, tau: Any, noise: Any) -> tuple[Any, Any]:
            h, _ = jax.lax.scan(lambda h, x: (self.encoder(x, h), None), jnp.zeros(LATENT), x)
            mean, log_variance = jnp.split(self.head(h), 2)

            def move(z: Any, step: Any) -> tuple[Any, Any]:
                x, tau = step
                z = diffrax.diffeqsolve(
                    diffrax.ODETerm(lambda t, z, args: self.field(z)),
                    diffrax.Dopri5(),
                    t0=0.0,
                    t1=tau,
                    dt0=None,
                    y0=self.jump(jnp.concatenate([x, z])),
                    stepsize_controller=diffrax.PIDController(rtol=RTOL, atol=ATOL),
                    max_steps=256,
                ).ys[0]
                return z, self.decoder(z)

            _, predicted = jax.lax.scan(move, mean + jnp.exp(log_variance / 2) * noise, (x, tau))
            return predicted, 0.5 * (jnp.exp(log_variance) + mean**2 - 1 - log_variance).mean()

    optimizer = optax.chain(optax.add_decayed_weights(1e-3), optax.adam(1e-3))
    x = jnp.concatenate([data.obs[:, :-1], data.action], -1)

    @eqx.filter_jit
    def step(model: Any, state: Any, key: Any) -> tuple[Any, Any]:
        def loss(model: Any) -> Any:
            predicted, kl = jax.vmap(model)(x, data.tau, jax.random.normal(key, (BATCH, LATENT)))
            return ((predicted - data.obs[:, 1:]) ** 2).mean() + kl.mean()

        changes, state = optimizer.update(eqx.filter_grad(loss)(model), state, eqx.filter(model, eqx.is_array))
        return eqx.apply_updates(model, changes), state

    models = [LatentODE(key) for key in jax.random.split(jax.random.key(0), seeds)]
    states = [optimizer.init(eqx.filter(model, eqx.is_array)) for model in models]

    def call() -> None:
        for i in range(seeds):
            models[i], states[i] = step(models[i], states[i], jax.random.key(1))
        jax.block_until_ready(jax.tree.leaves(eqx.filter(models, eqx.is_array)))

    return call


def measure() -> dict[str, dict[str, dict[str, float]]]:
    on_cpu = jax.default_backend() == "cpu"
    with_peers = on_cpu and has_peer("torchdiffeq")
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for case in CASES:
        figures[case] = {}
        for seeds in (1, 5) if on_cpu else (5,):
            found: dict[str, float] = {}
            if with_peers:
                found["torchdiffeq"] = 1e3 * seconds_a_call(torch_step(case, True, seeds), 0.0, 2)
                found["torchdiffeq-rnn"] = 1e3 * seconds_a_call(torch_step(case, False, seeds), 1.0)
            if on_cpu:
                found["diffrax"] = 1e3 * seconds_a_call(diffrax_step(case, seeds), 1.0)
            found |= {model: ours(case, model, SOLVER, seeds) for model in PAPER_MODELS}
            found["latent-ode-midpoint2"] = ours(case, "latent-ode", MIDPOINT, seeds)
            iterations = 20 if on_cpu else 2  # an adaptive loop is the slow path of a GPU
            found["latent-ode-dopri5"] = ours(case, "latent-ode", f"dopri5:{RTOL},{ATOL}", seeds, iterations)
            figures[case][str(seeds)] = found
    return figures


def many(seeds: str) -> str:
    return f"{seeds} seed{'s' * (seeds != '1')}"


def show(figures: dict[str, Any]) -> None:
    for case, by_seeds in figures.items():
        title = f"{case}: milliseconds per iteration, batch {BATCH}, {CASES[case]} decisions"
        rows = [[name, *(f"{found[name]:.4g}" for found in by_seeds.values())] for name in by_seeds["5"]]
        print_rows(["", *map(many, by_seeds)], rows, title=title)
        for seeds, found in by_seeds.items():
            if "torchdiffeq" in found:
                ode, adaptive = (found["torchdiffeq"] / found[n] for n in ("latent-ode", "latent-ode-dopri5"))
                print(
                    f"Latent-ODE, {many(seeds)}: {ode:.0f} times torchdiffeq ({SOLVER}), "
                    f"{adaptive:.0f} times with dopri5."
                )
        five = by_seeds["5"]
        print(
            f"The flow ({SOLVER}) takes {five['latent-ode'] / five['latent-ode-midpoint2']:.2g} times {MIDPOINT}. "
            f"Five seeds: Latent-ODE takes {five['latent-ode'] / five['latent-rnn']:.2g} times Latent-RNN, "
            f"{five['latent-ode'] / five['rnn']:.2g} times RNN."
        )


if __name__ == "__main__":
    settings = {"batch": BATCH, "decisions": CASES, "solver": SOLVER, "rtol": RTOL, "atol": ATOL}
    run("fit", measure, settings, show, __doc__)

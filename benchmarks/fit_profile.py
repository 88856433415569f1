"""Where a training iteration of the Latent-ODE spends its time, and how far that is from the arithmetic limit.

HIV, batch 32, 50 decisions, one seed and five: the same work with parts left out, in one run, beside the rate of a
large matrix product on the same machine. `kairode bench fit_profile`, with `--json` for the figures alone.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from _common import run, seconds_a_call
from fit import BATCH, CASES, experience, ours

from kairode.config.models import SOLVER
from kairode.config.presets import fit_preset
from kairode.models.initial import kl_to_standard_normal
from kairode.models.ode import METHODS, FixedSteps, parse_solver
from kairode.models.predict import encode, prepare
from kairode.models.zoo import build
from kairode.training.losses import objective

CALLS = 20


def operations(seeds: int) -> float:
    """Multiplications and additions of the matrix products of one iteration, gradients included (twice the forward)."""
    sizes, spec = fit_preset("hiv").sizes, experience("hiv").spec
    z, h, x = sizes.latent_size, sizes.field_hidden, len(spec.observations) + spec.actions.n
    solver = parse_solver(SOLVER, 1.0)
    assert isinstance(solver, FixedSteps)
    stages = int(METHODS[solver.method].b_sol.nonzero()[0][-1]) + 1
    field = 2 * h * h  # in hidden coordinates
    encoder, jump, decoder = 3 * z * (x + z), z * (x + z), z * len(spec.observations)
    timer = (x + z) * sizes.timer_hidden + sizes.timer_hidden * (spec.intervals.classes or 1)
    step = encoder + jump + 2 * z * h + solver.steps * stages * field + decoder + timer
    return 2.0 * 3.0 * step * BATCH * CASES["hiv"] * seeds


def fastest_product(size: int = 1024) -> float:
    """Operations a second of a large float32 matrix product."""
    a = jnp.ones((size, size))
    product = jax.jit(lambda a: a @ a)
    return 2.0 * size**3 / seconds_a_call(lambda: jax.block_until_ready(product(a)), 0.5)


def parts(seeds: int) -> dict[str, float]:
    """Milliseconds of parts of the iteration."""
    data = experience("hiv")
    sizes = dataclasses.replace(fit_preset("hiv").sizes, solver=SOLVER)
    keys = jax.random.split(jax.random.key(0), seeds)
    models = eqx.filter_vmap(lambda key: build("latent-ode", data.spec, sizes, key=key))(keys)
    params, static = eqx.partition(models, eqx.is_array)
    episodes = jax.tree.map(lambda x: x[:BATCH], prepare(models, data)).batch_last()
    weights = fit_preset("hiv").training.weights

    def whole(params: Any, key: Any) -> Any:
        model = eqx.combine(params, static)
        return objective(model, episodes, weights, truth=None, warm=jnp.ones(()), key=key).total

    def encoder(params: Any, key: Any) -> Any:
        q = encode(eqx.combine(params, static), episodes)
        assert q is not None
        return kl_to_standard_normal(q).mean()

    def many(function: Callable[..., Any]) -> float:
        """Repeated inside one compiled call, each with slightly other weights."""

        def again(params: Any, _: None) -> tuple[Any, None]:
            found = jax.vmap(function)(params, keys)
            size = sum(jnp.sum(x) for x in jax.tree.leaves(found))
            return jax.tree.map(lambda x: x + 1e-20 * size, params), None

        loop = jax.jit(lambda params: jax.lax.scan(again, params, None, length=CALLS)[0])
        return 1e3 * seconds_a_call(lambda: jax.block_until_ready(loop(params)), 1.0) / CALLS

    return {
        "encoder_forward": many(encoder),
        "encoder_and_gradient": many(jax.grad(encoder)),
        "objective_forward": many(whole),
        "objective_and_gradient": many(jax.grad(whole)),
        "whole_iteration": ours("hiv", "latent-ode", SOLVER, seeds),
    }


def measure() -> dict[str, dict[str, float]]:
    peak = fastest_product()
    figures = {}
    for seeds in (1, 5):
        found = parts(seeds)
        found["gigaoperations"] = operations(seeds) / 1e9
        found["limit_at_product_rate"] = 1e3 * operations(seeds) / peak
        found["times_the_limit"] = found["whole_iteration"] / found["limit_at_product_rate"]
        figures[str(seeds)] = found
    figures["machine"] = {"product_gigaoperations_a_second": peak / 1e9}
    return figures


def show(figures: dict[str, Any]) -> None:
    for seeds in ("1", "5"):
        print(f"Latent-ODE on HIV, {seeds} seed{'s' * (seeds != '1')}, milliseconds:")
        for name, value in figures[seeds].items():
            print(f"  {name.replace('_', ' '):28s}{value:10.4g}")
    rate = figures["machine"]["product_gigaoperations_a_second"]
    print(f"A large matrix product runs at {rate:.3g} thousand million operations a second.")


if __name__ == "__main__":
    run("fit_profile", measure, {"batch": BATCH, "solver": SOLVER}, show, __doc__)

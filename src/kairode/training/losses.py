"""Training losses: equations (8) to (10) of the paper."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from kairode.config.training import LossWeights
from kairode.models.dynamics import DynamicsModel
from kairode.models.initial import kl_to_standard_normal
from kairode.models.networks import unfold
from kairode.models.ode import FixedSteps
from kairode.models.predict import Course, Episodes, encode, follow, timer_features
from kairode.models.transition import FlowTransition


class Terms(NamedTuple):
    """Unweighted terms of the objective, and their weighted sum."""

    total: Any
    state: Any
    kl: Any
    timer: Any
    field: Any
    """Weighted sum of the regularisers of the vector field."""


def masked_mean(values: Float[Array, "*axes"], mask: Bool[Array, "*axes"]) -> Float[Array, ""]:
    """Mean over the marked values; 0 if none is."""
    return jnp.where(mask, values, 0.0).sum() / jnp.maximum(mask.sum(), 1)


def state_error(predicted: Float[Array, "T d n"], episodes: Episodes) -> Float[Array, ""]:
    """Squared error of predicted observations 1 .. T, mean over valid steps and dimensions that were measured."""
    squares = (predicted - episodes.obs[1:]) ** 2
    if episodes.observed is None:
        return masked_mean(squares.mean(1), episodes.real)
    return masked_mean(squares, episodes.observed[1:] & episodes.real[:, None])


def timer_loss(model: DynamicsModel, course: Course, episodes: Episodes) -> Float[Array, ""]:
    """Timer loss of g(z_i, a_i, s_i), mean over valid steps, equation (10)."""
    features = timer_features(model, course, episodes)
    return masked_mean(jax.vmap(model.timer.loss)(features, episodes.tau), episodes.real)


def field_terms(
    model: DynamicsModel, course: Course, episodes: Episodes, weights: LossWeights, key: Key[Array, ""]
) -> Float[Array, ""]:
    """Regularisers of the vector field at the start of every interval, in normalised time s."""
    transition = model.transition
    if not (weights.regularised and isinstance(transition, FlowTransition)):
        return jnp.zeros(())
    start = jax.vmap(transition.entry)(course.before, course.drive)
    noise = jax.random.normal(key, start.shape)

    def terms(z: Array, tau: Array, e: Array) -> Array:
        def velocity(z: Array) -> Array:
            return tau[None] * transition.field(z)

        speed, pull = jax.vjp(velocity, z)
        bend = jax.jvp(velocity, (z,), (speed,))[1] if weights.curvature > 0 else jnp.zeros_like(z)
        parts = (weights.energy, speed), (weights.jacobian, pull(e)[0]), (weights.curvature, bend)
        return sum((weight * (x**2).mean(0) for weight, x in parts), jnp.zeros_like(tau))

    return masked_mean(jax.vmap(terms)(start, episodes.tau, noise), episodes.real)


SHARE = 16
"""Of so many decisions, one is used for the consistency term."""


def consistency(model: DynamicsModel, course: Course, episodes: Episodes, key: Key[Array, ""]) -> Float[Array, ""]:
    """Squared difference between the solver's steps and twice as many, at random decisions; 0 without fixed steps.

    The decisions are independent of each other given their latent states, so this is one solve of many columns.
    """
    transition = model.transition
    if not (isinstance(transition, FlowTransition) and isinstance(transition.solver, FixedSteps)):
        return jnp.zeros(())
    decisions, count = episodes.tau.shape
    chosen = jax.random.randint(key, (max(1, decisions * count // SHARE),), 0, decisions * count)
    before, drive, tau, real = (
        jnp.moveaxis(x, 0, -2).reshape(*x.shape[1:-1], -1)[..., chosen]
        for x in (course.before, course.drive, episodes.tau, episodes.real)
    )
    start = jax.lax.stop_gradient(transition.entry(before, drive))
    # Twice as many steps are as many for each half of the interval; the first half is solved beside the whole.
    solve, field, half = transition.solver.solve, transition.field, tau / 2
    both = solve(unfold(field, 2 * len(chosen)), jnp.tile(start, 2), jnp.concatenate([tau, half]))
    once, middle = jnp.split(both, 2, axis=1)
    apart = once - solve(unfold(field, len(chosen)), middle, half)
    return masked_mean((apart**2).mean(0), real)


def objective(
    model: DynamicsModel,
    episodes: Episodes,
    weights: LossWeights,
    *,
    truth: Float[Array, ""] | None,
    warm: Float[Array, ""],
    key: Key[Array, ""],
) -> Terms:
    """Loss of a batch (batch on the last axis).

    Args:
        model: the model.
        episodes: the batch.
        weights: weights of the terms.
        truth: probability of feeding the true observation at a step (scheduled sampling); None for always.
        warm: factor of the KL weight, from 0 to 1.
        key: for z_0, scheduled sampling and the regularisers.
    """
    start_key, sees_key, field_key = jax.random.split(key, 3)
    count = episodes.tau.shape[-1]
    q = encode(model, episodes)
    if q is None:
        z = jnp.zeros((model.initial.size, count))
        kl = jnp.zeros(())
    else:
        z = q.draw(jax.random.normal(start_key, q.mean.shape))
        kl = kl_to_standard_normal(q).mean()
    sees = None if truth is None else jax.random.bernoulli(sees_key, truth, episodes.tau.shape)
    course = follow(model, z, episodes, sees)
    state = state_error(course.obs, episodes)
    timer = timer_loss(model, course, episodes)
    field = field_terms(model, course, episodes, weights, field_key)
    if weights.consistency > 0:
        field = field + weights.consistency * consistency(model, course, episodes, jax.random.fold_in(field_key, 1))
    total = state + weights.kl * warm * kl + weights.timer * timer + field
    return Terms(total, state, kl, timer, field)

"""Saved policies: a JSON description and weights in safetensors format."""

import dataclasses
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from kairode.agents.actor_critic import Networks, init_actor_critic
from kairode.agents.actor_policy import ActorPolicy
from kairode.agents.encoder import IdentityEncoder, LatentEncoder
from kairode.agents.network import ReLUNetwork
from kairode.agents.obs_normalizer import ObsNormalizer
from kairode.agents.q_policy import QPolicy
from kairode.agents.support import ActionSupport, BehaviorPolicy
from kairode.config.agents import ActorCriticConfig
from kairode.config.serialize import from_dict
from kairode.data.describe import spec_from_dict, spec_to_dict
from kairode.envs.core import Spec
from kairode.errors import MALFORMED, KairodeError
from kairode.models.dynamics import DynamicsModel
from kairode.training import checkpoint

NAME = "policy"


def save_policy(folder: str | Path, policy: QPolicy | ActorPolicy, about: dict[str, Any] | None = None) -> None:
    """Save a policy. The model of a latent policy is saved by the run that fitted it."""
    if isinstance(policy, ActorPolicy):
        _save_actor(folder, policy, about)
        return
    if not isinstance(policy, QPolicy):
        raise KairodeError(
            f"a {type(policy).__name__} cannot be saved: give a policy from kairode.learn or kairode.learn_offline."
        )
    support = policy.support
    parts = policy.q if support is None else (policy.q, _with_array(support))
    checkpoint.save(
        folder,
        eqx.filter(parts, eqx.is_array),
        NAME,
        sizes=_sizes(policy.q),
        support=None if support is None else _sizes(support.behavior.net),
        sees="z" if isinstance(policy.encoder, LatentEncoder) else "s",
        epsilon=policy.epsilon,
        scale=policy.scale,
        accrues=policy.accrues,
        spec=spec_to_dict(policy.spec),
        **_origin(policy.spec, about),
    )


def _save_actor(folder: str | Path, policy: ActorPolicy, about: dict[str, Any] | None) -> None:
    checkpoint.save(
        folder,
        eqx.filter((policy.networks, policy.normalizer), eqx.is_array),
        NAME,
        agent=dataclasses.asdict(policy.settings),
        sizes=_sizes(policy.networks.actor),
        places=list(policy.normalizer.places),
        explores=policy.explores,
        sees="s",
        epsilon=0.0,
        spec=spec_to_dict(policy.spec),
        **_origin(policy.spec, about),
    )


def _origin(spec: Spec, about: dict[str, Any] | None) -> dict[str, Any]:
    """The environment of a policy."""
    return {"env": spec.name, "setting": "ours", "fields": {}, "schedule": None, **(about or {})}


def _sizes(network: ReLUNetwork) -> list[int]:
    return [network.weights[0].shape[1], *(weight.shape[0] for weight in network.weights)]


def _with_array(support: ActionSupport) -> ActionSupport:
    """With the threshold as an array, which is saved."""
    return ActionSupport(support.behavior, jnp.asarray(support.threshold, jnp.float32))


def _new_network(sizes: list[int], support: list[int] | None, spec: Spec) -> Any:
    """A Q-network of these sizes; with the support of actions, if the policy has one."""
    q = ReLUNetwork.new(*sizes, key=jax.random.key(0))
    if support is None:
        return q
    net = ReLUNetwork.new(*support, key=jax.random.key(0))
    features, actions = jnp.zeros(support[0]), jnp.zeros(support[-1])
    return q, ActionSupport(BehaviorPolicy(net, features, features, actions, spec), jnp.zeros(()))


def describe_policy(folder: str | Path) -> dict[str, Any]:
    """The description of a saved policy, without its weights: environment, schedule, sizes, epsilon."""
    if not checkpoint.exists(folder, NAME):
        raise KairodeError(f"there is no policy in {folder}: give the folder of `kairode run` or `kairode dyna`.")
    about = checkpoint.describe(folder, NAME)
    for name in ("sizes", "sees", "epsilon", "spec", "env", "setting", "fields", "schedule"):
        if name not in about:
            raise KairodeError(f"{Path(folder) / f'{NAME}.json'} is damaged: '{name}' is missing.")
    return about


def _new_actor(settings: ActorCriticConfig, spec: Spec, places: tuple[int, ...]) -> tuple[Networks, ObsNormalizer]:
    features = len(spec.observations)
    networks = init_actor_critic(features, spec.actions.n, settings, key=jax.random.key(0)).networks
    return networks, dataclasses.replace(ObsNormalizer.new(spec), places=places)


def _read_actor(folder: str | Path, about: dict[str, Any]) -> ActorPolicy:
    path = Path(folder) / f"{NAME}.json"
    try:
        spec, places = spec_from_dict(about["spec"]), tuple(int(place) for place in about["places"])
        settings, explores = from_dict(ActorCriticConfig, about["agent"], file=path), bool(about["explores"])
        shapes = eqx.filter_eval_shape(_new_actor, settings, spec, places)
    except MALFORMED as error:
        raise KairodeError(f"{path} is damaged: it does not describe a policy ({error}).") from error
    checkpoint.compare_description(folder, shapes, NAME)  # before any memory is taken
    networks, normalizer = checkpoint.load(folder, _new_actor(settings, spec, places), NAME)
    if checkpoint.describe(folder, NAME)["sha256"] != about["sha256"]:  # another process has replaced it meanwhile
        return _read_actor(folder, describe_policy(folder))
    return ActorPolicy(networks, normalizer, settings, spec, explores)


def read_policy(folder: str | Path, model: DynamicsModel | None = None) -> Any:
    """Load a `QPolicy` or an `ActorPolicy`; a latent policy needs the model it was trained with."""
    about = describe_policy(folder)
    if "agent" in about:
        return _read_actor(folder, about)
    path = Path(folder) / f"{NAME}.json"
    try:
        sizes, spec, sees = [int(size) for size in about["sizes"]], spec_from_dict(about["spec"]), about["sees"]
        epsilon, scale = float(about["epsilon"]), float(about.get("scale", 1.0))
        accrues = bool(about.get("accrues", False))
        known = None if about.get("support") is None else [int(size) for size in about["support"]]
        shapes = eqx.filter_eval_shape(_new_network, sizes, known, spec)
    except MALFORMED as error:
        raise KairodeError(f"{path} is damaged: it does not describe a policy ({error}).") from error
    checkpoint.compare_description(folder, shapes, NAME)  # before any memory is taken
    found = checkpoint.load(folder, _new_network(sizes, known, spec), NAME)
    if checkpoint.describe(folder, NAME)["sha256"] != about["sha256"]:  # another process has replaced it meanwhile
        return read_policy(folder, model)
    q, support = (found, None) if known is None else found
    if sees == "s":
        return QPolicy(q, IdentityEncoder(), spec, epsilon, scale, accrues, support)
    if model is None:
        raise KairodeError(f"the policy in {folder} is conditioned on the latent state of a model: pass the model too.")
    return QPolicy(q, LatentEncoder(model), spec, epsilon, scale, accrues, support)

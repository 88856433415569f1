"""Seeds divided over cores: every seed once, and the same weights to the last bit."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kairode
from kairode._xla import for_threads
from kairode.config.models import ModelConfig
from kairode.config.training import TrainingConfig
from kairode.models.zoo import build
from kairode.training import threads
from kairode.training.loop import train
from kairode.training.threads import MOST, seed_groups

SMALL = ModelConfig(latent_size=4, encoder_hidden=5, field_hidden=6, timer_hidden=5)
QUICK = TrainingConfig(iterations=12, batch_size=4, validate_every=4)


@given(st.integers(1, 40))
def test_groups_hold_every_seed_once(seeds: int) -> None:
    groups = seed_groups(seeds)
    assert [i for group in groups for i in range(seeds)[group]] == list(range(seeds))
    sizes = [len(range(seeds)[group]) for group in groups]
    assert seeds == 1 or len(groups) % 2 == 0
    assert max(sizes) - min(sizes) <= 1
    assert 1 <= min(sizes) <= max(sizes) <= MOST


@pytest.mark.parametrize("model", ["rnn", pytest.param("latent-ode", marks=pytest.mark.slow)])
def test_weights_do_not_depend_on_the_number_of_cores(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = kairode.collect(kairode.make("hiv", horizon=60), episodes=20, seed=0)
    models = eqx.filter_vmap(lambda key: build(model, data.spec, SMALL, key=key))(
        jax.random.split(jax.random.key(0), 5)
    )
    settings = dataclasses.replace(QUICK, patience=1)
    found = []
    for count in (1, 2):
        monkeypatch.setattr(threads, "cores", lambda count=count: count)
        found.append(train(models, settings, data, data, seeds=range(5)))
    one, two = found
    assert one.validation == two.validation
    assert one.iterations == two.iterations
    for a, b in zip(jax.tree.leaves(one.models), jax.tree.leaves(two.models), strict=True):
        np.testing.assert_array_equal(a, b)


def test_threads_have_the_settings_of_their_caller() -> None:
    names = ("jax_enable_x64", "jax_default_matmul_precision", "jax_debug_nans", "jax_default_device")

    def settings() -> list[Any]:
        return [getattr(jax.config, name) for name in names]

    device = jax.devices()[0]
    with (
        jax.enable_x64(True),
        jax.default_matmul_precision("highest"),
        jax.debug_nans(True),
        jax.default_device(device),
    ):
        call = for_threads(settings)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(call).result() == [True, "highest", True, device]
        assert pool.submit(settings).result() == settings()

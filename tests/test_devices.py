"""Several devices give the same weights as one: four virtual CPU devices, in a process of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

import kairode
from kairode import devices
from kairode.errors import KairodeError

VIRTUAL = "--xla_force_host_platform_device_count=4"


def on_four(what: str) -> dict[str, Any]:
    program = Path(__file__).parent / "devices_program.py"
    env = {**os.environ, "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {VIRTUAL}", "KAIRODE_SAVE_SECONDS": "0"}
    done = subprocess.run([sys.executable, program, what], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_fit_divided_by_seed_and_batch() -> None:
    """Two seeds on four devices: half of each batch on every device, after 100 iterations."""
    found = on_four("rnn:2")
    assert found["weights"] < 1e-5
    assert found["moved"] > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 4, 6])
def test_fits_divided_in_all_ways(seeds: int) -> None:
    """Also half of it on four devices and the rest on one. With a multiple of four seeds, nothing is exchanged."""
    found = on_four(f"latent-ode:{seeds}")
    assert found["weights"] < 1e-5
    assert 0 < found["resumed"] < 1e-5
    assert found["moved"] > 1e-2
    assert (found["collectives"] == 0) == (seeds == 4)


@pytest.mark.slow
def test_agents_divided() -> None:
    """Two groups of agents, neither a multiple of four."""
    found = on_four("agents")
    assert found["weights"] < 1e-5
    assert found["returns"] < 1e-5
    assert found["decisions"][0] == found["decisions"][1]
    assert min(found["decisions"][0]) >= 100
    assert found["same_curve"][0] == found["same_curve"][1]


@pytest.mark.slow
def test_a_stream_on_several_devices() -> None:
    assert on_four("streamed")["weights"] < 1e-5


def test_every_device_has_a_share_of_every_group() -> None:
    """Groups of 5 and 3 agents on four devices: two and one on each, filled up with copies."""
    token = devices._count.set(4)
    try:
        found = devices.AgentDevices.of([5, 3])
    finally:
        devices._count.reset(token)
    assert found.shares == (2, 1)
    assert found.order.tolist() == [0, 1, 5, 2, 3, 6, 4, 4, 7, 4, 4, 7]
    agents = jnp.arange(8)
    assert found.spread(agents).tolist() == found.order.tolist()
    assert found.together(found.spread(agents)).tolist() == agents.tolist()
    assert found.spread_group(0, agents[:5]).tolist() == [0, 1, 2, 3, 4, 4, 4, 4]
    assert found.spread_group(1, agents[5:]).tolist() == [5, 6, 7, 7]


def test_devices_that_are_not_there(typed) -> None:
    with pytest.raises(KairodeError, match=r"and JAX has .*device_count=64"), kairode.use_devices(64):
        pass
    with pytest.raises(KairodeError, match="at least 1"), kairode.use_devices(0):
        pass
    code, _, err = typed("fit", "hiv", "--devices", "64")
    assert code == 2
    assert "xla_force_host_platform_device_count=64" in err
    code, _, err = typed("run", "pendulum", "--devices", "2")
    assert code == 2
    assert "MPC runs on one device" in err

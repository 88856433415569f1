"""The figure of a course: its line passes through what was seen at the decisions."""

import numpy as np
import pytest

import kairode
from kairode.envs.hiv import UNHEALTHY
from kairode.envs.zoo import ENVIRONMENTS
from kairode.report.course import draw_course
from kairode.runs.course import POINTS, between_decisions, course
from kairode.text import MOST


@pytest.mark.parametrize(
    ("name", "fields"), [("hiv", {"horizon": 120}), ("hiv-partial", {"horizon": 60}), ("acrobot", {"horizon": 8})]
)
def test_the_line_passes_through_the_decisions(name: str, fields: dict) -> None:
    env = kairode.make(name, **fields)
    episode = kairode.collect(env, episodes=1, seed=0)[0]
    time, between = between_decisions(env, episode)
    steps = int(episode.length)
    assert len(time) == steps * POINTS + 1
    np.testing.assert_allclose(time[::POINTS], episode.time[: steps + 1], rtol=1e-6)
    assert (np.diff(time) > 0).all()
    np.testing.assert_allclose(between[::POINTS], episode.observation[: steps + 1], atol=1e-4)


def test_the_same_episode_is_the_same_file(tmp_path) -> None:
    env = kairode.make("gridworld", max_decisions=10)
    found = course(env, kairode.collect(env, episodes=1, seed=0)[0])
    for name in ("one", "again"):
        draw_course(found, tmp_path / f"{name}.svg", "one episode")
    assert (tmp_path / "one.svg").read_text() == (tmp_path / "again.svg").read_text()


def test_counts_in_place_of_standardized_logarithms() -> None:
    env = kairode.make("hiv", horizon=20)
    found = course(env, kairode.collect(env, episodes=1, seed=0)[0])
    np.testing.assert_allclose(found["seen"][0], UNHEALTHY, rtol=1e-4)
    assert found["variables"][4] == {"name": "V", "unit": "per ml", "log": True}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_environment_can_be_drawn(name: str, tmp_path) -> None:
    env = kairode.make(name, max_decisions=10)
    episode = kairode.collect(env, episodes=1, seed=0)[0]
    draw_course(course(env, episode), tmp_path / "course.svg", "one episode")
    drawn = (tmp_path / "course.svg").read_text()
    assert drawn.startswith("<?xml")
    assert "one episode" in drawn
    variables = episode.spec.observations
    for variable in variables[:MOST]:
        assert variable.name in drawn
    assert (f"{MOST} of {len(variables)} variables: the first" in drawn) == (len(variables) > MOST)

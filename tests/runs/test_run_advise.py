"""`kairode advise`: as people type it."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kairode as kd
from kairode.agents.encoder import IdentityEncoder
from kairode.agents.network import ReLUNetwork
from kairode.agents.q_policy import QPolicy
from kairode.config.models import ModelConfig
from kairode.config.tables import TableConfig
from kairode.models.zoo import build
from kairode.report.data.advice import draw_advice
from kairode.runs.folder import RunFolder

TABLE = TableConfig(episode="who", time="when", action=("drug",), categorical=("sex",), static=("sex",))


@dataclasses.dataclass(frozen=True)
class Config:
    """As that of `kairode learn`."""

    table: TableConfig = TABLE
    price: float | None = None
    budget: int | None = None


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run folder, whose policy takes `<b>` where x is positive."""
    rng, place = np.random.default_rng(0), tmp_path_factory.mktemp("runs") / "run"
    days = np.datetime64("2024-01-01") + np.cumsum(rng.integers(1, 4, (20, 5)), 1).ravel().astype("timedelta64[D]")
    table = {
        "who": np.repeat(np.arange(20), 5),
        "when": days.astype("datetime64[us]"),
        "x": rng.uniform(-1, 1, 100),
        "sex": np.repeat(rng.choice(["F", "M"], 20), 5),
        "drug": rng.choice(["a", "<b>"], 100),
    }
    options: dict[str, Any] = {"categorical": ["sex"], "static": ["sex"]}
    data = kd.load_table(table, episode="who", time="when", action="drug", **options)
    sizes = ModelConfig(latent_size=3, field_hidden=4, timer_hidden=4)
    models = [build("dt-rnn", data.spec, sizes, key=jax.random.key(i)) for i in range(3)]
    weights = jnp.array([[1.0, 0.0], [0.0, 0.0]])
    policy = QPolicy(ReLUNetwork((weights,), (jnp.zeros(2),)), IdentityEncoder(), data.spec, 0.0)
    assert data.spec.actions.names == ("<b>", "a")
    made = place.parent / "saved"
    kd.Advisor(models, policy, data=data).save(made)
    with RunFolder.open(place, "offline", Config()) as folder:
        for file in made.rglob("*"):
            if file.is_file():
                (place / file.relative_to(made)).parent.mkdir(exist_ok=True, parents=True)
                (place / file.relative_to(made)).write_bytes(file.read_bytes())
        folder.finish({"kind": "offline"})
    return place


def test_a_first_visit(run: Path, typed: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    new = tmp_path / "new.csv"
    new.write_text("who,when,x,sex\np,2024-05-01,0.5,F\n")
    code, out, err = typed("advise", str(run), str(new), "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert {"action", "next_visit", "values", "course", "out_of_distribution", "warnings"} <= found.keys()
    assert found["action"] == "<b>"
    assert found["values"] == pytest.approx({"<b>": 0.5, "a": 0.0})
    assert found["next_date"] == f"2024-05-0{1 + int(found['next_visit'])}"
    assert len(found["course"]["times"]) == len(found["course"]["variables"]["x"]["0.95"]) == 20
    assert json.loads((run / "advice" / "new" / "advice.json").read_text())["action"] == "<b>"
    picture = (run / "advice" / "new" / "advice.svg").read_text()
    assert "&lt;b&gt;" in picture
    assert "<b>" not in picture
    RunFolder(run).check()
    assert typed("advise", str(run), str(new), "--json")[0] == 0


def test_several_episodes(run: Path, typed: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    new = tmp_path / "two.csv"
    new.write_text("who,when,x,sex,drug\np,2024-05-01,0.5,F,a\np,2024-05-03,-9,F,\nq,2024-05-02,0.2,,\n")
    code, out, err = typed("advise", str(run), str(new), "--out", str(tmp_path / "out"))
    assert (code, err) == (0, "")
    assert "p:\nat 2 days: a\nnext visit: in" in out
    assert "unlike the data: x = -9 is outside of the data's range" in out
    assert "next visit on 2024-05-0" in out
    assert "never measured, so the policy is given the value that is usual at first" in out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["advice-1.svg", "advice-2.svg", "advice.json"]
    first, second = json.loads((tmp_path / "out" / "advice.json").read_text())
    assert (first["episode"], second["episode"]) == ("p", "q")
    assert first["history"] == {
        "times": [0.0, 2.0],
        "observations": {"x": [0.5, -9.0], "sex=M": [0.0, 0.0]},
        "actions": ["a"],
    }


def test_what_cannot_be_advised(run: Path, typed: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    new = tmp_path / "new.csv"
    new.write_text("who,when,x,sex,drug\np,2024-05-01,0.5,X,c\np,2024-05-03,high,F,\n")
    for words, complaint in (
        ((str(run), str(new)), "new.csv: 3 faults"),
        ((str(run), str(new), "--price", "2"), "takes neither price nor budget"),
        ((str(tmp_path), str(new)), "there is no advisor in"),
        ((str(run), str(tmp_path / "none.csv")), "no such file"),
    ):
        code, out, err = typed("advise", *words, "--out", str(tmp_path / "nowhere"))
        assert (code, out) == (2, "")
        assert complaint in err
    assert not (tmp_path / "nowhere").exists()


def test_odd_names_and_many_variables(tmp_path: Path) -> None:
    """At most twelve panels; names are text; controls are lines."""
    course = {key: [0.1, 0.2] for key in ("mean", "0.05", "0.25", "0.5", "0.75", "0.95")}
    names = [f"_$x_{i}$\u202e<b>" for i in range(14)]
    found = {
        "episode": "$1$",
        "action": {"dose": 1.0},
        "time": 1.0,
        "next_visit": 1.0,
        "next_time": 2.0,
        "time_unit": "day",
        "values": {"advised": 1.0},
        "course": {"times": [2.0, 3.0], "variables": dict.fromkeys(names, course)},
        "out_of_distribution": True,
        "history": {
            "times": [0.0, 1.0],
            "observations": {name: [None, None] for name in names},
            "actions": [{"dose": 0.5}],
        },
    }
    draw_advice(found, tmp_path / "advice.svg")
    picture = (tmp_path / "advice.svg").read_text()
    assert "12 of 14 variables" in picture
    assert "unlike the data" in picture
    assert "\u202e" not in picture
    assert "<b>" not in picture

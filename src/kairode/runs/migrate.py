"""Configs and records of earlier formats, read as today's.

Format 0 is a folder with `config.json` and no manifest, and a record without a `format`. A renamed option is one entry
here: `CONFIGS["rounds"] = lambda config: renamed(config, {"each": "episodes_per_round"})`.
"""

from collections.abc import Callable, Mapping
from typing import Any

FORMAT = 1
"""Of manifests and records written today."""

KINDS: dict[str, str] = {}
"""Kinds of runs that have another name since format 0."""

CONFIGS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""From a config of format 0 to today's, by the kind's name in format 0."""

FINISHED: dict[str, Callable[[dict[str, Any]], bool]] = {
    "rounds": lambda record: "test" in record.get("figures", {}),  # a record was written after every round
}
"""Whether a record of format 0 is that of a finished run, by the kind's name in format 0; otherwise every one is."""


def migrate(kind: str, config: Mapping[str, Any], version: int = 0) -> tuple[str, dict[str, Any]]:
    """Kind and config as today's version names them."""
    if version >= FORMAT:
        return kind, dict(config)
    change = CONFIGS.get(kind, dict)
    return KINDS.get(kind, kind), change(dict(config))


def earlier_name(kind: str) -> str:
    """What a kind of run was called in format 0."""
    return next((old for old, new in KINDS.items() if new == kind), kind)


def migrate_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as today's version writes it."""
    version = int(record.get("format", 0))
    kind, config = migrate(record["kind"], record["config"], version)
    return {**record, "format": FORMAT, "kind": kind, "config": config}


def is_finished(record: Mapping[str, Any] | None) -> bool:
    """Whether a record of format 0 says that its run was finished."""
    if record is None:
        return False
    return FINISHED.get(record.get("kind", ""), lambda _: True)(dict(record))


def renamed(config: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """A config with some fields at other paths ("dqn.every" -> "dqn.target_every"); missing ones are left out."""
    found = _copy(config)
    for old, new in names.items():
        *way, last = old.split(".")
        place = _inside(found, way)
        if place is None or last not in place:
            continue
        value = place.pop(last)
        *way, last = new.split(".")
        target = _inside(found, way, create=True)
        assert target is not None
        target[last] = value
    return found


def _copy(value: Any) -> Any:
    return {name: _copy(item) for name, item in value.items()} if isinstance(value, Mapping) else value


def _inside(config: dict[str, Any], way: list[str], create: bool = False) -> dict[str, Any] | None:
    for name in way:
        if create:
            config.setdefault(name, {})
        if not isinstance(config.get(name), dict):
            return None
        config = config[name]
    return config

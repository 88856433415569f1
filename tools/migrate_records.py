"""Rewrite records in today's format: `python tools/migrate_records.py [FOLDER ..]` (results/ by default).

Those that have it already stay as they are, to the byte.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from kairode.files import load_json, save_json
from kairode.runs.record import read_record


def migrate_folder(folder: Path) -> list[Path]:
    """Rewrite the records of a folder; those that changed."""
    changed = []
    for path in sorted(folder.rglob("*.json")):
        before = load_json(path)
        if not (isinstance(before, dict) and {"kind", "figures"} <= before.keys()):
            continue  # no record
        after = read_record(path)
        if after != before:
            save_json(path, after)
            changed.append(path)
    return changed


def main(folders: Sequence[str]) -> None:
    """Of each folder the records that were rewritten."""
    for folder in folders or ["results"]:
        changed = migrate_folder(Path(folder))
        print(f"{folder}: {len(changed)} records rewritten.")


if __name__ == "__main__":
    main(sys.argv[1:])

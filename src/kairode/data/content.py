"""Digest of the content of a table: column names, types, values and the description of its variables.

It is written with the file and verified when the file is read. It does not depend on how Parquet stores the values, so
a file that another program wrote again unchanged is still valid.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from kairode.errors import KairodeError

KEY = b"kairode"
"""Metadata of a file: the description of its variables."""
DIGEST_KEY = b"kairode_digest"
"""Metadata of a file: the digest of its content."""


class ContentDigest:
    """SHA-256 of the rows of a table, which may be given in parts."""

    def __init__(self) -> None:
        self._columns: dict[str, tuple[Any, Any]] = {}
        """Hashes of the values and of the empty cells of each column."""
        self._rows = 0
        self._description = b""

    def update(self, table: pa.Table) -> None:
        """Add rows: the first ones, or those that follow."""
        if not self._rows:
            self._description = (table.schema.metadata or {}).get(KEY, b"")
        for i, name in enumerate(table.column_names):
            values, empty = self._columns.setdefault(name, (hashlib.sha256(), hashlib.sha256()))
            row = self._rows
            for chunk in table.column(i).chunks:
                if not len(chunk):
                    continue
                kind, content = _values(chunk)
                values.update(b"" if row else kind)
                values.update(content)
                if chunk.null_count:
                    places = np.flatnonzero(chunk.is_null().to_numpy(zero_copy_only=False)) + row
                    empty.update(places.astype("<i8").tobytes())
                row += len(chunk)
        self._rows += table.num_rows

    def hexdigest(self) -> str:
        """Of all rows so far."""
        whole = hashlib.sha256(self._description)
        whole.update(str(self._rows).encode())
        for name, (values, empty) in self._columns.items():
            encoded = name.encode("utf-8", "surrogatepass")
            whole.update(len(encoded).to_bytes(8, "little") + encoded + values.digest() + empty.digest())
        return whole.hexdigest()


def _values(chunk: pa.Array) -> tuple[bytes, Any]:
    """The type of a column, and its values as bytes: eight of the digest of each name where they are no numbers."""
    kind = chunk.type
    if pa.types.is_boolean(kind):
        chunk, kind = chunk.cast(pa.uint8()), pa.uint8()
    if pa.types.is_floating(kind) or pa.types.is_integer(kind):
        filled = chunk.fill_null(0) if chunk.null_count else chunk
        return str(kind).encode(), np.ascontiguousarray(filled.to_numpy(zero_copy_only=False))
    if not pa.types.is_dictionary(kind):
        chunk = chunk.dictionary_encode()
    names = [
        hashlib.sha256(repr(name).encode("utf-8", "surrogatepass")).digest()[:8]
        for name in chunk.dictionary.to_pylist()
    ]
    table = np.frombuffer(b"".join([*names, bytes(8)]), np.uint64)
    codes = chunk.indices.cast(pa.int64()).fill_null(len(names)).to_numpy(zero_copy_only=False)
    return b"names", table[codes]


def verify(path: str | Path, metadata: Mapping[bytes, bytes] | None, found: ContentDigest) -> None:
    """Raise if a file has a digest that its content does not have."""
    wanted = (metadata or {}).get(DIGEST_KEY)
    if wanted is not None and wanted != found.hexdigest().encode():
        raise KairodeError(
            f"{path}: the content differs from the digest that was written with it: the file is damaged, or was "
            "edited. Restore it; if you edited it, drop its metadata 'kairode_digest', or write it with kairode.write."
        )

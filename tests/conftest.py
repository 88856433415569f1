"""Strict tests: shapes are checked, ranks never promoted silently, warnings are errors."""

import os
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="kairode-cache-")

import kairode  # noqa: E402, F401  sets what JAX needs before it starts
import jax  # noqa: E402
import jaxtyping  # noqa: E402

jaxtyping.install_import_hook("kairode", "beartype.beartype")
jax.config.update("jax_numpy_rank_promotion", "raise")

"""Strict tests: shapes are checked, ranks never promoted silently, warnings are errors."""

import atexit
import os
import shutil
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="kairode-cache-")
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)

import kairode  # noqa: E402, F401, I001  sets what JAX needs before it starts
import jax  # noqa: E402
import jaxtyping  # noqa: E402

# The tower: a whole number is a fine float.
jaxtyping.install_import_hook("kairode", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")
jax.config.update("jax_numpy_rank_promotion", "raise")

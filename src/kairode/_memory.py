"""How much memory there is, so that what cannot fit is refused with a sentence before it is tried."""

import contextlib
import os
from pathlib import Path

from kairode.errors import KairodeError

OUT_OF_MEMORY = (
    "the memory is not enough: free some, or take a smaller batch (--batch-size), fewer seeds or shorter chunks "
    "(--chunk-length); --stream reads a large file in parts."
)
LEAST_ADDRESS = 3 * 2**30
"""Address space that the smallest fit takes (2 cores); of it, about 1.1 GiB are resident."""
_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def available_memory() -> int | None:
    """Bytes that this process can still take, by the system, its container and its limits; None if unknown."""
    found = [_system(), *(_container(*paths) for paths in _CGROUPS), _limit()]
    return min((size for size in found if size is not None), default=None)


def check_process() -> None:
    """Raise if the limit on the address space is below what JAX needs to start: it would abort without a word."""
    limit = _address_limit()
    if limit is not None and limit < LEAST_ADDRESS:
        raise KairodeError(
            f"the limit on this process's address space is {_gib(limit)}, and {_gib(LEAST_ADDRESS)} are needed: raise "
            "it (ulimit -v)."
        )


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory could not be had; JAX's own is known by its text."""
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error) or "Out of memory" in str(error)


def check_memory(size: int, what: str, advice: str) -> None:
    """Raise if something of this size does not fit into the memory that is left."""
    left = available_memory()
    if left is not None and size > left:
        raise KairodeError(f"{what} need {_gib(size)} of memory, and {_gib(left)} are left: {advice}.")


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"


def _system() -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def _container(limit: str, used: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):  # "max": no limit
        lines = (Path(used).parent / "memory.stat").read_text().splitlines()
        found = {name: int(size) for name, size in (line.split() for line in lines)}
        prefix = "total_" if "total_inactive_file" in found else ""
        cache = sum(found.get(f"{prefix}{kind}_file", 0) for kind in ("active", "inactive"))  # freed when needed
        return max(0, int(Path(limit).read_text()) - int(Path(used).read_text()) + cache)
    return None


def _limit() -> int | None:
    """What `ulimit -v` leaves."""
    limit = _address_limit()
    with contextlib.suppress(OSError, ValueError, IndexError):
        if limit is not None:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            return max(0, limit - used)
    return None


def _address_limit() -> int | None:
    """The limit on this process's address space, in bytes."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        return None if limit == resource.RLIM_INFINITY else limit
    return None

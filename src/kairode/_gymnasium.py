"""The Gymnasium ids, registered when both Kairode and Gymnasium are imported, in whichever order.

Gymnasium 1.x has no plugins, and takes longer to import than the rest of Kairode up to JAX. So where it is not imported
yet, a finder waits for that import and registers the ids as it ends.
"""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

IDS = {
    "kairode/WindyGridworld-v0": "gridworld",
    "kairode/Acrobot-v0": "acrobot",
    "kairode/HIV-v0": "hiv",
    "kairode/HIVPartial-v0": "hiv-partial",
    "kairode/Pendulum-v0": "pendulum",
    "kairode/Swimmer-v0": "swimmer",
    "kairode/Hopper-v0": "hopper",
    "kairode/HalfCheetah-v0": "half-cheetah",
}


def register() -> None:
    """Register the ids now if Gymnasium is imported, otherwise as soon as it is; `import kairode` calls it."""
    if "gymnasium" in sys.modules:
        register_now()
    elif not any(isinstance(finder, AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, AfterImport())


def register_now() -> None:
    """Register the ids that are not registered yet."""
    import gymnasium

    for gym_id, name in IDS.items():
        if gym_id not in gymnasium.registry:
            gymnasium.register(
                gym_id,
                entry_point="kairode.envs.gym:SemiMarkovEnv",
                vector_entry_point="kairode.envs.gym:SemiMarkovVectorEnv",
                kwargs={"name": name},
            )


class AfterImport:
    """A finder for Gymnasium alone: it is found as ever, and the ids are registered once it has run."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None for anything but Gymnasium."""
        if fullname != "gymnasium":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_register(module: ModuleType) -> None:
                run(module)
                register_now()

            spec.loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec

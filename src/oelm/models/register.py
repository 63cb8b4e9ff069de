"""Register the small GPT with transformers' Auto classes once both are imported, in either order.

Only its configuration is registered; creating one imports the model classes. So `import oelm` imports neither torch
nor transformers, and transformers is never imported recursively.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

# Every Auto class uses this one first.
_AUTO = "transformers.models.auto.configuration_auto"


def register_with_transformers() -> None:
    """Register now if transformers' Auto classes are imported, otherwise when they are."""
    if _AUTO in sys.modules:
        _register()
    elif not any(isinstance(finder, _AfterAuto) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterAuto())


def _register() -> None:
    try:
        import oelm.models.gpt_config  # noqa: F401
    except ImportError:
        return  # this transformers is too old for the small GPT, but not for other models


class _AfterAuto(MetaPathFinder):
    """Registers after the import of one module, then removes itself."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _AUTO:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_register(module: ModuleType) -> None:
                run(module)
                _register()

            spec.loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec

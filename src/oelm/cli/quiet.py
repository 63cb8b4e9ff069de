"""What transformers says while loading is about training it, not about the model that is looked at."""

from collections.abc import Iterator
from contextlib import contextmanager

from oelm.errors import is_installed


@contextmanager
def quiet_loading() -> Iterator[None]:
    if not is_installed("transformers"):
        yield
        return
    import logging as levels

    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(levels.ERROR)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]

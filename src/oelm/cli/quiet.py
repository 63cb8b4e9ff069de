"""What transformers says while loading is about training it, not about the model that is looked at."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_loading() -> Iterator[None]:
    import logging as levels

    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity(levels.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)

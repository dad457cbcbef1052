"""timm's weights on the Hugging Face Hub, with or without a network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 10.0  # seconds for the first answer of the Hub


@contextmanager
def hub() -> Iterator[None]:
    """While this is open and the Hub does not answer, its client looks into its cache alone.

    By itself it would try again for a minute, even for weights that the cache has.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]  # where old and new versions have it

    before = constants.HF_HUB_OFFLINE
    try:
        get_session().head(constants.ENDPOINT, timeout=PATIENCE)
    except Exception:  # the client has changed its HTTP library twice, and its errors with it
        constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before

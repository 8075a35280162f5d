"""A process that has used up its descriptors."""

from __future__ import annotations

import errno
import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def no_descriptors_left() -> Iterator[None]:
    """Nothing can be opened in this process until the block ends. What others left open and nobody holds any more is
    closed before.
    """
    gc.collect()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        with pytest.raises(OSError) as refused:
            os.dup(0)
        assert refused.value.errno == errno.EMFILE
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

"""Drops the lines that TensorFlow's libraries print when they are imported.

No setting of the process changes: TF_CPP_MIN_LOG_LEVEL would silence TensorFlow for good, also in a
user's own program. While the import runs, standard error goes to a file; what is not a banner is
printed afterwards.
"""

import contextlib
import os
import re
import sys
import tempfile

_BANNER = re.compile(
    r"WARNING: All log messages before absl|[IW]\d{4} \d\d:|[IW]0000 "
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IW] (external|tensorflow)/"
    r"|To enable the following instructions|\s*$"
)


@contextlib.contextmanager
def without_banner():
    """In this context, which holds imports, the banner of TensorFlow's libraries is dropped."""
    try:
        stderr = os.dup(2)
    except OSError:  # Standard error is closed.
        yield
        return
    with tempfile.TemporaryFile() as file:
        with contextlib.suppress(AttributeError, ValueError):
            sys.stderr.flush()
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            with contextlib.suppress(AttributeError, ValueError):
                sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            file.seek(0)
            for line in file.read().decode(errors="replace").splitlines():
                if not _BANNER.match(line):
                    print(line, file=sys.stderr)

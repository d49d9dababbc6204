"""Run a replica's script as Python would, and then end the process at once.

Threads of groups that ended with a death may still wait for the network. To end the interpreter under them is a crash
as often as not, of a replica that had done all it should.
"""

from __future__ import annotations

import atexit
import os
import runpy
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path

from assay.training.recover.keeper import end_with


def _run(script: str) -> int:
    """Run a script as `python script` does, to the end of all that it asked to be done at the end; its exit code."""
    sys.path[0] = str(Path(script).resolve().parent)
    code: object = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != script:
            trace = trace.tb_next
        traceback.print_exception(type(error), error, trace or error.__traceback__)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
    atexit._run_exitfuncs()
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    return int(code or 0) & 0xFF


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    sys.argv = sys.argv[2:]
    os._exit(_run(sys.argv[0]))

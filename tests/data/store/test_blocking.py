from __future__ import annotations

import subprocess
import sys

FORKING = """
import os, signal
from assay.data.store.blocking import blocking
from assay.data.store.memory import MemStore

store = blocking(MemStore())
store.put("before", b"1")
child = os.fork()
if child == 0:
    signal.alarm(20)  # ends it where it waits for a thread that only its parent has
    store.put("after", b"2")
    os._exit(len(store.list()))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_has_a_loop_of_its_own() -> None:
    told = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout.strip() == "2"


LEAVING = """
import asyncio, sys, threading
from assay.data.store.blocking import background

begun = threading.Event()

async def waits():
    begun.set()
    try:
        await asyncio.sleep(3600)
    finally:
        print("let go")

asyncio.run_coroutine_threadsafe(waits(), background())
begun.wait()
sys.exit(3)
"""


def test_what_is_under_way_is_let_go_before_the_interpreter_ends() -> None:
    """Else an answer from compiled code comes when nobody can take it, and the process is aborted: code 134."""
    told = subprocess.run([sys.executable, "-c", LEAVING], capture_output=True, text=True, timeout=60, check=False)
    assert (told.returncode, told.stdout.strip(), told.stderr) == (3, "let go", "")

"""The same nodes over real TCP, in processes of their own.

>>> from assay.protocols.kernel.run import all_decided
>>> from assay.protocols.kernel.world import World
>>> from assay.protocols.nodes.broadcast import Bracha
>>> outcome = run(World(n=4, f=1, node=Bracha, inputs=["hello"]), until=all_decided, processes=2)
>>> outcome.decided(), outcome.stopped
({0: 'hello', 1: 'hello', 2: 'hello', 3: 'hello'}, 'until')
"""

from assay.protocols.tcp.conduct import Death, run

__all__ = ["Death", "run"]

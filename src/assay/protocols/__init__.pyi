from assay.protocols.automata.verify import verify as verify
from assay.protocols.div import vote as vote
from assay.protocols.faults import (
    Chaos as Chaos,
    Crash as Crash,
    Delay as Delay,
    Equivocate as Equivocate,
    Lie as Lie,
    Omit as Omit,
    Silence as Silence,
    compose as compose,
)
from assay.protocols.interface import Ctx as Ctx, Fault as Fault, Node as Node, Parent as Parent
from assay.protocols.judges.lattice import strongest as strongest
from assay.protocols.kernel.run import Outcome as Outcome
from assay.protocols.kernel.world import World as World
from assay.protocols.ordered_pp import APPROXIMATE_MAJORITY as APPROXIMATE_MAJORITY, run_counts as run_counts
from assay.workloads.histories import read as read

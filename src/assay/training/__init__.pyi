from assay.sim.nccl import NcclModel as NcclModel
from assay.sim.topology import Topology as Topology
from assay.sim.topology import read as read_topology

__all__ = ["NcclModel", "Topology", "read_topology"]

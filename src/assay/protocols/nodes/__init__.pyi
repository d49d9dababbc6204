from assay.protocols.nodes.agreement import ABA as ABA, IdealCoin as IdealCoin
from assay.protocols.nodes.broadcast import Bracha as Bracha, SignedBroadcast as SignedBroadcast
from assay.protocols.nodes.chain import Miner as Miner
from assay.protocols.nodes.chord import Chord as Chord
from assay.protocols.nodes.data_links import (
    AlternatingBit as AlternatingBit,
    NumberedLink as NumberedLink,
    StabilisingLink as StabilisingLink,
)
from assay.protocols.nodes.kademlia import Kademlia as Kademlia
from assay.protocols.nodes.pbft import Pbft as Pbft, PbftClient as PbftClient
from assay.protocols.nodes.raft import Raft as Raft, RaftClient as RaftClient
from assay.protocols.nodes.stores import Replica as Replica, Session as Session

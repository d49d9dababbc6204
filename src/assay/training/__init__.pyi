from assay.sim.nccl import NcclModel as NcclModel
from assay.sim.topology import read as read_topology
from assay.sim.topology import Topology as Topology
from assay.training.d2ar import Archive as SceneArchive
from assay.training.d2ar import decode as decode_scene
from assay.training.d2ar import encode as encode_scene
from assay.training.d2ar import train as learn_place
from assay.training.engine.cluster import Cluster as Cluster
from assay.training.engine.cluster import Efficiency as Efficiency
from assay.training.engine.cluster import read as read_cluster
from assay.training.engine.planning import best as best_plans
from assay.training.engine.rollout import play as roll_out
from assay.training.engine.rollout import Pool as RolloutPool
from assay.training.engine.rollout import Rule as RolloutRule
from assay.training.engine.schedules import named as schedule
from assay.training.engine.step import Outcome as Outcome
from assay.training.engine.step import simulate as simulate
from assay.training.engine.step import Unequal as Unequal
from assay.training.entrain import plan as deal_samples
from assay.training.fcp import plan as plan_blocks
from assay.training.hexiseq import mixed as mixed_machines
from assay.training.hexiseq import plan_uneven as plan_uneven
from assay.training.interface import CollectiveModel as CollectiveModel
from assay.training.interface import ExpertBalancer as ExpertBalancer
from assay.training.interface import Hosts as Hosts
from assay.training.interface import Job as Job
from assay.training.interface import Layout as Layout
from assay.training.interface import Plan as Plan
from assay.training.interface import Schedule as Schedule
from assay.training.interface import Shares as Shares
from assay.training.shardtensor import check as check_shards
from assay.training.shardtensor import Domain as Domain
from assay.training.shardtensor import redistributed as redistributed
from assay.training.shardtensor import shard as shard
from assay.training.shardtensor import ShardTensor as ShardTensor
from assay.training.resihp import Detector as WorkloadDetector
from assay.training.resihp import repair as repair_plan
from assay.training.resihp import Training as HybridTraining
from assay.training.marlaas import train as train_tenants
from assay.training.tons import synthesise as wire_pod
from assay.training.ultraep import balanced_experts as balanced_experts
from assay.training.ultraep import UltraEP as UltraEP

__all__ = [
    "Cluster",
    "CollectiveModel",
    "Domain",
    "Efficiency",
    "ExpertBalancer",
    "Hosts",
    "HybridTraining",
    "Job",
    "Layout",
    "NcclModel",
    "Outcome",
    "Plan",
    "RolloutPool",
    "RolloutRule",
    "SceneArchive",
    "Schedule",
    "ShardTensor",
    "Shares",
    "Topology",
    "UltraEP",
    "Unequal",
    "WorkloadDetector",
    "balanced_experts",
    "best_plans",
    "check_shards",
    "deal_samples",
    "decode_scene",
    "encode_scene",
    "learn_place",
    "mixed_machines",
    "plan_blocks",
    "plan_uneven",
    "read_cluster",
    "read_topology",
    "redistributed",
    "repair_plan",
    "roll_out",
    "schedule",
    "shard",
    "simulate",
    "train_tenants",
    "wire_pod",
]

from assay.training.interface import Hosts as Hosts
from assay.training.interface import Shares as Shares
from assay.training.fcp import plan as plan_blocks
from assay.training.ultraep import UltraEP as UltraEP
from assay.training.ultraep import balanced_experts as balanced_experts

__all__ = ["Hosts", "Shares", "UltraEP", "balanced_experts", "plan_blocks"]

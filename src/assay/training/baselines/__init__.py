"""What several papers of the room compare with."""

from assay.training.baselines.experts import Eplb as Eplb
from assay.training.baselines.experts import EplbPlus as EplbPlus
from assay.training.baselines.experts import Ideal as Ideal
from assay.training.baselines.experts import Lplb as Lplb
from assay.training.baselines.experts import Nobody as Nobody

from assay.serving.engine.outcome import Outcome as Outcome
from assay.serving.engine.simulator import (
    PolicyFailed as PolicyFailed,
    Simulation as Simulation,
    simulate as simulate,
    warm as warm,
)

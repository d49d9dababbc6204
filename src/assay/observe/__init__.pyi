from assay.observe.bench.judge import judge as judge
from assay.observe.ccl.dumps import diagnose as diagnose_hang
from assay.observe.frontier.diagnosis import diagnose as diagnose
from assay.observe.frontier.vectors import Vectors as Vectors
from assay.observe.interface import Attributor as Attributor
from assay.observe.interface import Diagnosis as Diagnosis
from assay.observe.interface import Suspect as Suspect
from assay.observe.series.decompose import automatic as decompose
from assay.observe.series.forecast import forecast as forecast
from assay.observe.traces.files import read as read
from assay.observe.traces.report import report as report

__all__ = [
    "Attributor",
    "Diagnosis",
    "Suspect",
    "Vectors",
    "decompose",
    "diagnose",
    "diagnose_hang",
    "forecast",
    "judge",
    "read",
    "report",
]

from assay.serving.balanceroute import BalanceRoute as BalanceRoute
from assay.serving.baselines.orders import (
    EarliestDeadline as EarliestDeadline,
    Fair as Fair,
    FirstCome as FirstCome,
    Priority as Priority,
    ShortestFirst as ShortestFirst,
)
from assay.serving.baselines.routers import (
    Dynamo as Dynamo,
    LeastRequests as LeastRequests,
    LlmD as LlmD,
    PowerOfTwo as PowerOfTwo,
    PredictedTtft as PredictedTtft,
    RoundRobin as RoundRobin,
    SglangCacheAware as SglangCacheAware,
    VllmV1 as VllmV1,
)
from assay.serving.driftsched import DriftSched as DriftSched
from assay.serving.engine.components import order as order, router as router
from assay.serving.engine.outcome import Outcome as Outcome
from assay.serving.engine.simulator import simulate as simulate, warm as warm
from assay.serving.fleet import FleetSpec as FleetSpec, parse as parse, uniform as uniform
from assay.serving.interface import (
    BatchRouter as BatchRouter,
    Fleet as Fleet,
    Order as Order,
    Request as Request,
    Router as Router,
    SLO as SLO,
)
from assay.serving.lmetric import LMetric as LMetric
from assay.workloads.chat import chat as chat
from assay.workloads.request_files import read as read
from assay.workloads.requests import Requests as Requests

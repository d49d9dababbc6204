from assay.data.atlas import infer as infer_gnn
from assay.data.blobshuffle import BatchPolicy as BatchPolicy
from assay.data.blobshuffle import BlobShuffle as BlobShuffle
from assay.data.blobshuffle import repartition as repartition
from assay.data.disk import DiskArray as DiskArray
from assay.data.disk import DiskGraph as DiskGraph
from assay.data.disk import PagedFile as PagedFile
from assay.data.engine.segments import SegmentBlob as SegmentBlob
from assay.data.engine.segments import open_blob as open_blob
from assay.data.engine.version_log import VersionLog as VersionLog
from assay.data.fold import Fold as Fold
from assay.data.fold import dedup as dedup
from assay.data.graphflash import run_graph as run_graph
from assay.data.grinnder import Network as GraphNetwork
from assay.data.grinnder import fit as train_gnn
from assay.data.interface import Component as Component
from assay.data.interface import Store as Store
from assay.data.interface import Violation as Violation
from assay.data.lakestream import Plane as Plane
from assay.data.lakestream import dataset as plane_dataset
from assay.data.lakestream import produce as produce
from assay.data.navis import VectorIndex as VectorIndex
from assay.data.orbax import Checkpointer as Checkpointer
from assay.data.orbax import Part as Part
from assay.data.orbax import Sharded as Sharded
from assay.data.solanet import knn_graph as knn_graph
from assay.data.store.address import open_store as open_store
from assay.data.store.blocking import blocking as blocking
from assay.data.store.cached import Cached as Cached
from assay.data.store.delayed import Delayed as Delayed
from assay.data.store.directory import DirStore as DirStore
from assay.data.store.memory import MemStore as MemStore
from assay.data.store.wrappers import Metered as Metered
from assay.data.store.wrappers import Recorded as Recorded
from assay.data.store.wrappers import Zoned as Zoned

__all__ = [
    "BatchPolicy",
    "BlobShuffle",
    "Cached",
    "Checkpointer",
    "Component",
    "Delayed",
    "DirStore",
    "DiskArray",
    "DiskGraph",
    "Fold",
    "GraphNetwork",
    "MemStore",
    "Metered",
    "PagedFile",
    "Part",
    "Plane",
    "Recorded",
    "SegmentBlob",
    "Sharded",
    "Store",
    "VectorIndex",
    "VersionLog",
    "Violation",
    "Zoned",
    "blocking",
    "dedup",
    "infer_gnn",
    "knn_graph",
    "open_blob",
    "open_store",
    "plane_dataset",
    "produce",
    "repartition",
    "run_graph",
    "train_gnn",
]

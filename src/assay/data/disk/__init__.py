"""Files larger than memory: pages read past the page cache, row stores, graphs in compressed rows on disk."""

from assay.data.disk.arrays import DiskArray, RowWriter, write_rows
from assay.data.disk.edges import read_edges
from assay.data.disk.graphs import DiskGraph
from assay.data.disk.pages import IoStats, PagedFile, Ticket

__all__ = ["DiskArray", "DiskGraph", "IoStats", "PagedFile", "RowWriter", "Ticket", "read_edges", "write_rows"]

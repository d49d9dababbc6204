from assay.kernels.radius_fps import radius as radius
from assay.workloads.cloud_files import read_cloud as read_cloud

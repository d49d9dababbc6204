from assay.kernels.radius_fps import radius as radius
from assay.workloads.cloud_files import read_cloud as read_cloud
from assay.kernels.fractalsort.sorting import sort as sort
from assay.kernels.fractalsort.sorting import sort_file as sort_file
from assay.kernels.merbit import pagerank as pagerank
from assay.kernels.merbit.spmv import spmv as spmv
from assay.kernels.goldbach.checking import goldbach as goldbach_up_to  # noqa: F401
from assay.kernels.falcongemm.product import decide_gemm as decide_gemm
from assay.kernels.falcongemm.product import gemm as gemm
from assay.kernels.falcongemm.product import gemm_weights as gemm_weights
from assay.kernels.etap_mla.cpu import mla_decode as mla_decode
from assay.kernels.ab_sparse.allocation import allocate as allocate
from assay.kernels.ab_sparse.ragged import decode as sparse_decode  # noqa: F401
from assay.kernels.ab_sparse.ragged import prepare as summarise_kv  # noqa: F401
from assay.kernels.bigint_div.dividing import divide as divide
from assay.kernels.bigint_div.dividing import divide_limbs as divide_limbs
from assay.kernels.bigint_div.dividing import gcd as gcd
from assay.kernels.bigint_div.dividing import mulmod as mulmod

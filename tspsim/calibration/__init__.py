"""All fitting: a device's kernels, its node's collectives and its fabrics, moved to measured times.

What is fitted are the forms that predict: kernels (:mod:`.kernels`) those of :mod:`tspsim.hardware`, transfers those of
:mod:`tspsim.network`. A measured transfer belongs to what its tuner would take: the cheapest choice of the node as its
file stands. Of that the rows move

    a curve          base, hop, efficiency, own and growth; L and W of every library measured
    an engine        base, hop and efficiency of each way of its all-reduce
    an exchange      the times, shares and rates of a phase of an expert-parallel library
    a fabric         L and W

by robust least squares on log time (:mod:`.least_squares`), each number pulled weakly to where it was; rows too few to
carry a curve or an engine move its latencies and bandwidths by a factor each. What moves is decided by how well fits to
four fifths of the rows used predict the last: a file that does so as well stays. A kind that has no measured curve gets
one where rows can carry it. docs/collective-models.md has the study.
"""

from .nccl_tests import NcclLog
from .run import Calibration, calibrate, places

__all__ = ["Calibration", "NcclLog", "calibrate", "places"]

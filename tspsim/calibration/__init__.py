"""All fitting: a device's kernels, its node's collectives and its fabrics, fitted to measured times.

The fitted forms are those that predict: kernels (:mod:`.kernels`) the models of :mod:`tspsim.hardware`, transfers those
of :mod:`tspsim.network`. A measured transfer belongs to the candidate that the tuner would take: the cheapest one of
the node's file before the fit. Rows move these numbers of it:

    a curve      base, hop, efficiency, own and growth; L and W of every library measured
    an engine    base, hop and efficiency of each way of its all-reduce
    an exchange  the times, shares and rates of a phase of an expert-parallel library
    a fabric     L and W

The fit is a robust least squares on log time (:mod:`.least_squares`), each number pulled weakly to its start. Rows that
cannot carry a curve or an engine move only a factor of its latencies and a factor of its bandwidths. Cross-validation
decides what moves: fits to four fifths of the used rows predict the last fifth, and a file that predicts them as well
stays. A kind without a measured curve gets one where rows can carry it. docs/collective-models.md has the study.
"""

from .nccl_tests import NcclLog
from .run import Calibration, calibrate, places

__all__ = ["Calibration", "NcclLog", "calibrate", "places"]

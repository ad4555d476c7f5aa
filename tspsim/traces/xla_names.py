"""Kernels of XLA (JAX, MaxText, TensorFlow): a fusion has the names of the operations in it.

XLA's GPU emitters name a fusion ``<emitter>_<operations>_fusion`` (``loop``, ``input``, ``wrapped``, ``gemm``), with a
number where a program has several. The root comes last; a reduction, scatter or product decides what a fusion costs.
"""

from __future__ import annotations

from .names import KERNEL_NAMES, KernelNames

#: Operations that move elements, and the end of a fusion's name.
_MOVES = r"(transpose|slice|concatenate|copy|pad|gather|reverse|bitcast|dynamic_update_slice|dynamic_slice|reshape)"
_END = r"(_fusion)?([._]\d+)*$"

KERNEL_NAMES.register(
    KernelNames(
        "xla",
        "fusions of XLA's emitters",
        kinds={
            "gemm": (r"^(gemm|triton_gemm|__triton_gemm)_(\w+_)?fusion", r"^cublas-(lt-)?(gemm|matmul)"),
            "convolution": (r"^cudnn-conv",),
            "attention": (r"^(cudnn-)?fmha",),
            "reduction": (r"^(input|loop|wrapped)_(\w+_)?reduce_(\w+_)?fusion", r"^wrapped_reduce" + _END),
            "embedding": (r"^(input|loop|wrapped)_(\w+_)?scatter_(\w+_)?fusion", r"^wrapped_scatter" + _END),
            "copy": (
                r"^(loop|input)_(\w+_)?" + _MOVES + r"_fusion",
                r"^wrapped_" + _MOVES + _END,
            ),
            "memset": (r"^(loop|wrapped)_broadcast" + _END,),
            "elementwise": (r"^(loop|input|wrapped)_\w+_fusion", r"^wrapped_\w+" + _END),
        },
    )
)

"""Which shapes are the same each time: those that follow from the shapes of the inputs, and from constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from retrotape.ir import CUSTOM, Eqn, TensorType
from retrotape.record import for_execution
from retrotape.tf import core
from retrotape.tf.core import tf

# Ops whose results have shapes that depend on the shapes of their inputs, and on their attributes, alone.
_BY_SHAPE = frozenset(
    """
    Abs Acos Acosh AddN AddV2 Add Angle ApproximateEqual Asin Asinh Atan Atan2 Atanh AvgPool AvgPool3D
    BatchMatMul BatchMatMulV2 BatchMatMulV3 BesselI0 BesselI0e BesselI1 BesselI1e BesselJ0 BesselJ1 BesselK0
    BesselK0e BesselK1 BesselK1e BesselY0 BesselY1 Betainc BiasAdd BiasAddGrad BiasAddV1 Bitcast
    Cast Ceil Cholesky CholeskyGrad ClipByValue Complex ComplexAbs Conj Conv2D Conv3D Cos
    Cosh CropAndResizeGradBoxes Cross Cumprod Cumsum CumulativeLogsumexp Dawsn DepthToSpace
    DepthwiseConv2dNative Diag DiagPart Digamma Dilation2D Dilation2DBackpropFilter Dilation2DBackpropInput Div
    DivNoNan Einsum Elu EluGrad Equal Erf Erfc Erfinv Exp Expint Expm1 ExtractImagePatches ExtractVolumePatches
    FFT FFT2D FFT3D Floor FloorDiv FloorMod FractionalMaxPoolGrad FresnelCos FresnelSin FusedBatchNorm
    FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3 FusedBatchNormV2 FusedBatchNormV3 Gather
    GatherNd Greater GreaterEqual IFFT IFFT2D IFFT3D Identity IdentityN Igamma IgammaGradA Igammac Imag Inv
    InvGrad InvertPermutation IsFinite IsInf IsNan L2Loss LRN LRNGrad LeakyRelu LeakyReluGrad Less LessEqual
    Lgamma Log Log1p LogMatrixDeterminant LogSoftmax LogicalAnd LogicalNot LogicalOr Lu MatMul MatrixBandPart
    MatrixDeterminant MatrixDiag MatrixDiagPart MatrixInverse MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3
    MatrixSolve MatrixSquareRoot MatrixTriangularSolve MaxPool MaxPool3D MaxPool3DGrad MaxPool3DGradGrad
    MaxPoolGrad MaxPoolGradGrad MaxPoolGradV2 MaxPoolGradWithArgmax Maximum Minimum Mod Mul MulNoNan Ndtri Neg
    NextAfter NotEqual OnesLike Pack Polygamma Pow PreventGradient Qr RandomGammaGrad Rank Real RealDiv
    Reciprocal ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad ResizeBicubicGrad ResizeBilinearGrad ReverseSequence
    ReverseV2 Rint Roll Round Rsqrt RsqrtGrad ScaleAndTranslateGrad Select SelectV2 SelfAdjointEigV2 Selu
    SeluGrad Shape ShapeN Sigmoid SigmoidGrad Sign Sin Sinh Size Softmax SoftmaxCrossEntropyWithLogits Softplus
    SoftplusGrad Softsign SoftsignGrad SpaceToDepth SparseMatMul SparseSoftmaxCrossEntropyWithLogits Spence Sqrt
    SqrtGrad Square SquaredDifference Squeeze StopGradient Sub Svd Tan Tanh TanhGrad TensorScatterAdd
    TensorScatterMax TensorScatterMin TensorScatterSub TensorScatterUpdate TridiagonalMatMul TridiagonalSolve
    TruncateDiv TruncateMod Unpack Xdivy Xlog1py Xlogy ZerosLike Zeta
    """.split()  # noqa: SIM905 - a table to read
)
# Ops whose results have shapes that also depend on the values of the inputs at these positions, negative from the end.
_BY_VALUE: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("All", "Any", "ArgMax", "ArgMin", "Max", "Mean", "Min", "Prod", "Sum"), (1,)),
    **dict.fromkeys(("BroadcastTo", "ExpandDims", "Reshape", "Tile", "Transpose"), (1,)),
    **dict.fromkeys(("MirrorPad", "MirrorPadGrad", "Pad", "PadV2"), (1,)),
    **dict.fromkeys(("Conv2DBackpropInput", "DepthwiseConv2dNativeBackpropInput", "Fill"), (0,)),
    **dict.fromkeys(("Conv2DBackpropFilter", "DepthwiseConv2dNativeBackpropFilter"), (1,)),
    **dict.fromkeys(("UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd", "UnsortedSegmentSum"), (2,)),
    **dict.fromkeys(("FFTND", "IRFFT", "IRFFT2D", "IRFFT3D", "RFFT", "RFFT2D", "RFFT3D"), (1,)),
    **dict.fromkeys(("MatrixDiagPartV2", "MatrixDiagPartV3"), (1,)),
    **dict.fromkeys(("MatrixDiagV2", "MatrixDiagV3"), (1, 2, 3)),
    **dict.fromkeys(("SparseSegmentMeanGrad", "SparseSegmentSqrtNGrad", "SparseSegmentSumGrad"), (3,)),
    **dict.fromkeys(("AvgPool3DGrad", "AvgPoolGrad", "Conv3DBackpropInputV2", "FractionalAvgPoolGrad"), (0,)),
    **dict.fromkeys(("BatchToSpaceND", "SpaceToBatchND"), (1, 2)),
    **dict.fromkeys(("ImageProjectiveTransformV2", "ImageProjectiveTransformV3", "SparseTensorDenseMatMul"), (2,)),
    "BroadcastGradientArgs": (0, 1),
    "Conv3DBackpropFilterV2": (1,),
    "CropAndResizeGradImage": (3,),
    "ResizeNearestNeighborGrad": (1,),
    "ConcatOffset": (0,),
    "ConcatV2": (-1,),
    "GatherV2": (2,),
    "OneHot": (1,),
    "Range": (0, 1, 2),
    "ScatterNd": (2,),
    "Slice": (1, 2),
    "Split": (0,),
    "SplitV": (1, 2),
    "StridedSlice": (1, 2, 3),
    "StridedSliceGrad": (0,),
    "TopKV2": (1,),
}


CALL = "PartitionedCall"  # of a function whose results have known shapes: no others are called by this op

# Ops of these lists that fail for some values.
_FAILING = frozenset(
    """
    Cholesky CholeskyGrad CropAndResizeGradBoxes CropAndResizeGradImage Div FloorDiv FloorMod Gather GatherNd GatherV2
    ImageProjectiveTransformV2 ImageProjectiveTransformV3 InvertPermutation LogMatrixDeterminant Lu MatrixDeterminant
    MatrixInverse MatrixSolve MatrixSquareRoot MatrixTriangularSolve Mod Pow Qr ReverseSequence ScatterNd
    SelfAdjointEigV2 SparseSegmentMeanGrad SparseSegmentSqrtNGrad SparseSegmentSumGrad
    SparseSoftmaxCrossEntropyWithLogits SparseTensorDenseMatMul Svd TensorScatterAdd TensorScatterMax TensorScatterMin
    TensorScatterSub TensorScatterUpdate TridiagonalSolve TruncateDiv TruncateMod UnsortedSegmentMax UnsortedSegmentMin
    UnsortedSegmentProd UnsortedSegmentSum
    """.split()  # noqa: SIM905 - a table to read
)


def may_fail(op: str) -> bool:
    """Return whether an op fails for some values, so that it must run even if nothing uses what it returns."""
    return op in _FAILING or not (op in _BY_SHAPE or op in _BY_VALUE or op == CUSTOM)


def shaping_inputs(eqn: Eqn) -> tuple[int, ...]:
    """Return the inputs of an equation whose values the shapes of its results may depend on."""
    if eqn.op in _BY_SHAPE or eqn.op in (CUSTOM, CALL):
        return ()
    if eqn.op not in _BY_VALUE:  # such as Where, Unique or an op that is not in these lists
        return eqn.inputs
    count = len(eqn.inputs)
    return tuple(eqn.inputs[position] for position in _BY_VALUE[eqn.op] if position < count)


def has_known_shapes(eqn: Eqn, types: Sequence[TensorType], static: Mapping[int, Any]) -> bool:
    """Return whether TensorFlow infers the shapes of results, given the shapes of inputs and the values of some."""
    with tf.Graph().as_default():
        inputs = [
            tf.constant(static[var], types[var].dtype)
            if var in static
            else tf.compat.v1.placeholder(types[var].dtype, types[var].shape)
            for var in eqn.inputs
        ]
        made = core.run(eqn.op, inputs, for_execution(eqn.attrs), len(eqn.outputs))
        return all(one.shape.is_fully_defined() for one in made)


def size_of(kind: TensorType) -> int:
    """Return the number of elements of a tensor."""
    return prod(size or 0 for size in kind.shape) if kind.shape is not None else 0

"""Which shapes are the same each time: those that follow from the shapes of the inputs, and from constants."""

from __future__ import annotations

from collections.abc import Container

from retrotape.ir import CUSTOM, Eqn

# Ops whose results have shapes that depend on the shapes of their inputs, and on their attributes, alone.
_BY_SHAPE = frozenset(
    """
    Abs Acos Acosh AddN AddV2 Add Angle ApproximateEqual Asin Asinh Atan Atan2 Atanh AvgPool BatchMatMul BatchMatMulV2
    BatchMatMulV3 BatchToSpace BesselI0e BesselI1e BiasAdd BiasAddGrad BiasAddV1 Bitcast BroadcastGradientArgs Cast Ceil
    Cholesky CholeskyGrad ClipByValue Complex ComplexAbs Conj Conv2D Cos Cosh Cross Cumprod Cumsum DepthToSpace
    DepthwiseConv2dNative Diag DiagPart Digamma Div DivNoNan Einsum Elu EluGrad Equal Erf Erfc Erfinv Exp Expm1 FFT FFT2D
    Floor FloorDiv FloorMod FusedBatchNorm FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3 FusedBatchNormV2
    FusedBatchNormV3 Gather GatherNd Greater GreaterEqual IFFT IFFT2D Identity IdentityN Igamma IgammaGradA Igammac Imag
    Inv InvGrad InvertPermutation IsFinite IsInf IsNan L2Loss LRN LRNGrad LeakyRelu LeakyReluGrad Less LessEqual Lgamma
    Log Log1p LogSoftmax LogicalAnd LogicalNot LogicalOr MatMul MatrixBandPart MatrixDeterminant MatrixDiag MatrixDiagPart
    MatrixInverse MatrixSetDiag MatrixSolve MatrixTriangularSolve MaxPool MaxPoolGrad MaxPoolGradGrad Maximum Minimum Mod
    Mul MulNoNan Ndtri Neg NextAfter NotEqual OnesLike Pack Polygamma Pow PreventGradient Qr Real RealDiv Reciprocal
    ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad ReverseSequence ReverseV2 Rint Round Rsqrt RsqrtGrad Select SelectV2 Selu
    SeluGrad Shape ShapeN Sigmoid SigmoidGrad Sign Sin Sinh Size Rank Softmax SoftmaxCrossEntropyWithLogits Softplus
    SoftplusGrad Softsign SoftsignGrad SpaceToDepth SparseMatMul SparseSoftmaxCrossEntropyWithLogits Sqrt SqrtGrad Square
    SquaredDifference Squeeze StopGradient Sub Svd Tan Tanh TanhGrad TensorScatterAdd TensorScatterSub TensorScatterUpdate
    TruncateDiv TruncateMod Unpack Xdivy Xlog1py Xlogy ZerosLike Zeta
    """.split()
)
# Ops whose results have shapes that also depend on the values of the inputs at these positions, negative from the end.
_BY_VALUE: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("All", "Any", "ArgMax", "ArgMin", "Max", "Mean", "Min", "Prod", "Sum"), (1,)),
    **dict.fromkeys(("BroadcastTo", "ExpandDims", "Reshape", "Tile", "Transpose"), (1,)),
    **dict.fromkeys(("MirrorPad", "MirrorPadGrad", "Pad", "PadV2"), (1,)),
    **dict.fromkeys(("Conv2DBackpropInput", "DepthwiseConv2dNativeBackpropInput", "Fill"), (0,)),
    **dict.fromkeys(("Conv2DBackpropFilter", "DepthwiseConv2dNativeBackpropFilter"), (1,)),
    **dict.fromkeys(("UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd", "UnsortedSegmentSum"), (2,)),
    "AvgPoolGrad": (0,),
    "ConcatOffset": (0,),
    "ConcatV2": (-1,),
    "DynamicStitch": (0, 1, 2, 3, 4, 5, 6, 7, 8, 9),
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


def has_known_shapes(eqn: Eqn, known: Container[int], static: Container[int]) -> bool:
    """Return whether the shapes of the results of an equation are the same each time.

    Args:
      eqn: The equation.
      known: The vars whose shapes are.
      static: The vars whose values are.
    """
    if eqn.op not in _BY_SHAPE and eqn.op not in _BY_VALUE and eqn.op != CUSTOM:
        return False  # such as Where, Unique or an op that is not in these lists
    count = len(eqn.inputs)
    positions = [position for position in _BY_VALUE.get(eqn.op, ()) if position < count]
    return all(var in known for var in eqn.inputs) and all(eqn.inputs[position] in static for position in positions)

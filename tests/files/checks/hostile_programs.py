"""Programs that no tape has: ops that do something to the world, and small files that ask for a lot."""

from __future__ import annotations

import numpy as np

FORBIDDEN = {
    "ReadFile": ("%0 : string[]\n%1 : string[] = ReadFile(%0) @0", {0: "/etc/passwd"}),
    "WriteFile": ("%0 : string[]\n%1 : string[]\n= WriteFile(%0, %1) @0", {0: "{path}", 1: "gotcha"}),
    "MatchingFiles": ("%0 : string[]\n%1 : string[3] = MatchingFiles(%0) @0", {0: "/etc/*"}),
    "SaveV2": ("%0 : string[]\n%1 : string[1]\n= SaveV2{dtypes=(float32)}(%0, %1, %1, %1) @0", {0: "{path}"}),
    "EagerPyFunc": ("%0 : float32[]\n%1 : float32[] = EagerPyFunc{Tin=(), token=b'pyfunc_0'}() @0", {}),
    "PyFunc": ("%0 : float32[]\n%1 : float32[] = PyFunc{Tin=(), Tout=(float32), token=b'pyfunc_0'}() @0", {}),
    "Abort": ("%0 : float32[]\n%1 : float32[]\n= Abort{error_msg=b'x'}() @0", {}),
    "PrintV2": ("%0 : string[]\n%1 : string[]\n= PrintV2{output_stream=b'file://{path}'}(%0) @0", {0: "gotcha"}),
    "ImmutableConst": (
        "%0 : float32[]\n%1 : uint8[9] = ImmutableConst{dtype=uint8, memory_region_name=b'/etc/passwd', "
        "shape=Shape((9))}() @0",
        {},
    ),
    "DebugIdentity": (
        "%0 : float32[]\n%1 : float32[] = DebugIdentity{T=float32, debug_urls=(b'file://{path}')}(%0) @0",
        {0: np.float32(1)},
    ),
    "StatefulPartitionedCall": (
        '%0 : float32[]\n%1 : float32[] = StatefulPartitionedCall{Tin=(float32), Tout=(float32), f=Func("g")}(%0) @0',
        {0: np.float32(1)},
    ),
    "While": ('%0 : float32[]\n%1 : float32[] = While{T=(float32), body=Func("g"), cond=Func("g")}(%0) @0', {}),
    "VarHandleOp": ("%0 : float32[]\n%1 : resource[] = VarHandleOp{dtype=float32, shape=Shape(())}() @0", {}),
    "XlaCustomCallV2": ("%0 : float32[]\n%1 : float32[] = XlaCustomCallV2{call_target_name=b'x'}(%0) @0", {}),
    "LoadAndRemapMatrix": ("%0 : string[]\n%1 : float32[3] = LoadAndRemapMatrix(%0, %0, %0, %0, %0) @0", {}),
    "Const": ("%0 : float32[]\n%1 : float32[] = Const{dtype=float32, value=Proto(b'')}() @0", {}),
    "NoSuchOp": ("%0 : float32[]\n%1 : float32[] = NoSuchOp(%0) @0", {}),
}

F4, I4, I8 = "float32", "int32", "int64"
HUGE = 2**40
BOMBS = {
    "Fill": (f"%0 : int64[1]\n%1 : {F4}[]\n%2 : {F4}[3] = Fill{{T={F4}, index_type={I8}}}(%0, %1) @0", [[HUGE], 0.0]),
    "Fill of many dimensions": (
        f"%0 : int32[3]\n%1 : {F4}[]\n%2 : {F4}[3] = Fill{{T={F4}}}(%0, %1) @0",
        [[2**14, 2**14, 2**14], 0.0],
    ),
    "Tile": (
        f"%0 : {F4}[3]\n%1 : int64[1]\n%2 : {F4}[3] = Tile{{T={F4}, Tmultiples={I8}}}(%0, %1) @0",
        [[1.0] * 3, [HUGE]],
    ),
    "Range": (
        f"%0 : int64[]\n%1 : int64[]\n%2 : int64[]\n%3 : int64[3] = Range{{Tidx={I8}}}(%0, %1, %2) @0",
        [0, HUGE, 1],
    ),
    "Range of floats": (
        f"%0 : {F4}[]\n%1 : {F4}[]\n%2 : {F4}[]\n%3 : {F4}[3] = Range{{Tidx={F4}}}(%0, %1, %2) @0",
        [0.0, 1e12, 1.0],
    ),
    "BroadcastTo": (
        f"%0 : {F4}[]\n%1 : int64[2]\n%2 : {F4}[3] = BroadcastTo{{T={F4}, Tidx={I8}}}(%0, %1) @0",
        [1.0, [2**20, 2**20]],
    ),
    "OneHot": (
        f"%0 : int32[3]\n%1 : int32[]\n%2 : {F4}[]\n%3 : {F4}[3] = OneHot{{T={F4}, TI=int32}}(%0, %1, %2, %2) @0",
        [[1, 2, 3], 2**31 - 1, 1.0],
    ),
    "LinSpace": (
        f"%0 : {F4}[]\n%1 : int64[]\n%2 : {F4}[3] = LinSpace{{T={F4}, Tidx={I8}}}(%0, %0, %1) @0",
        [1.0, HUGE],
    ),
    "Pad": (
        f"%0 : {F4}[3]\n%1 : int64[1,2]\n%2 : {F4}[3] = Pad{{T={F4}, Tpaddings={I8}}}(%0, %1) @0",
        [[1.0] * 3, [[HUGE, 0]]],
    ),
    "ScatterNd": (
        f"%0 : int64[1,1]\n%1 : {F4}[1]\n%2 : int64[1]\n"
        f"%3 : {F4}[3] = ScatterNd{{T={F4}, Tindices={I8}}}(%0, %1, %2) @0",
        [[[0]], [1.0], [HUGE]],
    ),
    "ResizeBilinear": (
        f"%0 : {F4}[1,1,1,1]\n%1 : int32[2]\n%2 : {F4}[3] = ResizeBilinear{{T={F4}}}(%0, %1) @0",
        [[[[[1.0]]]], [2**15, 2**15]],
    ),
    "UnsortedSegmentSum": (
        f"%0 : {F4}[1]\n%1 : int64[1]\n%2 : int64[]\n"
        f"%3 : {F4}[3] = UnsortedSegmentSum{{T={F4}, Tindices={I8}, Tnumsegments={I8}}}(%0, %1, %2) @0",
        [[1.0], [0], HUGE],
    ),
    "SegmentSum": (
        f"%0 : {F4}[1]\n%1 : int64[1]\n%2 : {F4}[3] = SegmentSum{{T={F4}, Tindices={I8}}}(%0, %1) @0",
        [[1.0], [HUGE]],
    ),
    "DynamicStitch": (
        f"%0 : int32[1]\n%1 : {F4}[1]\n%2 : {F4}[3] = DynamicStitch{{N=1, T={F4}}}(%0, %1) @0",
        [[2**31 - 2], [1.0]],
    ),
    "SparseToDense": (
        f"%0 : int64[1]\n%1 : int64[1]\n%2 : {F4}[]\n"
        f"%3 : {F4}[3] = SparseToDense{{T={F4}, Tindices={I8}}}(%0, %1, %2, %2) @0",
        [[0], [HUGE], 1.0],
    ),
    "Bincount": (
        f"%0 : int32[1]\n%1 : int32[]\n%2 : {F4}[1]\n%3 : {F4}[3] = Bincount{{T={F4}}}(%0, %1, %2) @0",
        [[1], 2**31 - 1, [1.0]],
    ),
    "StatelessRandomNormalV2": (
        f"%0 : int64[1]\n%1 : uint64[1]\n%2 : uint64[2]\n%3 : int32[]\n"
        f"%4 : {F4}[3] = StatelessRandomNormalV2{{Tshape={I8}, dtype={F4}}}(%0, %1, %2, %3) @0",
        [[HUGE], np.array([1], "u8"), np.array([1, 2], "u8"), 1],
    ),
    "RandomUniform": (
        f"%0 : int64[1]\n%1 : {F4}[3] = RandomUniform{{T={I8}, dtype={F4}}}(%0) @0",
        [[HUGE]],
    ),
    "MatrixDiagV3": (
        f"%0 : {F4}[1]\n%1 : int32[]\n%2 : int32[]\n%3 : {F4}[]\n"
        f"%4 : {F4}[3] = MatrixDiagV3{{T={F4}}}(%0, %1, %2, %2, %3) @0",
        [[1.0], 0, 2**16, 0.0],
    ),
    "Diag": (f"%0 : {F4}[300000]\n%1 : {F4}[3] = Diag{{T={F4}}}(%0) @0", [[1.0] * 300_000]),
    "AddV2": (
        f"%0 : {F4}[200000,1]\n%1 : {F4}[1,200000]\n%2 : {F4}[3] = AddV2{{T={F4}}}(%0, %1) @0",
        [[[1.0]] * 200_000, [[1.0] * 200_000]],
    ),
    "TensorListReserve": (
        f"%0 : int32[1]\n%1 : int32[]\n"
        f"%2 : variant[] = TensorListReserve{{element_dtype={F4}, shape_type=int32}}(%0, %1) @0\n"
        f"%3 : int32[] = TensorListLength(%2) @0",
        [[3], 2**31 - 1],
    ),
    "TensorListStack": (
        f"%0 : int32[1]\n%1 : int32[]\n"
        f"%2 : variant[] = TensorListReserve{{element_dtype={F4}, shape_type=int32}}(%0, %1) @0\n"
        f"%3 : {F4}[3] = TensorListStack{{element_dtype={F4}}}(%2, %0) @0",
        [[2**20], 2**20],
    ),
    "IRFFT": (
        "%0 : complex64[2]\n%1 : int32[1]\n%2 : float32[3] = IRFFT(%0, %1) @0",
        [np.ones(2, "c8"), [2**30]],
    ),
    "ExtractImagePatches": (
        f"%0 : {F4}[1,9,9,1]\n%1 : {F4}[3] = ExtractImagePatches{{T={F4}, ksizes=(1, 30000, 30000, 1), "
        "padding=b'SAME', rates=(1, 1, 1, 1), strides=(1, 1, 1, 1)}(%0) @0",
        [np.ones((1, 9, 9, 1), "f4")],
    ),
}

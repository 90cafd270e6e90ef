"""Write the list of ops that a saved tape may name: `src/retrotape/saving/allowed_ops.txt`.

A proposal is made from TensorFlow's registry: what has no state, takes no function and no resource, and touches
neither files, nor the network, nor the process. The list is reviewed by eye before it is checked in; ops are added by
name, never by a rule at run time. Run: `python tools/allowed_ops.py`
"""

from __future__ import annotations

import re
from pathlib import Path

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from retrotape.rules import FORWARD

TARGET = Path(__file__).parents[1] / "src" / "retrotape" / "saving" / "allowed_ops.txt"
# Files, devices, the process, Python, compilers, other machines; decoders and parsers of foreign bytes.
REFUSED = re.compile(
    r"Abort|Audio|Barrier|Batch(?:Function|IFFT|FFT)|Collective|Compress|Copy|Cudnn|Dataset|Debug|Decode|Deserial"
    r"|Dummy|EagerPy|Encode|Experimental|ExtractGlimpse|ExtractJpeg|Fake(?!Quant)|Feed|Fetch|File|Generate.*Vocab|Handle"
    r"|HashTable|Host|ImageSummary|Immutable|Infeed|Iterator|Kafka|KMC|Load|Lookup|Lmdb|Map|Matching|Merge|Mkl|_Mkl|Mlir"
    r"|Mutex|Nccl|Ngrams|NearestNeighbors|OneShot|Optional|Outfeed|Parse|Placeholder|PyFunc|Print|Proto|Queue|Quantized"
    r"|Read(?!Variable)|Record|Recv|Remote|Restore|Retrieve|Save|Send|Serialize|SdcaFprint|Shard|Skipgram|Stack(?!ed)|Stage"
    r"|StringToHash.*Strong|Summary|Switch|Symbolic|TFRecord|TensorArray|TensorForest|TensorMap|Timestamp|Tpu|TPU|Unicode"
    r"|Unbatch|Uncompress|Uniform(?:Quant|Dequant|Requant)|Unstage|VarHandle|WholeFile|Wor[dk]|Write|Xla|ZipDataset"
    r"|Boosted|Bigtable|Case|ConsumeMutex|Enter|Exit|NextIteration|LoopCond|Fact|Ragged.*Variant|RiscV|Risc|Rpc"
    r"|CSR|Sparse(?:Matrix|Accum|Bincount)|Tokenize|SparseCore|Sdca|Kmeans|Inplace|Accumulator|InitializeTable|CheckPinned|ControlTrigger|^Batch$|Proposals"
    r"|^Quantize(?!AndDequantize)|Requanti|Dequantize$|Composite|Delete|Disable|Destroy|EmptyTensorMap|Fused(?!BatchNorm)"
)
DRAWS = {  # only run where somebody asks for new draws; else what they gave is in the file
    "Multinomial",
    "ParameterizedTruncatedNormal",
    "RandomGamma",
    "RandomPoissonV2",
    "RandomShuffle",
    "RandomStandardNormal",
    "RandomUniform",
    "RandomUniformInt",
    "TruncatedNormal",
}
READS = {"ResourceGather", "ResourceGatherNd"}
# Have state in name only, or draw, or hand on what they are given.
ALSO = {"CheckNumerics", "LogUniformCandidateSampler", "PlaceholderWithDefault", "UniformCandidateSampler"}


def is_harmless(definition: object) -> bool:
    if definition.is_stateful or definition.name.startswith("_") or REFUSED.search(definition.name):
        return False
    arguments = [*definition.input_arg, *definition.output_arg]
    if any(arg.is_ref or arg.type == tf.resource.as_datatype_enum for arg in arguments):
        return False
    if any(attr.type in ("func", "list(func)") for attr in definition.attr):
        return False
    lists = definition.name.startswith(("TensorList", "EmptyTensorList"))
    return lists or all(arg.type != tf.variant.as_datatype_enum for arg in arguments)


def main() -> None:
    names = {name for name in dir(tf.raw_ops) if not name.startswith("_")}
    definitions = [op_def_registry.get(name) for name in sorted(names)]
    allowed = {d.name for d in definitions if d is not None and is_harmless(d)} | DRAWS | READS | ALSO | set(FORWARD)
    TARGET.write_text("".join(f"{name}\n" for name in sorted(allowed)))
    print(f"{len(allowed)} ops")


if __name__ == "__main__":
    main()

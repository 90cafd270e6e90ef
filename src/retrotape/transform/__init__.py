"""Program → program: join, flatten, make portable, merge mirrored variables, prune, replay, differentiate."""

from retrotape.transform._flatten import flatten, flatten_if_possible
from retrotape.transform._join import TraceVar, join
from retrotape.transform._joint import Joint, join_from
from retrotape.transform._mirrored import check_mirrored, merge_mirrored
from retrotape.transform._portable import portable, runs_user_code
from retrotape.transform._prune import WITHOUT_BYTES, Pruned
from retrotape.transform._replay import replay
from retrotape.transform._shard_checks import NUMBER, Shard
from retrotape.transform._shards import join_shards

__all__ = [
    "NUMBER",
    "WITHOUT_BYTES",
    "Joint",
    "Pruned",
    "Shard",
    "TraceVar",
    "check_mirrored",
    "flatten",
    "flatten_if_possible",
    "join",
    "join_from",
    "join_shards",
    "merge_mirrored",
    "portable",
    "replay",
    "runs_user_code",
]

"""Recording ↔ file: what of a recording can live without the process that made it."""

from retrotape.saving._export import export_graph, export_saved_model
from retrotape.saving._load import Named, Opened, read
from retrotape.saving._replay import replay
from retrotape.saving._save import Prepared, prepare

__all__ = [
    "Named",
    "Opened",
    "Prepared",
    "export_graph",
    "export_saved_model",
    "prepare",
    "read",
    "replay",
]

"""A page about a tape: findings, gradient flow, layers, memory; as plain data first, then as HTML."""

from retrotape.report._charts import text_of
from retrotape.report._data import Stats
from retrotape.report._page import render
from retrotape.report._report import Report, write_page
from retrotape.report._reported import Reported

__all__ = ["Report", "Reported", "Stats", "render", "text_of", "write_page"]

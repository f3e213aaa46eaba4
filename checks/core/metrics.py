"""Metrics and the keys of figures, as families call them."""
from config.records.metrics import Metric, key, metric, split, table

__all__ = ['Metric', 'key', 'metric', 'split', 'table']

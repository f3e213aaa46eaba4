"""Metrics and their keys, for families."""
from config.records.metrics import Metric, key, metric, split, table

__all__ = ['Metric', 'key', 'metric', 'split', 'table']

"""Metrics and their keys, for families."""
from config.records.metrics import (
           Metric,
           metric,
           metric_key,
           metrics_by_name,
           split_metric_key,
)

__all__ = ['Metric', 'metric', 'metric_key', 'metrics_by_name',
           'split_metric_key']

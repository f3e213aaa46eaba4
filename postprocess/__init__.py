"""Perflogs in; figures, verdicts and proposed references out.

Reads perflogs/ and config/*.yaml; never imports checks/ or ReFrame.
"""

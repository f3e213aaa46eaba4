"""Features of the programs of TaoBench."""
from __future__ import annotations

#: Features of the embedded program.
EMBEDDED = ('tao_server',)


def program_features(source: str) -> tuple[str, ...]:
    """Features of an environment, by the source of its programs."""
    return EMBEDDED if source == 'embedded' else ()
